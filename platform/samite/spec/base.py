"""What every model of the spec shares: camelCase names, no unknown keys, no silent conversions, and building on first use.

The attribute docstring below each field is its documentation: `samite.spec.documentation` reads it for `samite explain`, the JSON Schema
and the CRD. It says the unit, and why the default is what it is.
"""

from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

MAX_INTEGER = 2**53
"""Largest integer of the spec: what every JSON reader holds exactly. No field needs more."""

PositiveInt = Annotated[int, Field(ge=1, le=MAX_INTEGER)]
NonNegativeInt = Annotated[int, Field(ge=0, le=MAX_INTEGER)]
PositiveFloat = Annotated[float, Field(gt=0, le=1e15)]
NonNegativeFloat = Annotated[float, Field(ge=0, le=1e15)]
Fraction = Annotated[float, Field(ge=0, le=1)]
ShortText = Annotated[str, Field(min_length=1, max_length=253)]
LongText = Annotated[str, Field(min_length=1, max_length=4096)]
QualifiedName = Annotated[
    str, Field(max_length=317, pattern=r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$")
]
LabelValue = Annotated[str, Field(max_length=63, pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$")]


class SpecModel(BaseModel):
    """Base of the spec's models. Frozen; strict (text is never taken for a number); unknown keys are refused."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        defer_build=True,
        protected_namespaces=(),
    )

    @classmethod
    def defaults(cls, **given: Any) -> Self:
        """An instance for use as a default in another model: not validated, so that importing the models builds no validator (70 ms less)."""
        return cls.model_construct(**given)

    def to_document(self) -> dict[str, Any]:
        """This part as a JSON-able mapping in camelCase, with every default filled in. Fields that were not given and have no default are absent."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> Self:
        """The model of a JSON-able mapping. Raises pydantic's ValidationError; use `samite.spec.load_run` for messages that name the line."""
        return cls.model_validate(document)
