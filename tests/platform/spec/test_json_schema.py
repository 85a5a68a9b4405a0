"""The JSON Schema for editors: valid, documented, the same as the stored copy, and of the models' opinion."""

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from samite.spec.documentation import walk
from samite.spec.json_schema import json_schema, schema_text
from samite.spec.schema_problems import check_schema
from samite.spec.yaml_tree import parse_yaml

ROOT = Path(__file__).parents[3]
HERE = Path(__file__).parent
GOOD = sorted((HERE / "samples" / "good").glob("*.yaml"))
BROKEN = sorted((HERE / "broken").glob("*.yaml"))


def test_the_stored_copy_is_current():
    stored = (ROOT / "docs" / "schema" / "trainingrun.schema.json").read_text(encoding="utf-8")
    assert stored == schema_text(), "run: samite schema > docs/schema/trainingrun.schema.json"


def test_it_is_a_valid_schema_of_draft_2020_12():
    schema = json_schema()
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    jsonschema.Draft202012Validator.check_schema(schema)


def test_every_field_carries_its_documentation():
    text = json.dumps(json_schema(), ensure_ascii=False)
    assert [path for path, doc in walk() if json.dumps(doc.documentation, ensure_ascii=False) not in text] == []


@pytest.mark.parametrize("file", GOOD, ids=lambda file: file.stem)
def test_it_accepts_what_the_models_accept(file: Path):
    jsonschema.Draft202012Validator(json_schema()).validate(yaml.safe_load(file.read_text(encoding="utf-8")))


@pytest.mark.parametrize("file", BROKEN, ids=lambda file: file.stem)
def test_it_refuses_what_the_models_refuse(file: Path):
    tree = parse_yaml(file.read_text(encoding="utf-8"))
    if tree.problems or not check_schema(tree).problems:
        return
    assert list(jsonschema.Draft202012Validator(json_schema()).iter_errors(tree.value))
