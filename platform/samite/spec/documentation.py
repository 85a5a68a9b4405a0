"""What is known about each field of the spec: type, bounds, default, and the docstring below it in the source.

Read by `samite explain`, by the JSON Schema, and by error messages. The docstrings are taken from the source files on first use, so that
importing the models does not pay for them.
"""

import ast
import inspect
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from samite.spec.run import TrainingRun


@dataclass(frozen=True, kw_only=True, slots=True)
class FieldDoc:
    """One field of one model."""

    name: str
    """As in YAML."""
    owner: type[BaseModel]
    type_text: str
    """For people: `integer, 1 to 64`, `one of Muon, AdamW`, `list of Stage, 1 to 16`."""
    item_text: str
    """The type of one item of a list; empty for other fields."""
    documentation: str
    required: bool
    default: Any
    """JSON-able; None if there is none."""
    allowed: tuple[str, ...]
    """All values of a closed set."""
    model: type[BaseModel] | None
    """Model of the field, or of the items of a list."""
    is_list: bool
    base: str
    """integer | number | text | boolean | list | mapping | object: what the API server would check."""


@cache
def field_docs(model: type[BaseModel]) -> dict[str, FieldDoc]:
    """The fields of `model` by their YAML name, in the order of the source."""
    texts = attribute_docstrings(model.__module__).get(model.__name__, {})
    return {(info.alias or name): _describe(model, name, info, texts.get(name, "")) for name, info in model.model_fields.items()}


def walk() -> Iterator[tuple[tuple[str, ...], FieldDoc]]:
    """Every field of a TrainingRun with its path (list indices left out), parents before children."""

    def below(model: type[BaseModel], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], FieldDoc]]:
        for name, doc in field_docs(model).items():
            yield (*path, name), doc
            if doc.model is not None:
                yield from below(doc.model, (*path, name))

    return below(TrainingRun, ())


def summary(model: type[BaseModel]) -> str:
    """The class docstring on one line."""
    return one_line(inspect.getdoc(model) or "")


def one_line(text: str) -> str:
    """A docstring without its line breaks."""
    return " ".join(text.split())


@cache
def attribute_docstrings(module: str) -> dict[str, dict[str, str]]:
    """Attribute docstrings of every class of `module`: class, attribute, text."""
    found: dict[str, dict[str, str]] = {}
    for node in ast.parse(inspect.getsource(sys.modules[module])).body:
        if isinstance(node, ast.ClassDef):
            texts = found.setdefault(node.name, {})
            for target, below in zip(node.body, node.body[1:], strict=False):
                if (
                    isinstance(target, ast.AnnAssign)
                    and isinstance(target.target, ast.Name)
                    and isinstance(below, ast.Expr)
                    and isinstance(below.value, ast.Constant)
                ):
                    texts[target.target.id] = one_line(str(below.value.value))
    return found


def _describe(owner: type[BaseModel], attribute: str, info: FieldInfo, text: str) -> FieldDoc:
    shape = _shape(info.annotation, tuple(info.metadata))
    default = None if info.default is PydanticUndefined else info.get_default(call_default_factory=True, validated_data={})
    return FieldDoc(
        name=info.alias or attribute,
        owner=owner,
        type_text=shape.text,
        item_text=shape.item,
        documentation=text,
        required=info.is_required(),
        default=_json_able(default),
        allowed=shape.allowed,
        model=shape.model,
        is_list=shape.base == "list",
        base=shape.base,
    )


def _json_able(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", by_alias=True, exclude_none=True)
    return list(value) if isinstance(value, tuple) else value


@dataclass(frozen=True, kw_only=True, slots=True)
class _Shape:
    text: str
    base: str
    item: str = ""
    allowed: tuple[str, ...] = ()
    model: type[BaseModel] | None = None


def _shape(annotation: Any, metadata: tuple[Any, ...]) -> _Shape:
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, *more = get_args(annotation)
        return _shape(inner, (*metadata, *more))
    if origin in {Union, types.UnionType}:
        return _shape(next(part for part in get_args(annotation) if part is not type(None)), metadata)
    bounds = _bounds(metadata)
    if origin is Literal:
        values = tuple(str(value) for value in get_args(annotation))
        return _Shape(text=values[0] if len(values) == 1 else f"one of {', '.join(values)}", base="text", allowed=values)
    if origin is tuple:
        items = [item for item in get_args(annotation) if item is not Ellipsis]
        item = _shape(items[0], ())
        text = f"list of {item.text}" if len(items) == 1 else f"list of {len(items)}: {item.text}"
        return _Shape(text=_with(text, _range(bounds, "items")), base="list", item=item.text, allowed=item.allowed, model=item.model)
    if origin is dict:
        return _Shape(text="mapping" if get_args(annotation)[1] is Any else "mapping of text to text", base="mapping")
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return _Shape(text=annotation.__name__, base="object", model=annotation)
    if annotation is bool:
        return _Shape(text="true or false", base="boolean", allowed=("true", "false"))
    if annotation is str:
        return _Shape(text=_with("text", _range(bounds, "characters")), base="text")
    return _Shape(
        text=_with("integer" if annotation is int else "number", _range(bounds, "")), base="integer" if annotation is int else "number"
    )


def _bounds(metadata: tuple[Any, ...]) -> dict[str, Any]:
    """ge, gt, le, lt, min_length, max_length of all constraints; a field's own constraint comes last and wins."""
    found: dict[str, Any] = {}
    queue = list(metadata)
    while queue:
        item = queue.pop(0)
        queue[:0] = getattr(item, "metadata", [])
        for key in ("ge", "gt", "le", "lt", "min_length", "max_length"):
            if getattr(item, key, None) is not None:
                found[key] = getattr(item, key)
    return found


def _range(bounds: dict[str, Any], unit: str) -> str:
    low = bounds.get("ge", bounds.get("min_length"))
    high = bounds.get("le", bounds.get("max_length"))
    high = None if isinstance(high, int | float) and high >= 1e15 else high
    tail = f" {unit}" if unit else ""
    if unit and low in {None, 0, 1} and unit == "characters":
        return "" if high is None or high > 1000 else f"at most {high} characters"
    above = f"above {bounds['gt']}" if "gt" in bounds else None
    below = f"below {bounds['lt']}" if "lt" in bounds else f"at most {high}" if high is not None else None
    if above is None and low is not None and below is not None and "lt" not in bounds:
        return f"{low} to {high}{tail}"
    parts = [above or (f"at least {low}" if low is not None else None), below]
    return " and ".join(part for part in parts if part) + (tail if any(parts) else "")


def _with(text: str, condition: str) -> str:
    return f"{text}, {condition}" if condition else text
