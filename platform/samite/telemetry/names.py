"""The registry: every metric, event and attribute that Samite may emit, and the checks that keep anything else out.

`metric(name)`, `event(name)` and `attribute(name)` return the entry or raise ValueError with the nearest known name. The tables live in
`metrics.py`, `event_names.py` and `attributes.py`; docs, dashboards and alert rules are built from them.
"""

import difflib
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

from samite.telemetry.attributes import ALL_ATTRIBUTES, STAGE_ATTRIBUTES
from samite.telemetry.event_names import ALL_EVENTS
from samite.telemetry.instruments import Attribute, Event, Instrument, Metric, Severity
from samite.telemetry.metrics import ALL_METRICS
from samite.telemetry.redaction import cleaned

__all__ = [
    "ATTRIBUTES",
    "EVENTS",
    "METRICS",
    "Attribute",
    "Event",
    "Instrument",
    "Metric",
    "Severity",
    "attribute",
    "event",
    "event_attributes",
    "metric",
    "metric_attributes",
    "plain_value",
]

METRICS: Mapping[str, Metric] = {entry.name: entry for entry in ALL_METRICS}
EVENTS: Mapping[str, Event] = {entry.name: entry for entry in ALL_EVENTS}
ATTRIBUTES: Mapping[str, Attribute] = {entry.name: entry for entry in ALL_ATTRIBUTES}

_STAGE_KEYS = frozenset(entry.name for entry in STAGE_ATTRIBUTES)
_METRIC_KEYS: Mapping[str, frozenset[str]] = {entry.name: _STAGE_KEYS | set(entry.attributes) for entry in ALL_METRICS}
_EVENT_KEYWORDS: Mapping[str, str] = {key: entry.name for entry in ALL_ATTRIBUTES for key in (entry.keyword, entry.name)}


def metric(name: str) -> Metric:
    """The metric called `name`; ValueError if the registry has none."""
    try:
        return METRICS[name]
    except KeyError:
        raise ValueError(_unknown("metric", name, METRICS)) from None


def event(name: str) -> Event:
    """The event called `name`; ValueError if the registry has none."""
    try:
        return EVENTS[name]
    except KeyError:
        raise ValueError(_unknown("event", name, EVENTS)) from None


def attribute(name: str) -> Attribute:
    """The attribute called `name`; ValueError if the registry has none."""
    try:
        return ATTRIBUTES[name]
    except KeyError:
        raise ValueError(_unknown("attribute", name, ATTRIBUTES)) from None


def metric_attributes(name: str, attributes: Mapping[str, Any]) -> dict[str, str]:
    """`attributes` for one point of metric `name`, as strings.

    ValueError for a key the metric may not carry or a value outside a closed set.
    """
    allowed = _METRIC_KEYS.get(name) or _METRIC_KEYS[metric(name).name]
    checked = {}
    for key, value in attributes.items():
        if key not in allowed:
            raise ValueError(f"metric {name}: " + _unknown("attribute", key, allowed))
        text = str(value)
        values = ATTRIBUTES[key].values
        if values and text not in values:
            raise ValueError(f"metric {name}: {key} must be one of {', '.join(values)}; got {text!r}")
        checked[key] = text
    return checked


def event_attributes(name: str, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """`attributes` of event `name` by their full names, as plain values without secrets; None is left out. ValueError for an unknown event or key.

    Keys may be full names (`samite.failure.class`) or keywords (`failure_class`).
    """
    event(name)
    checked = {}
    for key, value in attributes.items():
        if key not in _EVENT_KEYWORDS:
            raise ValueError(f"event {name}: " + _unknown("attribute", key, _EVENT_KEYWORDS))
        if value is not None:
            checked[_EVENT_KEYWORDS[key]] = cleaned(plain_value(value))
    return checked


def plain_value(value: Any) -> Any:
    """`value` as JSON can hold it: enums by value, sequences as lists, tensor and array scalars as numbers, the rest as text."""
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain_value(item) for item in value]
    if hasattr(value, "item"):
        return value.item()
    return str(value)


def _unknown(what: str, name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    hint = f"did you mean {near[0]}?" if near else "samite.telemetry.names lists them"
    return f"unknown {what} {name!r}; {hint}"
