"""The operator's metrics: kept in memory by registered name, told to Prometheus as text and, with an endpoint, over OTLP.

Names, units and attributes are those of `samite.telemetry.names`. Values of one run carry its name, uid and namespace as well, and are forgotten
with it, so that the number of series follows the number of runs that exist.
"""

import threading
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from samite.telemetry import names
from samite.telemetry.instruments import Instrument, Metric
from samite.telemetry.prometheus import prometheus_name
from samite.telemetry.records import Point
from samite.telemetry.traces import SpanRecord

if TYPE_CHECKING:
    from samite.telemetry.otlp import OtlpExport

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunLabels:
    """Which run a value belongs to."""

    namespace: str
    name: str
    uid: str

    @property
    def labels(self) -> dict[str, str]:
        """As attributes."""
        return {"k8s.namespace.name": self.namespace, "samite.run.name": self.name, "samite.run.uid": self.uid}


@dataclass(slots=True)
class _Series:
    value: float = 0.0
    count: int = 0
    buckets: list[int] = field(default_factory=list)


class Instruments:
    """All metrics of one operator process; safe to use from many threads."""

    def __init__(self, export: "OtlpExport | None" = None) -> None:
        self._export = export
        self._lock = threading.Lock()
        self._series: dict[str, dict[Labels, _Series]] = {}

    def record(self, name: str, value: float, attributes: Mapping[str, str] | None = None, *, run: RunLabels | None = None) -> None:
        """One value, meant as the instrument of `name` says. ValueError for a name or attribute outside the registry."""
        self.points([Point(name, value, attributes or {})], run=run)

    def points(self, points: Iterable[Point], *, run: RunLabels | None = None) -> None:
        """Several values at once."""
        extra = {} if run is None else run.labels
        checked = [point.checked() for point in points]
        with self._lock:
            for point in checked:
                self._add(names.metric(point.name), tuple(sorted({**point.attributes, **extra}.items())), point.value)
        if self._export is not None and checked:
            self._export.metrics(checked, extra)

    @contextmanager
    def timed(self, name: str, attributes: Mapping[str, str] | None = None) -> Iterator[None]:
        """Record how long the body took, whatever its end."""
        began_s = time.monotonic()
        try:
            yield
        finally:
            self.record(name, time.monotonic() - began_s, attributes)

    def finished_spans(self, spans: Iterable[SpanRecord], *, run: RunLabels) -> None:
        """Spans of a run's attempt that is over; only sent over OTLP."""
        if self._export is not None:
            for span in spans:
                self._export.finished_span(replace(span, attributes={**span.attributes, **run.labels}))

    def value(self, name: str, attributes: Mapping[str, str] | None = None) -> float:
        """Sum (or present value) over all series of `name` that carry `attributes`; 0 if there is none."""
        wanted = set((attributes or {}).items())
        with self._lock:
            return sum(series.value for labels, series in self._series.get(name, {}).items() if wanted <= set(labels))

    def forget(self, uid: str) -> None:
        """Drop every series of the run `uid`."""
        gone = ("samite.run.uid", uid)
        with self._lock:
            for name, series in self._series.items():
                self._series[name] = {labels: entry for labels, entry in series.items() if gone not in labels}

    def exposition(self) -> str:
        """Everything in Prometheus' text format, version 0.0.4."""
        lines: list[str] = []
        with self._lock:
            for name in sorted(self._series):
                if self._series[name]:
                    lines += _family(names.metric(name), self._series[name])
        return "".join(f"{line}\n" for line in lines)

    def _add(self, metric: Metric, labels: Labels, value: float) -> None:
        family = self._series.setdefault(metric.name, {})
        series = family.get(labels)
        if series is None:
            series = family[labels] = _Series(buckets=[0] * (len(metric.buckets) + 1))
        if metric.instrument is Instrument.COUNTER:
            series.value += value
        elif metric.instrument is Instrument.HISTOGRAM:
            series.value += value
            series.count += 1
            series.buckets[bisect_left(metric.buckets, value)] += 1
        else:
            series.value = value


def _family(metric: Metric, family: Mapping[Labels, _Series]) -> Iterator[str]:
    name = prometheus_name(metric)
    kind = {Instrument.COUNTER: "counter", Instrument.HISTOGRAM: "histogram"}.get(metric.instrument, "gauge")
    yield f"# HELP {name} {metric.brief}"
    yield f"# TYPE {name} {kind}"
    for labels, series in sorted(family.items()):
        if metric.instrument is not Instrument.HISTOGRAM:
            yield f"{name}{_labels(labels)} {series.value:.17g}"
            continue
        total = 0
        for bound, count in zip((*(f"{bound:g}" for bound in metric.buckets), "+Inf"), series.buckets, strict=True):
            total += count
            yield f"{name}_bucket{_labels((*labels, ('le', bound)))} {total}"
        yield f"{name}_sum{_labels(labels)} {series.value:.17g}"
        yield f"{name}_count{_labels(labels)} {series.count}"


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    escaped = (value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n") for _, value in labels)
    return "{" + ",".join(f'{key.replace(".", "_")}="{value}"' for (key, _), value in zip(labels, escaped, strict=True)) + "}"
