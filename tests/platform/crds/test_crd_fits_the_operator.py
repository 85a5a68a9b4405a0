"""What the operator writes fits the schema: the API server would drop a field that it does not know, without a word."""

from collections.abc import Iterator
from typing import Any

import pytest

from samite.crds import custom_resource_definitions
from samite.engines.kuberay.stored_memory import pack
from samite.lifecycle import Memory, Observed, RunPlan, decide
from samite.lifecycle.blame import Weak
from samite.lifecycle.plan import NodePolicy
from samite.spec import load_run
from samite.spec.node_blame import NodeBlameStatus
from samite.spec.runtime_resolution import resolve
from samite_operators.blame import Judgement, judged
from samite_operators.status import Note, wanted_status

RUN = """\
apiVersion: samite.dev/v1alpha1
kind: TrainingRun
metadata: {name: a, namespace: team}
spec:
  engine: RayCluster
  checkpoint: {uri: "s3://bucket/run"}
  stages:
    - {name: first, contextLength: 64, batch: {tokens: 512}, budget: {steps: 3}}
"""


def unknown(value: Any, schema: dict[str, Any], path: str = "status") -> Iterator[str]:
    """Paths in `value` that `schema` does not have, or has with another type."""
    kinds = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": int, "number": (int, float)}
    if value is None:
        if not schema.get("nullable"):
            yield f"{path} is null"
        return
    if not isinstance(value, kinds[schema["type"]]) or (isinstance(value, bool) and schema["type"] != "boolean"):
        yield f"{path} is {value!r}, not a {schema['type']}"
        return
    if isinstance(value, str) and len(value) > schema.get("maxLength", len(value)):
        yield f"{path} is too long"
    if isinstance(value, list):
        for item in value:
            yield from unknown(item, schema["items"], f"{path}[]")
    if isinstance(value, dict):
        for name, item in value.items():
            below = schema.get("properties", {}).get(name, schema.get("additionalProperties"))
            if below is None:
                yield f"{path}.{name} is unknown"
            else:
                yield from unknown(item, below, f"{path}.{name}")


def status_schema(plural: str) -> dict[str, Any]:
    root = custom_resource_definitions()[plural]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema: dict[str, Any] = root["properties"]["status"]
    return schema


def test_the_status_of_a_run_fits():
    run = load_run(RUN).run
    decision = decide(RunPlan.from_run(run, uid="u"), Observed(at_s=1.0), Memory(), 1.0)
    stored = {**run.to_document(), "metadata": {"name": "a", "namespace": "team", "uid": "u", "generation": 2}}
    written = wanted_status(
        decision.status,
        before={},
        run=stored,
        now_s=1e9,
        committed_at_s=1e9,
        notes=[Note(type="OperatorHealthy", holds=False, reason="Silent", message="no answer")],
        extra={"runtime": resolve(run, []).pin()},
    )
    written["memory"] = pack(decision.memory)
    assert list(unknown(written, status_schema("trainingruns"))) == []


def test_a_status_of_the_lifecycle_fits_with_its_nulls_too():
    decision = decide(RunPlan.from_run(load_run(RUN).run, uid="u"), Observed(at_s=1.0), Memory(), 1.0)
    assert list(unknown(decision.status.to_document(), status_schema("trainingruns"))) == []


@pytest.mark.parametrize("weak", [None, Weak.STRAGGLER, Weak.NETWORK_FLAP])
def test_the_blame_of_a_node_fits(weak: Weak | None):
    stored = {"metadata": {"name": "a", "namespace": "team"}}
    judgement = Judgement(node="node-1", weak=weak, fact="rank 3 was slow", until_s=2e9 if weak is None else None)
    written = {key: value for key, value in judged({}, judgement, policy=NodePolicy(), run=stored, now_s=1e9).items() if value is not None}
    assert list(unknown(written, status_schema("nodeblames"))) == []
    NodeBlameStatus.from_document(written)
