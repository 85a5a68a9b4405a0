"""What may not change in a run that exists: its engine, its owner, its storage, and stages that have begun. Approvals only grow.

The API server enforces these as transition rules; Python says the same to `samite submit` and `samite validate` before anything is sent.

    rule ─ check   (old document, new document, names of the stages that have begun) -> findings; both documents filled
         ─ cel     the same, with `oldSelf`
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from samite.spec.cel import CelRule, computed, first_with, indices, let, template
from samite.spec.rules import Document, Finding, part, stages


@dataclass(frozen=True, kw_only=True, slots=True)
class UpdateRule:
    """One rule about a change."""

    name: str
    check: Callable[[Document, Document, Sequence[str]], Iterable[Finding]]
    message: str
    cel: tuple[CelRule, ...]


def check_update(old: Document, new: Document, started: Sequence[str] = ()) -> list[Finding]:
    """Everything that `new` may not change in `old`. `started` are the stages that have begun, in order."""
    return [finding for rule in UPDATE_RULES for finding in rule.check(old, new, started)]


FIXED = (("engine",), ("managedBy",), ("checkpoint", "uri"))
"""Fields of `spec` that never change."""

_ANOTHER = "submit it as another run, with another name"


def _fixed(old: Document, new: Document, started: Sequence[str]) -> Iterator[Finding]:  # noqa: ARG001
    for keys in FIXED:
        before, after = part(old, "spec", *keys), part(new, "spec", *keys)
        if before != after:
            wanted = f"{before}, as when the run was submitted" if before is not None else f"no {keys[-1]}, as when the run was submitted"
            hint = f"keep it, or {_ANOTHER}"
            yield Finding(path=("spec", *keys), wanted=wanted, found=str(after) if after is not None else "nothing", hint=hint)


def _started_stages_stay(old: Document, new: Document, started: Sequence[str]) -> Iterator[Finding]:
    before = [stage for _, stage in stages(old) if stage.get("name") in started]
    after = [stage for _, stage in stages(new)]
    for index, stage in enumerate(before):
        if index >= len(after) or after[index] != stage:
            wanted = f"{stage['name']} as it was when it began"
            found = "another place or other values" if stage["name"] in [other.get("name") for other in after] else "no such stage"
            hint = "change later stages, or submit another run that loads its checkpoint"
            yield Finding(path=("spec", "stages", index), wanted=wanted, found=found, hint=hint)
            return


def _approvals_grow(old: Document, new: Document, started: Sequence[str]) -> Iterator[Finding]:  # noqa: ARG001
    before, after = part(old, "spec", "approvals") or [], part(new, "spec", "approvals") or []
    for approval in before:
        if approval not in after:
            wanted = f"the approval of {approval['stage']} by {approval['by']} as it was given"
            yield Finding(path=("spec", "approvals"), wanted=wanted, found="it changed or removed", hint="approvals are only added")
            return


def _fixed_cel(keys: tuple[str, ...]) -> CelRule:
    owner, name = ".".join(keys[:-1]), keys[-1]
    here, there = (f"{self}.{owner}.{name}" if owner else f"{self}.{name}" for self in ("self", "oldSelf"))
    return CelRule(
        at="spec",
        field="." + ".".join(keys),
        holds=f"has({here}) == has({there}) && (!has({here}) || {here} == {there})",
        says=f"wanted <<has({there}) ? {there} : 'no {name}'>>, as when the run was submitted; "
        f"found <<has({here}) ? {here} : 'nothing'>>; keep it, or {_ANOTHER}",
    )


def _moved() -> str:
    """CEL: the message about the first stage that began and is not as it was."""
    begun = "oldSelf.spec.stages.filter(o, o.name in self.status.startedStages)"
    first = first_with("(i >= self.spec.stages.size() || self.spec.stages[i] != b[i])", 16, of="b")
    says = template(
        "[<<i>>]: wanted <<b[i].name>> as it was when it began; found "
        "<<self.spec.stages.exists(n, n.name == b[i].name) ? 'another place or other values' : 'no such stage'>>; "
        "change later stages, or submit another run that loads its checkpoint"
    )
    return let("b", begun, let("i", first, says))


UPDATE_RULES = (
    UpdateRule(
        name="fixed-for-ever",
        check=_fixed,
        message="engine, managedBy and checkpoint.uri cannot change",
        cel=tuple(_fixed_cel(keys) for keys in FIXED),
    ),
    UpdateRule(
        name="started-stages-stay",
        check=_started_stages_stay,
        message="a stage that has begun cannot change, move or go",
        cel=(
            CelRule(
                at="",
                field=".spec.stages",
                holds="!has(self.status) || !has(self.status.startedStages) || "
                + let(
                    "b",
                    "oldSelf.spec.stages.filter(o, o.name in self.status.startedStages)",
                    f"b.size() <= self.spec.stages.size() && {indices(16)}.all(i, i >= b.size() || self.spec.stages[i] == b[i])",
                ),
                says=computed(_moved()),
            ),
        ),
    ),
    UpdateRule(
        name="approvals-only-grow",
        check=_approvals_grow,
        message="approvals are added, never changed or removed",
        cel=(
            CelRule(
                at="spec.approvals",
                holds="oldSelf.all(o, self.exists(n, n == o))",
                says=computed(
                    let(
                        "o",
                        "oldSelf.filter(o, !self.exists(n, n == o))[0]",
                        template(
                            "wanted the approval of <<o.stage>> by <<o.by>> as it was given; found it changed or removed; approvals are only added"
                        ),
                    )
                ),
            ),
        ),
    ),
)
