"""Rules over several fields: one table, each rule with a Python function and the CEL text that says the same in the API server.

Both are checked against one set of good and bad documents (tests/platform/spec/samples). A rule looks at a filled document
(samite.spec.filled) and stays silent about parts that are missing there: those have a message of their own already.

    rule ─ name        stable; names the sample files
         ─ check       (filled document) -> findings
         ─ cel         the same for the API server: expressions, where they stand in the schema, and the same message (samite.spec.cel)
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from samite.errors import Problem
from samite.spec.cel import CelRule
from samite.spec.yaml_tree import Path

Document = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing that a rule objects to."""

    path: Path
    wanted: str
    found: str
    hint: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """One rule over several fields."""

    name: str
    check: Callable[[Document], Iterable[Finding]]
    message: str
    """The rule in one sentence; what the API server says if the computed message fails."""
    cel: tuple[CelRule, ...]
    """What the API server evaluates. Several where several fields can be at fault."""


def all_rules() -> tuple[Rule, ...]:
    """Every rule, in the order of the spec."""
    from samite.spec.cluster_rules import CLUSTER_RULES
    from samite.spec.layout_rules import LAYOUT_RULES
    from samite.spec.policy_rules import POLICY_RULES
    from samite.spec.stage_rules import STAGE_RULES
    from samite.spec.storage_rules import STORAGE_RULES

    return (*STAGE_RULES, *LAYOUT_RULES, *STORAGE_RULES, *POLICY_RULES, *CLUSTER_RULES)


def check_rules(filled: Document) -> list[tuple[Rule, Finding]]:
    """Every finding of every rule about a filled document."""
    return [(rule, finding) for rule in all_rules() for finding in rule.check(filled)]


def stages(document: Document) -> Iterator[tuple[int, Document]]:
    """Index and mapping of each stage."""
    yield from enumerate(part(document, "spec", "stages") or [])


def spec_of(document: Document) -> Document:
    """The mapping under `spec`; empty if it is missing or bad."""
    return part(document, "spec") or {}


def part(document: Document, *keys: str) -> Any:
    """A nested value; None if any part of the way is missing."""
    value: Any = document
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def nearest(value: int, multiple: int) -> str:
    """The multiples on both sides of `value`, as a hint."""
    below = value // multiple * multiple
    return f"nearest: {below} or {below + multiple}" if below else f"nearest: {multiple}"


def text_of(finding: Finding | Problem) -> str:
    """What was wanted, what was found and what to do, on one line: the words that the API server uses too."""
    return f"wanted {finding.wanted}; found {finding.found}" + (f"; {finding.hint}" if finding.hint else "")


def exactly_one(given: Document, names: Iterable[str]) -> tuple[str, str] | None:
    """(found, hint) unless exactly one of `names` is in `given`."""
    names = list(names)
    present = [name for name in names if name in given]
    if len(present) == 1:
        return None
    return (
        ("none of them", "") if not present else (" and ".join(present), f"keep one: remove {' and '.join(present[1:])}, or {present[0]}")
    )
