"""JSON in and out for the lifecycle's frozen dataclasses: tuples, frozensets, enums and optional parts included.

Unknown keys are ignored and missing ones take their default, so that an upgraded engine reads the memory that an older one stored.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


def to_document(value: Any, *, camel: bool = False) -> Any:
    """`value` as JSON-able data. With `camel`, field names become camelCase; keys of mappings stay as they are."""
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value) and not isinstance(value, type):
        return {(_camel(item.name) if camel else item.name): to_document(getattr(value, item.name), camel=camel) for item in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_document(item, camel=camel) for key, item in value.items()}
    if isinstance(value, frozenset | set):
        return sorted(to_document(item, camel=camel) for item in value)
    if isinstance(value, tuple | list):
        return [to_document(item, camel=camel) for item in value]
    return value


def from_document(kind: type[T], document: Mapping[str, Any]) -> T:
    """The dataclass `kind` of what `to_document` made. Raises ValueError if a required field is missing or a value does not fit."""
    hints = _hints(kind)  # type: ignore[arg-type]
    known = {item.name for item in fields(kind)}  # type: ignore[arg-type]
    try:
        return kind(**{name: _decode(hints[name], value) for name, value in document.items() if name in known})
    except (TypeError, KeyError) as error:
        raise ValueError(f"{kind.__name__}: {error}") from error


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _decode(hint: Any, value: Any) -> Any:
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        if value is None:
            return None
        return _decode(next(part for part in get_args(hint) if part is not NoneType), value)
    if origin is tuple:
        parts = get_args(hint)
        if len(parts) == 2 and parts[1] is Ellipsis:
            return tuple(_decode(parts[0], item) for item in value)
        return tuple(_decode(part, item) for part, item in zip(parts, value, strict=True))
    if origin is frozenset:
        return frozenset(_decode(get_args(hint)[0], item) for item in value)
    if origin is dict:
        key_hint, value_hint = get_args(hint)
        return {_decode(key_hint, key): _decode(value_hint, item) for key, item in value.items()}
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint(value)
    if isinstance(hint, type) and is_dataclass(hint):
        return from_document(hint, value)
    if hint is float and isinstance(value, int):
        return float(value)
    return value


@cache
def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)
