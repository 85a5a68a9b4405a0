"""Whatever the operator writes fits the definitions: nothing is pruned, nothing is refused."""

from typing import Any

import pytest

from samite.crds import custom_resource_definitions


def schema_of(kind: str) -> dict[str, Any]:
    (found,) = (item for item in custom_resource_definitions().values() if item["spec"]["names"]["kind"] == kind)
    return found["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]


def misfits(value: Any, schema: dict[str, Any], path: str = "status") -> list[str]:
    """Every place where an API server would prune or refuse."""
    if schema.get("x-kubernetes-preserve-unknown-fields") or (value is None and schema.get("nullable")):
        return []
    kinds = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": int, "number": (int, float)}
    wanted = kinds[schema["type"]]
    if not isinstance(value, wanted) or (schema["type"] in ("integer", "number") and isinstance(value, bool)):
        return [f"{path}: wanted {schema['type']}, found {value!r}"]
    if schema["type"] == "array":
        return [found for index, item in enumerate(value) for found in misfits(item, schema["items"], f"{path}[{index}]")]
    if schema["type"] != "object":
        too_long = isinstance(value, str) and len(value) > schema.get("maxLength", len(value))
        return [f"{path}: too long"] if too_long else []
    found = []
    for key, item in value.items():
        inner = schema.get("properties", {}).get(key) or schema.get("additionalProperties")
        found += [f"{path}.{key}: unknown"] if inner is None else misfits(item, inner, f"{path}.{key}")
    return found


@pytest.mark.parametrize("wanted", ["Validating", "Provisioning", "Running", "Succeeded"])
def test_the_status_of_a_run_fits_its_definition_in_every_phase(operator: Any, wanted: str):
    operator.until(wanted)
    assert misfits(operator.status, schema_of("TrainingRun")) == []


def test_the_status_after_a_failure_fits_its_definition(operator: Any):
    operator.until("Running")
    operator.run(8)
    job = operator.world.live_jobs()[0]
    job.ranks[0].alive = False
    operator.until("Recovering")
    operator.run(1)
    assert "lastFailure" in operator.status
    assert misfits(operator.status, schema_of("TrainingRun")) == []
    operator.until("Running")
    operator.run(10)
    assert operator.status["recoveries"]
    assert misfits(operator.status, schema_of("TrainingRun")) == []


def test_the_status_of_a_refused_spec_fits_its_definition(make_operator: Any):
    operator = make_operator(seed=-3)
    operator.turn()
    assert misfits(operator.status, schema_of("TrainingRun")) == []
