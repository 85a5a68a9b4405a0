"""One object through which a process sends its signals: JSON lines in the run folder always, OTLP as well when an endpoint is set.

    telemetry = setup_telemetry(service="samite-trainer", run="demo", uid=uid, metrics_path=run / "metrics/rank-0.jsonl", events_path=run / "events.jsonl")
    telemetry.record_step(step, [Point("samite.loss", 2.3, {"samite.loss.kind": "total"}), ...])
    telemetry.event("samite.loss.spike", value=9.1, median=2.3, deviation=12.0)
    telemetry.shutdown()

The step never waits for the network: OTLP goes through bounded queues on background threads (`otlp.py`), what cannot be delivered is counted
in `samite.telemetry.dropped` and said once in the log, and `shutdown` returns within its bound whatever the other side does.
"""

import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from samite.telemetry import jsonlines
from samite.telemetry.counted import points_of_event
from samite.telemetry.events import EventLog, EventRecord
from samite.telemetry.instruments import Severity
from samite.telemetry.records import MetricRecord, Point
from samite.telemetry.traces import SpanRecord, trace_parent_of

if TYPE_CHECKING:
    from samite.telemetry.otlp import OtlpExport

SHUTDOWN_S = 5.0
"""How long `shutdown` may take when the endpoint does not answer."""

_logger = logging.getLogger(__name__)


def setup_telemetry(
    *,
    service: str,
    run: str,
    uid: str,
    metrics_path: Path | str | None = None,
    events_path: Path | str | None = None,
    otlp_endpoint: str | None = None,
    instance: str = "",
    stage: Mapping[str, str] | None = None,
    attempt: str = "",
    incarnation: int = 0,
    trace_parent: str = "",
    export_interval_s: float = 10.0,
) -> "Telemetry":
    """Telemetry of one process.

    `metrics_path` and `events_path` are the JSON lines files (None: not written). `otlp_endpoint` is a gRPC endpoint such as
    `http://collector:4317`; without one, OpenTelemetry is not even imported. `stage` holds `samite.stage.name` and `samite.stage.kind`, which
    ride on every metric. `trace_parent` is the W3C traceparent of the attempt's trace; without one it follows from `uid` and `attempt`.
    """
    resource = {
        "service.name": service,
        "service.version": _version(),
        "service.instance.id": instance or str(os.getpid()),
        "samite.run.name": run,
        "samite.run.uid": uid,
    }
    export = None
    if otlp_endpoint:
        from samite.telemetry.otlp import OtlpExport

        parent = trace_parent or (trace_parent_of(uid, attempt) if attempt else "")
        export = OtlpExport(otlp_endpoint, resource=resource, trace_parent=parent, interval_s=export_interval_s)
    return Telemetry(
        resource=resource,
        metrics_path=Path(metrics_path) if metrics_path else None,
        events=EventLog(events_path, resource=resource) if events_path else None,
        export=export,
        stage=stage or {},
        attempt=attempt,
        incarnation=incarnation,
    )


class Telemetry:
    """What a process sends its signals through; made by `setup_telemetry`. Use it as a context manager, or call `shutdown`."""

    def __init__(
        self,
        *,
        resource: Mapping[str, str],
        metrics_path: Path | None,
        events: EventLog | None,
        export: "OtlpExport | None",
        stage: Mapping[str, str],
        attempt: str,
        incarnation: int,
    ) -> None:
        self.resource = dict(resource)
        self.stage = dict(stage)
        self.attempt = attempt
        self.incarnation = incarnation
        self.dropped_lines = 0
        """JSON lines that could not be written (full disk); the first one is also logged."""
        self._metrics_path = metrics_path
        self._events = events
        self._export = export
        self._closed = False

    def record(self, metric: str, value: float, attributes: Mapping[str, str] | None = None) -> None:
        """Record one value that belongs to no step. ValueError for names outside the registry."""
        self._write(None, [Point(metric, value, attributes or {})])

    def record_step(self, step: int, points: Sequence[Point]) -> None:
        """Record all values of optimizer step `step` (steps finished over the whole run) as one line."""
        self._write(step, points)

    def record_points(self, points: Sequence[Point]) -> None:
        """Record values that belong to no step as one line; none writes nothing."""
        if points:
            self._write(None, points)

    def event(
        self, name: str, /, severity: Severity | str | None = None, *, time_unix_s: float | None = None, **attributes: Any
    ) -> EventRecord:
        """Emit one event (`EventLog.emit`), send it as an OTLP log record with its event name, and count it (`counted.py`)."""
        log = self._events or EventLog(os.devnull, resource=self.resource)
        record = log.emit(name, severity, time_unix_s=time_unix_s, **attributes)
        if self._export is not None and not self._closed:
            self._export.event(record)
            self._export.metrics(points_of_event(name, record.attributes), self.stage)
        return record

    @contextmanager
    def span(self, name: str, **attributes: Any) -> Iterator[None]:
        """A span of the attempt's trace (`traces.py`). Costs nothing without an endpoint."""
        if self._export is None or self._closed:
            yield
        else:
            with self._export.span(name, attributes):
                yield

    def finished_span(self, record: SpanRecord) -> None:
        """Send a span that is over. Costs nothing without an endpoint."""
        if self._export is not None and not self._closed:
            self._export.finished_span(record)

    def shutdown(self, timeout_s: float = SHUTDOWN_S) -> bool:
        """Send what is left and stop, within `timeout_s`. True if everything reached the endpoint; False if something was dropped."""
        if self._closed:
            return True
        self._closed = True
        dropped: Mapping[str, int] = {} if self._export is None else self._export.shutdown(timeout_s)
        lost = {**dropped, "jsonl": self.dropped_lines + (self._events.dropped if self._events else 0)}
        points = [Point("samite.telemetry.dropped", count, {"samite.telemetry.signal": signal}) for signal, count in lost.items() if count]
        if points:
            self._write_line(None, points)
        return not points

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.shutdown()

    def _write(self, step: int | None, points: Sequence[Point]) -> None:
        checked = [point.checked() for point in points]
        self._write_line(step, checked)
        if self._export is not None and not self._closed:
            self._export.metrics(checked, self.stage)

    def _write_line(self, step: int | None, points: Sequence[Point]) -> None:
        if self._metrics_path is None:
            return
        record = MetricRecord(
            time_unix_s=time.time(),
            points=tuple(points),
            step=step,
            attempt=self.attempt,
            incarnation=self.incarnation,
            stage=self.stage,
        )
        try:
            jsonlines.append_line(self._metrics_path, record.to_document())
        except OSError as error:
            if not self.dropped_lines:
                _logger.warning("cannot write metrics to %s: %s; further records may be lost", self._metrics_path, error)
            self.dropped_lines += 1


def _version() -> str:
    try:
        return version("samite")
    except PackageNotFoundError:
        return "0"
