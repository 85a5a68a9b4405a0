"""Rules over several fields as `x-kubernetes-validations`, put where they belong in a schema."""

from collections.abc import Iterable

from samite.crds.structural import Schema
from samite.spec.cel import CelRule

Named = tuple[str, CelRule]
"""The sentence that is said if the computed message fails, and the rule."""


def add_rules(schema: Schema, rules: Iterable[Named]) -> None:
    """Write each rule into `schema`, at its place."""
    for message, rule in rules:
        place = schema_at(schema, rule.at)
        place.setdefault("x-kubernetes-validations", []).append(_validation(message, rule))


def schema_at(schema: Schema, path: str) -> Schema:
    """The part of `schema` at a path such as `spec.stages[].budget`; the whole for the empty path. Raises KeyError if there is none."""
    place = schema
    for part in path.split(".") if path else ():
        name, *items = part.split("[]")
        place = place["properties"][name]
        for _ in items:
            place = place["items"]
    return place


def _validation(message: str, rule: CelRule) -> Schema:
    place = {"fieldPath": rule.field} if rule.field else {}
    return {"rule": rule.holds, "message": message, "messageExpression": rule.message_expression} | place
