"""The JSON Schema of a TrainingRun, for editors: draft 2020-12, with the documentation of every field.

`samite schema` prints it; docs/schema/trainingrun.schema.json is a copy that a test keeps equal. A YAML file names it in its first line:
`# yaml-language-server: $schema=<path or URL>`.
"""

import json
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from samite.spec.documentation import field_docs, summary, walk
from samite.spec.model_fields import MAY_BE_ZERO, MODEL_FIELDS, NOT_OVERRIDABLE
from samite.spec.run import TrainingRun


def json_schema() -> dict[str, Any]:
    """The schema as a JSON-able mapping, in a stable order."""
    schema = TrainingRun.model_json_schema(by_alias=True, mode="validation")
    models = {TrainingRun.__name__: TrainingRun} | {doc.model.__name__: doc.model for _, doc in walk() if doc.model is not None}
    _document(schema, TrainingRun)
    for name, definition in schema["$defs"].items():
        _document(definition, models[name])
    schema["$defs"]["ModelSpec"]["properties"]["overrides"] |= _overrides_schema()
    _drop_titles(schema)
    head = {"$schema": GenerateJsonSchema.schema_dialect, "title": "TrainingRun, samite.dev/v1alpha1"}
    return head | schema


def schema_text() -> str:
    """The schema as it is printed and stored."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def _document(definition: dict[str, Any], model: type[BaseModel]) -> None:
    """Descriptions into one definition; `anyOf [x, null]` becomes x, because a null means left out."""
    definition["description"] = summary(model)
    for name, doc in field_docs(model).items():
        found = definition["properties"][name]
        choices = found.pop("anyOf", None)
        if choices is not None:
            found |= next(choice for choice in choices if choice.get("type") != "null")
        if found.get("default", "") is None:
            del found["default"]
        found["description"] = doc.documentation


def _drop_titles(value: Any) -> None:
    """pydantic's generated titles repeat the name."""
    if isinstance(value, dict):
        if isinstance(value.get("title"), str):
            del value["title"]
        for item in value.values():
            _drop_titles(item)
    elif isinstance(value, list):
        for item in value:
            _drop_titles(item)


def _overrides_schema() -> dict[str, Any]:
    types = {"int": "integer", "float": "number", "bool": "boolean", "text": "string"}
    properties: dict[str, Any] = {}
    for field in MODEL_FIELDS.values():
        if field.name in NOT_OVERRIDABLE:
            continue
        properties[field.name] = {"type": types[field.type], "description": field.doc}
        if field.type in {"int", "float"} and field.name != "kda_lower_bound":
            properties[field.name] |= {"minimum": 0} if field.name in MAY_BE_ZERO else {"exclusiveMinimum": 0}
    return {"type": "object", "properties": properties, "additionalProperties": False}
