"""What Python and the API server say about one document, in one form: (field, text) pairs, so that they can be compared word for word."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from samite.engines.kuberay.api import TRAINING_RUN
from samite.engines.kuberay.api_client import RealApi
from samite.spec.filled import filled_document
from samite.spec.rules import check_rules, text_of
from samite.spec.schema_problems import check_schema
from samite.spec.yaml_tree import dotted, parse_yaml

Said = tuple[str, str]
"""A dotted path and `wanted ...; found ...; what to do`."""

# Servers before 1.37 repeat the value, or its kind, before the message.
_OURS = re.compile(r"^[A-Z][a-z]+ value: (?:(?:\"[^\"]*\"|[-\d.]+|true|false): )?((?:\[\d+\]\S*: )?wanted .*)$", re.DOTALL)
_PLACE = re.compile(r"^(\[\d+\]\S*): (wanted .*)$", re.DOTALL)


@dataclass(frozen=True)
class Verdict:
    """What is wrong with a document, in our words."""

    said: frozenset[Said] = frozenset()
    other: tuple[str, ...] = ()
    """What the API server says beside it, in its own words."""

    @property
    def accepted(self) -> bool:
        """Nothing is wrong."""
        return not self.said and not self.other


def of_python(text: str) -> Verdict:
    """What `samite validate` says about a document, without the limits of this version and this machine."""
    tree = parse_yaml(text)
    assert tree.problems == []
    schema = check_schema(tree)
    said = {problem.path: text_of(problem) for problem in schema.problems}
    for _, finding in check_rules(filled_document(tree.value, schema.bad | tree.unusable)):
        said.setdefault(dotted(finding.path), text_of(finding))
    return Verdict(said=frozenset(said.items()))


def of_server(api: RealApi, document: dict[str, Any], namespace: str = "default") -> Verdict:
    """What the API server says about the same document, without storing it."""
    kind = TRAINING_RUN
    answer = answer_of(api, document, f"{kind.path(namespace)}?dryRun=All&fieldValidation=Strict")
    return Verdict() if answer is None else of_status(answer)


def answer_of(api: RealApi, document: dict[str, Any], path: str, *, method: str = "POST") -> dict[str, Any] | None:
    """None if the request passes, else the server's Status document."""
    pool, configuration = api._pool, api._configuration
    headers = {"Content-Type": "application/json", "Accept": "application/json", **api._credentials()}
    answer = pool.request(method, f"{configuration.host}{path}", body=json.dumps(document), headers=headers, timeout=60.0, retries=False)
    found: dict[str, Any] = json.loads(answer.data)
    return None if 200 <= answer.status < 300 else found


def of_status(status: dict[str, Any]) -> Verdict:
    """A Status document of the API server, sorted."""
    said, other = set(), []
    causes = (status.get("details") or {}).get("causes") or []
    for cause in causes:
        place, message = str(cause.get("field", "")), str(cause.get("message", ""))
        if found := _OURS.match(message):
            said.add(_placed(place, found.group(1)))
        else:
            other.append(f"{place}: {message}")
    return Verdict(said=frozenset(said), other=tuple(other) if causes else (str(status.get("message")),))


def _placed(place: str, text: str) -> Said:
    """A message about an item of a list begins with the item's place."""
    found = _PLACE.match(text)
    return (place + found.group(1), found.group(2)) if found else (place, text)


def lines(said: Iterable[Said]) -> str:
    """Readable, for assertions."""
    return "\n".join(f"{place}: {text}" for place, text in sorted(said))


def without_proposal(said: Iterable[Said]) -> set[Said]:
    """What was wanted and found, without what to do."""
    return {(place, "; ".join(text.split("; ")[:2])) for place, text in said}
