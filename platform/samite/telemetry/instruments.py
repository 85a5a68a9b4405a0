"""The value types of the telemetry registry: what a metric, an event and an attribute are.

Used by the tables (`metrics.py`, `event_names.py`, `attributes.py`) and by `names.py`, which looks things up. Holds no names itself.
"""

from dataclasses import dataclass
from enum import StrEnum


class Instrument(StrEnum):
    """OpenTelemetry instrument kinds, and what `Telemetry.record` takes for each."""

    COUNTER = "counter"
    """Value is an increment, never negative."""
    UP_DOWN_COUNTER = "updowncounter"
    """Value is the present count, not the difference: a status is 1 for the present state and 0 for the others."""
    GAUGE = "gauge"
    """Value is the present reading."""
    HISTOGRAM = "histogram"
    """Value is one observation."""


class Severity(StrEnum):
    """Severity texts of OpenTelemetry log records that events use."""

    INFO = "INFO"
    WARN = "WARN"
    ERROR = "ERROR"

    @property
    def number(self) -> int:
        """The severity number of the OpenTelemetry log data model."""
        return {"INFO": 9, "WARN": 13, "ERROR": 17}[self.value]


@dataclass(frozen=True, kw_only=True, slots=True)
class Attribute:
    """One attribute key. `values` closes the set of allowed values; empty means any value of `type`."""

    name: str
    type: str
    """string | int | double | boolean | string[] | int[]"""
    brief: str
    values: tuple[str, ...] = ()

    @property
    def keyword(self) -> str:
        """The Python keyword for it in `emit`: `samite.failure.class` is `failure_class`, `error.type` is `error_type`."""
        return self.name.removeprefix("samite.").replace(".", "_")


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """One metric. `unit` is UCUM. `attributes` come on top of the stage attributes, which every metric may carry."""

    name: str
    instrument: Instrument
    unit: str
    brief: str
    source: str
    """Who records it: rank 0 | any rank | supervisor | all; `reserved` for a name that dashboards may count on but nobody records yet."""
    attributes: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    """Upper bounds of a histogram's buckets, in the metric's unit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """One event name. `attributes` are the keys that a reader can count on finding. `reserved`: nobody emits it yet."""

    name: str
    severity: Severity
    """The usual severity; an emitter may say otherwise."""
    brief: str
    attributes: tuple[str, ...] = ()
    reserved: bool = False
