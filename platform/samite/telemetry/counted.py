"""Counters that follow from events: whoever emits the event has counted it, so that no counter can be forgotten.

Called by `Telemetry.event` and by the operator. They only go out over OTLP or /metrics; the run folder holds the events themselves.
"""

from collections.abc import Mapping
from typing import Any

from samite.telemetry.records import Point

_OUTCOMES = frozenset({"stage_complete", "stopped", "failed"})


def points_of_event(name: str, attributes: Mapping[str, Any]) -> list[Point]:
    """What event `name` (registered, attributes by their full names) adds to counters: itself, and what it tells of attempts and checkpoints."""
    found = [Point("samite.events", 1.0, {"samite.event.name": name})]
    if name == "samite.attempt.ended":
        outcome = str(attributes.get("samite.attempt.outcome", ""))
        found.append(Point("samite.attempts", 1.0, {"samite.attempt.outcome": outcome if outcome in _OUTCOMES else "failed"}))
    elif name == "samite.checkpoint.verify.failed":
        found.append(Point("samite.checkpoint.verify.failures", 1.0))
    elif name == "samite.checkpoint.committed" and attributes.get("samite.checkpoint.bytes"):
        written = {"samite.io.direction": "write", "samite.checkpoint.tier": "object"}
        found.append(Point("samite.checkpoint.io", float(attributes["samite.checkpoint.bytes"]), written))
    return found
