"""Values: what the schema takes and refuses, that every key is documented, and that README.md says the same."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from chart import CHART, CI_FILES, Helm, readme_module

SCHEMA = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
VALUES = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))


def test_the_readme_is_what_the_values_say():
    assert (CHART / "README.md").read_text(encoding="utf-8") == readme_module().render(), "run make helm-docs"


def test_every_value_has_a_comment():
    _, missing = readme_module().documented_values((CHART / "values.yaml").read_text(encoding="utf-8"))
    assert missing == []


def test_the_schema_is_a_schema_and_the_defaults_meet_it():
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    jsonschema.Draft7Validator(SCHEMA).validate(VALUES)


def test_schema_and_values_know_the_same_keys():
    assert _keys_of_schema(SCHEMA) - {"global"} == _keys_of_values(VALUES, SCHEMA)


@pytest.mark.parametrize("file", CI_FILES, ids=lambda file: file.stem)
def test_lint_finds_nothing_in_any_sample_of_values(helm: Helm, file: Path):
    linted = helm.run("lint", "--strict", str(CHART), "--values", str(file))
    assert linted.returncode == 0, linted.stdout + linted.stderr
    assert "[WARNING]" not in linted.stdout
    assert "[INFO]" not in linted.stdout


REFUSED = {
    "an unknown key": ('colour="blue"', "colour"),
    "an unknown key inside": ("operator.colour=true", "colour"),
    "two operators": ("operator.replicas=2", "replicas"),
    "no operator": ("operator.replicas=0", "replicas"),
    "a key of the storage in the values": ('storage.secretKey="abc"', "secretKey"),
    "a password in a variable": ('operator.env=[{"name": "S3_PASSWORD", "value": "hunter2"}]', "env"),
    "a token in a variable, in small letters": ('operator.env=[{"name": "hf_token", "value": "abc"}]', "env"),
    "headers of the collector in clear": ('operator.env=[{"name": "OTEL_EXPORTER_OTLP_HEADERS", "value": "a=b"}]', "env"),
    "a user name in an address": ('telemetry.otlp.endpoint="http://me:secret@collector:4317"', "endpoint"),
    "an address without a scheme": ('telemetry.otlp.endpoint="collector:4317"', "endpoint"),
    "a scope that does not exist": ('scope.mode="galaxy"', "mode"),
    "namespaces in cluster mode": ('scope={"mode": "cluster", "namespaces": ["team-a"]}', "namespaces"),
    "a pattern of namespaces": ('scope.namespaces=["team-*"]', "namespaces"),
    "a namespace twice": ('scope.namespaces=["a", "a"]', "namespaces"),
    "a digest that is none": ('operator.image.digest="latest"', "digest"),
    "seventeen stages": ("limits.maxStages=17", "maxStages"),
    "a share above one half": ("limits.maxCordonFraction=0.9", "maxCordonFraction"),
    "an unknown log level": ('operator.logLevel="LOUD"', "logLevel"),
    "a runtime without a name": ('runtimes.items=[{"spec": {}}]', "items"),
    "no range for the API server": ("networkPolicy.apiServerCIDRs=[]", "apiServerCIDRs"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_values_are_refused_by_name(helm: Helm, case: str):
    setting, named = REFUSED[case]
    rendered = helm.template(sets=[setting])
    assert rendered.returncode != 0
    assert named in rendered.stderr


@pytest.mark.parametrize(
    "setting",
    [
        'operator.env=[{"name": "S3_PASSWORD", "valueFrom": {"secretKeyRef": {"name": "storage", "key": "password"}}}]',
        'operator.env=[{"name": "MAX_TOKENS_PER_GPU", "value": "4096"}]',
        'operator.env=[{"name": "TOKENIZERS_PARALLELISM", "value": "false"}]',
        'telemetry.otlp.endpoint="http://otel-collector.monitoring:4317"',
        'scope.mode="cluster"',
    ],
)
def test_values_that_only_look_like_secrets_pass(helm: Helm, setting: str):
    assert helm.template(sets=[setting]).returncode == 0


def test_an_old_kubernetes_is_refused_before_anything_is_installed(helm: Helm):
    rendered = helm.template(kube_version="1.30.9")
    assert rendered.returncode != 0
    assert "1.31" in rendered.stderr


def _keys_of_schema(schema: dict[str, Any], path: str = "") -> set[str]:
    properties = schema.get("properties")
    if not properties or schema.get("type") != "object":
        return {path}
    return set().union(*(_keys_of_schema(part, f"{path}.{name}".lstrip(".")) for name, part in properties.items()))


def _keys_of_values(values: Any, schema: dict[str, Any], path: str = "") -> set[str]:
    properties = schema.get("properties")
    if not properties or not isinstance(values, dict):
        return {path}
    return set().union(*(_keys_of_values(part, properties.get(name, {}), f"{path}.{name}".lstrip(".")) for name, part in values.items()))
