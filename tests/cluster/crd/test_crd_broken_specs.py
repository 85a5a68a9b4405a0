"""The broken specs of `samite validate` in the real API server: refused too, at the same places, and where a rule is broken in the same words.

One field by itself (a type, a bound, an unknown key) is refused in the server's own words; docs/crds.md says so. Here it is held to name only places
that `samite validate` names as well, and to repeat no secret.
"""

import re
from pathlib import Path
from typing import Any

import pytest
from verdicts import Said, Verdict, of_server, without_proposal

from samite.engines.kuberay.api_client import RealApi
from samite.spec.filled import filled_document
from samite.spec.rules import check_rules, text_of
from samite.spec.schema_problems import check_schema
from samite.spec.support import check_support
from samite.spec.yaml_tree import dotted, parse_yaml

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

BROKEN = Path(__file__).parents[2] / "platform" / "spec" / "broken"
ONLY_THIS_VERSION = {"not-in-this-version"}
"""What this version cannot train yet is no part of the format: the operator refuses it, not the API server."""


def documents() -> list[tuple[str, Any]]:
    """Name and content of every file that is YAML for everybody."""
    trees = [(file.stem, parse_yaml(file.read_text(encoding="utf-8"))) for file in sorted(BROKEN.glob("*.yaml"))]
    return [(name, tree) for name, tree in trees if not tree.problems and tree.value.get("kind") == "TrainingRun"]


def python_says(tree: Any) -> tuple[set[Said], set[str]]:
    """Every finding of every rule, and every path that is named, as for a run in a cluster."""
    if isinstance(tree.value.get("spec"), dict):
        tree.value["spec"].setdefault("engine", "RayCluster")
    schema = check_schema(tree)
    filled = filled_document(tree.value, schema.bad)
    findings = [finding for _, finding in check_rules(filled)]
    places = {problem.path for problem in schema.problems} | {dotted(finding.path) for finding in findings}
    places |= {dotted(finding.path) for finding in check_support(filled, BROKEN)}
    return {(dotted(finding.path), text_of(finding)) for finding in findings}, places


def places_of(server: Verdict) -> set[str]:
    """Fields that the server names in its own words."""
    unknown = {name for text in server.other for name in re.findall(r'unknown field "([^"]+)"', text)}
    named = {text.partition(": ")[0] for text in server.other if re.match(r"(spec|metadata)\b", text)}
    return unknown | named


DOCUMENTS = documents()


@pytest.mark.parametrize(("name", "tree"), DOCUMENTS, ids=[name for name, _ in DOCUMENTS])
def test_a_broken_spec_is_refused_at_the_same_places(api: RealApi, name: str, tree: Any):
    said, places = python_says(tree)
    namespace = (tree.value.get("metadata") or {}).get("namespace", "default")
    server = of_server(api, tree.value, namespace if re.fullmatch("[a-z0-9-]+", str(namespace)) else "default")
    assert server.accepted == (name in ONLY_THIS_VERSION)
    assert without_proposal(server.said) <= without_proposal(said)
    if not server.other:
        assert {place for place, _ in said} == {place for place, _ in server.said}, (
            "nothing is left out when every field is right by itself"
        )
    strays = {place for place in places_of(server) if not any(place.startswith(known) or known.startswith(place) for known in places)}
    assert strays == set()


@pytest.mark.parametrize(("name", "tree"), DOCUMENTS, ids=[name for name, _ in DOCUMENTS])
def test_the_server_repeats_no_secret(api: RealApi, name: str, tree: Any):
    server = of_server(api, tree.value)
    text = "\n".join([*(text for _, text in server.said), *server.other])
    assert [secret for secret in ("hf_0123456789", "wJalrXUtnFEMI", "AKIAEXAMPLE", "password@") if secret in text] == []
