"""Metric records as curves over steps, told apart by attempt.

After a restart a run trains some steps again. The curve of the run is made of the steps that count; those that an attempt trained and a later
one trained again are kept as *superseded* and shown as such, because hiding them would hide what the failure cost.
"""

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from samite.telemetry.records import MetricRecord

Key = tuple[str, tuple[tuple[str, str], ...]]
"""A metric and its attributes, sorted."""


@dataclass(slots=True)
class Segment:
    """Consecutive steps of one attempt and incarnation."""

    attempt: str
    incarnation: int
    stage: str
    first_step: int
    last_step: int
    first_s: float
    last_s: float
    superseded_from: int | None = None
    """First step of it that a later segment trained again; None if all of it counts."""

    @property
    def superseded_steps(self) -> int:
        """How many of its steps were trained again."""
        return 0 if self.superseded_from is None else max(0, self.last_step - self.superseded_from + 1)


@dataclass(slots=True)
class Curve:
    """Values of one metric over steps, in the order they were recorded."""

    steps: "array[int]" = field(default_factory=lambda: array("q"))
    values: "array[float]" = field(default_factory=lambda: array("d"))
    segments: "array[int]" = field(default_factory=lambda: array("l"))

    def __len__(self) -> int:
        return len(self.steps)


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a curve that is drawn in one go."""

    steps: Sequence[float]
    values: Sequence[float]
    superseded: bool = False


@dataclass(slots=True)
class Curves:
    """All curves of one metrics file."""

    segments: list[Segment] = field(default_factory=list)
    curves: dict[Key, Curve] = field(default_factory=dict)
    num_records: int = 0

    def get(self, name: str, **attributes: str) -> Curve | None:
        """The curve of `name` with exactly these attributes (keywords without their `samite.` root, dots as underscores)."""
        wanted = set(attributes.values())
        for (metric, labels), curve in self.curves.items():
            if metric == name and {value for _, value in labels} == wanted:
                return curve
        return None

    def family(self, name: str, attribute: str, **fixed: str) -> dict[str, Curve]:
        """Curves of `name` by the value of `attribute`, those with the attribute values in `fixed` only."""
        found = {}
        for (metric, labels), curve in self.curves.items():
            mapping = dict(labels)
            if metric == name and attribute in mapping and set(fixed.values()) <= set(mapping.values()):
                found[mapping[attribute]] = curve
        return found

    def total(self, name: str, **attributes: str) -> float:
        """Sum of all values of all matching curves: what a counter has counted."""
        wanted = set(attributes.values())
        matching = (curve for (metric, labels), curve in self.curves.items() if metric == name and wanted <= {v for _, v in labels})
        return math.fsum(value for curve in matching for value in curve.values if math.isfinite(value))

    @property
    def recomputed_steps(self) -> int:
        """Steps that were trained more than once."""
        return sum(segment.superseded_steps for segment in self.segments)

    @property
    def restarts(self) -> list[Segment]:
        """Segments that began after another one of the same stage."""
        return [after for before, after in zip(self.segments, self.segments[1:], strict=False) if before.stage == after.stage]

    @property
    def stage_starts(self) -> list[Segment]:
        """The first segment of each stage."""
        first: dict[str, Segment] = {}
        for segment in self.segments:
            first.setdefault(segment.stage, segment)
        return list(first.values())

    def pieces(self, curve: Curve) -> list[Piece]:
        """The curve cut at restarts, and where its values stop to count. Superseded pieces come first, so that they are drawn below."""
        pieces, start = [], 0
        for index in range(1, len(curve) + 1):
            if index == len(curve) or self._cut(curve, index):
                steps, values = curve.steps[start:index], curve.values[start:index]
                pieces.append(Piece(steps, values, superseded=self._superseded(curve, start)))
                start = index
        return sorted(pieces, key=lambda piece: not piece.superseded)

    def counting(self, curve: Curve) -> Piece:
        """The steps that count, in order, as one piece."""
        kept = sorted((curve.steps[i], curve.values[i]) for i in range(len(curve)) if not self._superseded(curve, i))
        return Piece([step for step, _ in kept], [value for _, value in kept])

    def _cut(self, curve: Curve, index: int) -> bool:
        return curve.segments[index] != curve.segments[index - 1] or self._superseded(curve, index) != self._superseded(curve, index - 1)

    def _superseded(self, curve: Curve, index: int) -> bool:
        limit = self.segments[curve.segments[index]].superseded_from
        return limit is not None and curve.steps[index] >= limit


def collect(records: Iterable[MetricRecord]) -> Curves:
    """Curves of the records that belong to steps."""
    curves = Curves()
    for record in records:
        if record.step is None:
            continue
        curves.num_records += 1
        index = _segment_of(curves, record)
        for point in record.points:
            key = point.name, tuple(sorted(point.attributes.items()))
            curve = curves.curves.setdefault(key, Curve())
            curve.steps.append(record.step)
            curve.values.append(point.value)
            curve.segments.append(index)
    _mark_superseded(curves.segments)
    return curves


def _segment_of(curves: Curves, record: MetricRecord) -> int:
    assert record.step is not None
    stage = record.stage.get("samite.stage.name", "")
    if curves.segments:
        last = curves.segments[-1]
        same = (last.attempt, last.incarnation, last.stage) == (record.attempt, record.incarnation, stage)
        if same and record.step >= last.last_step:
            last.last_step, last.last_s = record.step, record.time_unix_s
            return len(curves.segments) - 1
    seconds = record.time_unix_s
    curves.segments.append(Segment(record.attempt, record.incarnation, stage, record.step, record.step, seconds, seconds))
    return len(curves.segments) - 1


def _mark_superseded(segments: list[Segment]) -> None:
    lowest_later = math.inf
    for segment in reversed(segments):
        if lowest_later <= segment.last_step:
            segment.superseded_from = int(max(lowest_later, segment.first_step))
        lowest_later = min(lowest_later, segment.first_step)


def thin(steps: Sequence[float], values: Sequence[float], limit: int) -> tuple[list[float], list[float]]:
    """At most about `limit` points: the lowest and the highest of each bucket stay, so that no spike disappears. Non-finite values stay."""
    count = len(steps)
    if count <= limit:
        return list(steps), list(values)
    width = count / (limit / 2)
    kept: list[int] = []
    for bucket in range(limit // 2):
        inside = range(int(bucket * width), min(count, int((bucket + 1) * width)))
        finite = [i for i in inside if math.isfinite(values[i])]
        broken = next((i for i in inside if not math.isfinite(values[i])), None)
        ends = {min(finite, key=values.__getitem__), max(finite, key=values.__getitem__)} if finite else set()
        kept.extend(sorted(ends | ({broken} if broken is not None else set())))
    return [steps[i] for i in kept], [values[i] for i in kept]


def spread(curves: Mapping[str, Curve], among: Curves) -> dict[str, Piece]:
    """Lowest, median and highest of several curves at each step that counts: many layers or ranks as one band."""
    at_step: dict[float, list[float]] = {}
    for curve in curves.values():
        piece = among.counting(curve)
        for step, value in zip(piece.steps, piece.values, strict=True):
            if math.isfinite(value):
                at_step.setdefault(step, []).append(value)
    steps = sorted(at_step)
    ordered = [sorted(at_step[step]) for step in steps]
    return {
        "lowest": Piece(steps, [values[0] for values in ordered]),
        "median": Piece(steps, [values[len(values) // 2] for values in ordered]),
        "highest": Piece(steps, [values[-1] for values in ordered]),
    }


def together(curves: Sequence[Curve | None], among: Curves, *, limit: int = 200) -> list[Piece]:
    """Several curves on the same steps, averaged in at most `limit` buckets: what stacked areas need. Steps that not all curves have are left out."""
    pieces = [
        dict(zip(piece.steps, piece.values, strict=True)) for piece in (among.counting(curve) for curve in curves if curve is not None)
    ]
    steps = sorted(set.intersection(*(set(piece) for piece in pieces))) if pieces else []
    width = max(1, math.ceil(len(steps) / limit))
    buckets = [steps[start : start + width] for start in range(0, len(steps), width)]
    middles = [bucket[len(bucket) // 2] for bucket in buckets]
    return [Piece(middles, [_mean(piece[step] for step in bucket) for bucket in buckets]) for piece in pieces]


def _mean(values: Iterable[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return math.fsum(finite) / len(finite) if finite else math.nan
