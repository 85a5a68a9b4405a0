"""Metric records of a run as JSON lines: what the trainer writes and what status and report read back.

One line holds all points of one moment, so that a reader never sees half a step:

    {"time": 1764520000.1, "step": 120, "attempt": "demo-s01-a2", "incarnation": 0, "stage": {"samite.stage.name": "extend", ...},
     "points": [["samite.loss", 2.31, {"samite.loss.kind": "total"}], ...]}
"""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from samite.telemetry import jsonlines, names


class Point(NamedTuple):
    """One value of one metric. What `value` means depends on the instrument (`Instrument`)."""

    name: str
    value: float
    attributes: Mapping[str, str] = {}

    def checked(self) -> "Point":
        """Itself with plain values; ValueError for a name, attribute or value outside the registry."""
        entry = names.metric(self.name)
        value = float(self.value)
        if entry.instrument is names.Instrument.COUNTER and value < 0:
            raise ValueError(f"metric {self.name} is a counter: its value is an increment, got {value:g}")
        return Point(self.name, value, names.metric_attributes(self.name, self.attributes))


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricRecord:
    """All points of one moment. `step` is None for records that belong to no optimizer step."""

    time_unix_s: float
    points: tuple[Point, ...]
    step: int | None = None
    attempt: str = ""
    """Submission id of the attempt."""
    incarnation: int = 0
    stage: Mapping[str, str] = field(default_factory=dict)

    def to_document(self) -> dict[str, Any]:
        """The JSON line."""
        return {
            "time": round(self.time_unix_s, 6),
            "step": self.step,
            "attempt": self.attempt,
            "incarnation": self.incarnation,
            "stage": dict(self.stage),
            "points": [[point.name, point.value, dict(point.attributes)] for point in self.points],
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "MetricRecord | None":
        """The record of a line, or None if the line is not one. Points that make no sense are left out; unknown names are kept."""
        seconds, points, step = jsonlines.moment(document.get("time")), document.get("points"), document.get("step")
        if seconds is None or not isinstance(points, list):
            return None
        incarnation, stage = document.get("incarnation"), document.get("stage")
        return cls(
            time_unix_s=seconds,
            points=tuple(point for point in map(_point, points) if point is not None),
            step=step if isinstance(step, int) and 0 <= step < 2**53 else None,
            attempt=str(document.get("attempt") or ""),
            incarnation=incarnation if isinstance(incarnation, int) else 0,
            stage={str(k): str(v) for k, v in stage.items()} if isinstance(stage, dict) else {},
        )


def iterate_metrics(path: Path, lines: jsonlines.Lines | None = None) -> Iterator[MetricRecord]:
    """The records of `path` one by one, for files that should not lie in memory as a whole.

    Damaged lines are skipped, and counted in `lines` when the iteration is over.
    """
    lines = lines or jsonlines.Lines()
    follower = jsonlines.Follower(path)
    for document in itertools.chain(follower.poll(), follower.last()):
        record = MetricRecord.from_document(document)
        if record is None:
            lines.damaged += 1
        else:
            yield record
    lines.damaged += follower.damaged
    lines.missing = follower.missing
    follower.close()


def read_metrics(path: Path) -> tuple[list[MetricRecord], jsonlines.Lines]:
    """All records of `path` in the order they were written, and what the file itself was like (damaged lines, missing)."""
    lines = jsonlines.read(path)
    records = [record for record in map(MetricRecord.from_document, lines.documents) if record is not None]
    lines.damaged += len(lines.documents) - len(records)
    return records, lines


def _point(item: object) -> Point | None:
    if not isinstance(item, list) or len(item) != 3:
        return None
    name, raw, attributes = item
    value = jsonlines.number(raw)
    if not isinstance(name, str) or value is None or not isinstance(attributes, dict):
        return None
    return Point(name, value, {str(k): str(v) for k, v in attributes.items()})
