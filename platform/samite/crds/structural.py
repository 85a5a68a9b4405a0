"""A pydantic model as a structural schema: the subset of OpenAPI 3.0 that a CustomResourceDefinition may use.

No references, no `additionalProperties` beside `properties`, numeric bounds in OpenAPI's spelling, defaults written out in full (so that rules see
them), lists with the kind that server-side apply merges by. Unknown fields are pruned or refused by the API server itself.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from samite.spec.documentation import field_docs, one_line, summary

Schema = dict[str, Any]

LIST_KEYS: Mapping[str, str] = {
    "Stage": "name",
    "EnvVar": "name",
    "MixtureEntry": "source",
    "Approval": "stage",
}
"""Lists of these are merged item by item, by this field; all other lists are replaced as a whole."""

_KEPT = ("type", "enum", "pattern", "minLength", "maxLength", "minimum", "maximum", "minItems", "maxItems", "maxProperties", "default")


def schema_of(model: type[BaseModel]) -> Schema:
    """The schema of one model, with the documentation of every field."""
    document = model.model_json_schema(by_alias=True, mode="validation")
    return _Inliner(document.get("$defs", {}), _models_below(model)).object_schema(model)


def _models_below(model: type[BaseModel]) -> dict[str, type[BaseModel]]:
    found = {model.__name__: model}
    for doc in field_docs(model).values():
        if doc.model is not None and doc.model.__name__ not in found:
            found |= _models_below(doc.model)
    return found


class _Inliner:
    """Replaces references by what they name."""

    def __init__(self, definitions: Mapping[str, Any], models: Mapping[str, type[BaseModel]]) -> None:
        self.definitions = definitions
        self.models = models

    def object_schema(self, model: type[BaseModel]) -> Schema:
        definition = self.definitions.get(model.__name__) or model.model_json_schema(by_alias=True, mode="validation")
        properties = {}
        for name, doc in field_docs(model).items():
            properties[name] = {"description": doc.documentation} | self.field(definition["properties"][name])
            if doc.default not in (None, {}, []) or "default" in properties[name]:
                properties[name]["default"] = doc.default
        result: Schema = {"description": summary(model), "type": "object"}
        if definition.get("required"):
            result["required"] = list(definition["required"])
        return result | {"properties": properties}

    def field(self, given: Mapping[str, Any]) -> Schema:
        """The schema of one field. `x or null` becomes x: a null in a spec means left out."""
        chosen = next((choice for choice in given.get("anyOf", ()) if choice.get("type") != "null"), None)
        if chosen is not None:
            given = {key: value for key, value in given.items() if key != "anyOf"} | chosen
        default = {"default": given["default"]} if given.get("default") is not None else {}
        if "$ref" in given:
            return self.object_schema(self.models[given["$ref"].rpartition("/")[2]]) | default
        result = {key: given[key] for key in _KEPT if given.get(key) is not None}
        if "const" in given:
            result["enum"] = [given["const"]]
        for low, high in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
            if high in given:
                result |= {low: given[high], high: True}
        if given.get("type") == "integer":
            result["format"] = "int64"
        if given.get("type") == "array":
            result |= self._array(given)
        if given.get("type") == "object":
            result |= self._mapping(given)
        return result

    def _array(self, given: Mapping[str, Any]) -> Schema:
        item = given.get("items") or given["prefixItems"][0]
        key = LIST_KEYS.get(item.get("$ref", "").rpartition("/")[2])
        kind: Schema = (
            {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]} if key else {"x-kubernetes-list-type": "atomic"}
        )
        return {"items": self.field(item)} | kind

    def _mapping(self, given: Mapping[str, Any]) -> Schema:
        values = given.get("additionalProperties", True)
        if isinstance(values, Mapping) and values:
            return {"additionalProperties": self.field(values)}
        patterns = given.get("patternProperties")
        if patterns:
            # The API server has no patterns for keys: the operator checks them again when it reads the object.
            return {"additionalProperties": self.field(next(iter(patterns.values())))}
        return {"x-kubernetes-preserve-unknown-fields": True}


def described(schema: Schema, text: str) -> Schema:
    """`schema` with another description, on one line."""
    return {"description": one_line(text)} | {key: value for key, value in schema.items() if key != "description"}
