"""The generated CustomResourceDefinitions without an API server: structural, bounded, small, documented, and equal to the chart's copies."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from samite.crds import custom_resource_definitions
from samite.crds.definitions import MAX_BYTES
from samite.crds.rules import schema_at
from samite.crds.text import CHART_FOLDER, chart_files, chart_template, compact_bytes, yaml_text
from samite.lifecycle.status import CONDITIONS
from samite.spec.documentation import field_docs
from samite.spec.rules import all_rules
from samite.spec.run import RunSpec
from samite.spec.update_rules import UPDATE_RULES

ROOT = Path(__file__).parents[3]
DEFINITIONS = custom_resource_definitions()
PLURALS = sorted(DEFINITIONS)
UNBOUNDED = re.compile(r"\.status\b")
FORBIDDEN = {
    "$ref",
    "$defs",
    "definitions",
    "anyOf",
    "oneOf",
    "allOf",
    "const",
    "prefixItems",
    "patternProperties",
    "exclusiveItems",
    "title",
}


def schema(plural: str) -> dict[str, Any]:
    return DEFINITIONS[plural]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def parts(place: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema below `place`, itself included, with its path."""
    yield path, place
    for name, below in place.get("properties", {}).items():
        yield from parts(below, f"{path}.{name}")
    if "items" in place:
        yield from parts(place["items"], f"{path}[]")
    if isinstance(place.get("additionalProperties"), dict):
        yield from parts(place["additionalProperties"], f"{path}{{}}")


@pytest.mark.parametrize("plural", PLURALS)
def test_the_charts_copy_is_the_generated_one(plural: str):
    stored = (ROOT / CHART_FOLDER / f"{plural}.yaml").read_text(encoding="utf-8")
    assert stored == chart_files(DEFINITIONS)[f"{plural}.yaml"], "run: samite crds show --chart helm/samite/templates/crd"


def test_the_chart_has_no_other_files_there():
    assert sorted(file.stem for file in (ROOT / CHART_FOLDER).iterdir()) == PLURALS


@pytest.mark.parametrize("plural", PLURALS)
def test_a_template_without_its_actions_is_the_definition(plural: str):
    text = chart_template(DEFINITIONS[plural])
    document = yaml.safe_load("\n".join(line for line in text.splitlines() if "{{" not in line))
    annotations = document["metadata"].pop("annotations")
    assert annotations["helm.sh/resource-policy"] == "keep"
    assert document == DEFINITIONS[plural]


@pytest.mark.parametrize("plural", PLURALS)
def test_the_yaml_is_the_definition(plural: str):
    assert yaml.safe_load(yaml_text(DEFINITIONS[plural])) == DEFINITIONS[plural]


@pytest.mark.parametrize("plural", PLURALS)
def test_a_definition_is_small(plural: str):
    assert compact_bytes(DEFINITIONS[plural]) < MAX_BYTES


@pytest.mark.parametrize("plural", PLURALS)
def test_the_schema_is_structural(plural: str):
    for path, part in parts(schema(plural)):
        assert part.get("type") in {"object", "array", "string", "integer", "number", "boolean"}, path
        assert FORBIDDEN.isdisjoint(part), path
        assert not ("properties" in part and "additionalProperties" in part), path
        assert isinstance(part.get("exclusiveMinimum", True), bool), path
        assert part["type"] != "array" or "items" in part, path


@pytest.mark.parametrize("plural", PLURALS)
def test_every_list_and_text_that_people_write_is_bounded(plural: str):
    written = [(path, part) for path, part in parts(schema(plural)) if path.startswith(".spec")]
    assert [path for path, part in written if part["type"] == "array" and "maxItems" not in part] == []
    assert [path for path, part in written if part["type"] == "string" and not {"maxLength", "enum"} & set(part)] == []


@pytest.mark.parametrize("plural", PLURALS)
def test_every_list_says_how_it_is_merged(plural: str):
    lists = [(path, part) for path, part in parts(schema(plural)) if part["type"] == "array"]
    assert [path for path, part in lists if part.get("x-kubernetes-list-type") not in {"map", "atomic"}] == []
    for path, part in lists:
        for key in part.get("x-kubernetes-list-map-keys", []):
            assert key in part["items"]["required"], path


@pytest.mark.parametrize("plural", PLURALS)
def test_every_field_is_documented(plural: str):
    top = {".apiVersion", ".kind", ".metadata", ".metadata.name"}
    named = [(path, part) for path, part in parts(schema(plural)) if path and path not in top and not path.endswith(("[]", "{}"))]
    assert [path for path, part in named if not part.get("description") and not UNBOUNDED.search(path)] == []


def test_the_schema_has_every_field_of_the_models():
    assert list(schema_at(schema("trainingruns"), "spec")["properties"]) == list(field_docs(RunSpec))
    stage = schema_at(schema("trainingruns"), "spec.stages[]")["properties"]
    assert list(stage) == list(field_docs(field_docs(RunSpec)["stages"].model))


def test_a_run_that_names_no_engine_gets_the_clusters():
    engine = schema_at(schema("trainingruns"), "spec.engine")
    assert (engine["default"], engine["enum"]) == ("RayCluster", ["Local", "RayCluster", "RayJob"])
    assert "Default RayCluster" in engine["description"]


def test_stages_are_merged_by_name_and_approvals_by_stage():
    for path, key in (("spec.stages", "name"), ("spec.env", "name"), ("spec.approvals", "stage"), ("spec.data.mixture", "source")):
        assert schema_at(schema("trainingruns"), path)["x-kubernetes-list-map-keys"] == [key]
    assert schema_at(schema("trainingruns"), "status.conditions")["x-kubernetes-list-map-keys"] == ["type"]


def test_every_rule_is_in_the_schema_with_a_message_that_is_computed():
    text = json.dumps(schema("trainingruns"))
    everything = [cel for rule in (*all_rules(), *UPDATE_RULES) for cel in rule.cel]
    assert text.count('"messageExpression"') == len(everything)
    for rule in (*all_rules(), *UPDATE_RULES):
        for cel in rule.cel:
            found = [entry for entry in schema_at(schema("trainingruns"), cel.at)["x-kubernetes-validations"] if entry["rule"] == cel.holds]
            assert [entry["message"] for entry in found] == [rule.message], rule.name


def test_a_rule_names_a_field_that_exists():
    for rule in (*all_rules(), *UPDATE_RULES):
        for cel in rule.cel:
            schema_at(schema("trainingruns"), ".".join(part for part in (cel.at, cel.field.lstrip(".")) if part))


@pytest.mark.parametrize("plural", PLURALS)
def test_columns_and_selectable_fields_exist(plural: str):
    version = DEFINITIONS[plural]["spec"]["versions"][0]
    paths = [column["jsonPath"] for column in version["additionalPrinterColumns"]] + [
        field["jsonPath"] for field in version.get("selectableFields", [])
    ]
    for path in paths:
        if not path.startswith(".metadata."):
            schema_at(schema(plural), path.lstrip("."))


def test_names_scopes_and_subresources_are_those_of_the_design():
    shown = {}
    for plural, definition in DEFINITIONS.items():
        spec, version = definition["spec"], definition["spec"]["versions"][0]
        shown[plural] = (spec["scope"], spec["names"]["shortNames"], spec["names"]["categories"], sorted(version.get("subresources", {})))
    assert shown == {
        "trainingruns": ("Namespaced", ["trun"], ["samite"], ["status"]),
        "trainingruntimes": ("Namespaced", ["truntime"], ["samite"], []),
        "clustertrainingruntimes": ("Cluster", ["ctruntime"], ["samite"], []),
        "nodeblames": ("Cluster", ["nblame"], ["samite"], ["status"]),
    }


def test_the_columns_of_a_run_are_those_of_the_design():
    columns = DEFINITIONS["trainingruns"]["spec"]["versions"][0]["additionalPrinterColumns"]
    narrow = [column["name"] for column in columns if not column.get("priority")]
    assert narrow == ["Phase", "Stage", "Ctx", "Step", "Done%", "ETTR", "Restarts", "LastCkpt", "Nodes", "Age"]
    assert [column["name"] for column in columns if column.get("priority")] == ["Queue", "Cluster", "Reason", "NextRetry"]


def test_the_status_has_every_field_that_the_lifecycle_returns():
    properties = schema_at(schema("trainingruns"), "status")["properties"]
    assert {"phase", "conditions", "progress", "ettr", "restarts", "budgetsLeft", "lastFailure", "nodesReady"} <= set(properties)
    assert {"memory", "observedGeneration", "columns", "runtime", "nextRetryAt"} <= set(properties)
    assert properties["memory"]["maxLength"] >= 2**18
    assert len(CONDITIONS) == 13


def test_making_the_definitions_imports_nothing_heavy():
    code = "import sys; from samite.crds import custom_resource_definitions; custom_resource_definitions(); print(' '.join(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout.split()
    assert {"torch", "ray", "kubernetes", "kopf", "boto3"}.isdisjoint(name.partition(".")[0] for name in found)
