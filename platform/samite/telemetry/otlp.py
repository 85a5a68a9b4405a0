"""Export over OTLP/gRPC: metrics, events as log records, and spans, on background threads with bounded queues.

Imported only when an endpoint is set. An endpoint that is down, silent, or asks to come back in an hour costs memory up to the queues' bounds,
one warning in the log, and a count of what was lost; never time of the step, and never more than the given bound at shutdown.
"""

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from samite.telemetry import names
from samite.telemetry.events import EventRecord
from samite.telemetry.instruments import Instrument, Metric
from samite.telemetry.records import Point
from samite.telemetry.traces import SpanRecord, ids_of

QUEUE_SIZE = 2048
"""Events and spans that may wait; beyond it the oldest are dropped and counted."""
EXPORT_TIMEOUT_S = 5.0
"""How long one export may take, retries included."""

_logger = logging.getLogger(__name__)


class OtlpExport:
    """The three OTLP pipelines of one process. `endpoint` is `http://host:4317` (plain) or `https://host:4317` (TLS)."""

    def __init__(self, endpoint: str, *, resource: Mapping[str, str], trace_parent: str = "", interval_s: float = 10.0) -> None:
        from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk._logs import LoggerProvider
        from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        # The exporters log every failure and every retry; this class says it once itself.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL + 1)
        self.endpoint = endpoint if "://" in endpoint else f"http://{endpoint}"
        self._resource = Resource.create(dict(resource))
        self._exporters: list[Any] = []
        self._context = TraceContextTextMapPropagator().extract({"traceparent": trace_parent}) if trace_parent else None
        self._lock = threading.Lock()
        self._warned = False
        self._closing = False
        self._dropped = {"metrics": 0, "logs": 0, "traces": 0}
        self._queued = {"logs": 0, "traces": 0}
        options: dict[str, Any] = {"endpoint": self.endpoint, "timeout": EXPORT_TIMEOUT_S}
        batching: dict[str, Any] = {"schedule_delay_millis": 1000.0, "max_queue_size": QUEUE_SIZE, "max_export_batch_size": 512}

        metric_exporter = OTLPMetricExporter(**options)
        self._watch(metric_exporter, "metrics", _count_points)
        self._reader = PeriodicExportingMetricReader(metric_exporter, export_interval_millis=1000.0 * interval_s)
        self._meter = MeterProvider([self._reader], self._resource, shutdown_on_exit=False).get_meter("samite")

        log_exporter = OTLPLogExporter(**options)
        self._watch(log_exporter, "logs", len)
        self._log_processor = BatchLogRecordProcessor(log_exporter, **batching)
        log_provider = LoggerProvider(self._resource, shutdown_on_exit=False)
        log_provider.add_log_record_processor(self._log_processor)
        self._event_logger = log_provider.get_logger("samite")

        span_exporter = OTLPSpanExporter(**options)
        self._watch(span_exporter, "traces", len)
        self._span_processor = BatchSpanProcessor(span_exporter, **batching)
        self._ids = _ids()
        tracer_provider = TracerProvider(resource=self._resource, shutdown_on_exit=False, id_generator=self._ids)
        tracer_provider.add_span_processor(self._span_processor)
        self._tracer = tracer_provider.get_tracer("samite")

        self._instruments: dict[str, Callable[[float, Mapping[str, str]], None]] = {}
        self._counts: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}

    def metrics(self, points: Sequence[Point], stage: Mapping[str, str]) -> None:
        """Hand checked `points` to their instruments; exported with the next interval."""
        for point in points:
            instrument = self._instruments.get(point.name) or self._instrument(names.metric(point.name))
            instrument(point.value, {**stage, **point.attributes})

    def event(self, record: EventRecord) -> None:
        """Queue `record` as a log record with its event name."""
        from opentelemetry._logs import SeverityNumber

        attributes = {key: json.dumps(value) if isinstance(value, Mapping) else value for key, value in record.attributes.items()}
        with self._lock:
            self._queued["logs"] += 1
        self._event_logger.emit(
            timestamp=int(record.time_unix_s * 1e9),
            observed_timestamp=time.time_ns(),
            context=self._context,
            severity_number=SeverityNumber(record.severity.number),
            severity_text=str(record.severity),
            body=str(attributes.get("samite.message") or attributes.get("samite.reason") or record.name),
            attributes=attributes,
            event_name=record.name,
        )

    @contextmanager
    def span(self, name: str, attributes: Mapping[str, Any]) -> Iterator[None]:
        """A span below the one that is current, or below the attempt's trace. An exception that passes leaves its type, never its message."""
        from opentelemetry import trace

        inside = trace.get_current_span().get_span_context().is_valid
        options: dict[str, Any] = {"attributes": dict(attributes), "record_exception": False, "set_status_on_exception": False}
        with self._tracer.start_as_current_span(name, context=None if inside else self._context, **options) as span:
            try:
                yield
            except BaseException as error:
                _fail(span, type(error).__name__)
                raise
            finally:
                with self._lock:
                    self._queued["traces"] += 1

    def finished_span(self, record: SpanRecord) -> None:
        """Queue a span that is over, with the times and, for a root, the ids of its record."""
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        links = []
        if record.link:
            trace_id, span_id = ids_of(record.link)
            links.append(trace.Link(trace.SpanContext(trace_id, span_id, is_remote=True, trace_flags=trace.TraceFlags(1))))
        context: Any = None if record.is_root else TraceContextTextMapPropagator().extract({"traceparent": record.trace_parent})
        with self._lock:
            self._ids.of_root.ids = ids_of(record.trace_parent) if record.is_root else None
            try:
                span = self._tracer.start_span(
                    record.name,
                    context=trace.set_span_in_context(trace.INVALID_SPAN) if record.is_root else context,
                    attributes=dict(record.attributes),
                    links=links,
                    start_time=int(record.start_unix_s * 1e9),
                )
            finally:
                self._ids.of_root.ids = None
            self._queued["traces"] += 1
        if record.failed:
            _fail(span, record.failed)
        span.end(end_time=int(record.end_unix_s * 1e9))

    def shutdown(self, timeout_s: float) -> dict[str, int]:
        """Flush and stop within `timeout_s`. Returns what was dropped over the whole life, by signal."""
        self._closing = True
        deadline_s = time.monotonic() + timeout_s
        # Each one flushes with its own, longer patience. When most of the bound is used, closing the exporters ends calls in flight and retries.
        threads = [
            threading.Thread(target=part.shutdown, daemon=True) for part in (self._reader, self._log_processor, self._span_processor)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, deadline_s - 0.2 * timeout_s - time.monotonic()))
        for exporter in self._exporters:
            exporter.shutdown()
        for thread in threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))
        with self._lock:
            waiting = {signal: count for signal, count in self._queued.items() if count > 0}
            return {signal: count + waiting.get(signal, 0) for signal, count in self._dropped.items()}

    def _instrument(self, metric: Metric) -> Callable[[float, Mapping[str, str]], None]:
        options: dict[str, Any] = {"name": metric.name, "unit": metric.unit, "description": metric.brief}
        match metric.instrument:
            case Instrument.COUNTER:
                record: Callable[..., None] = self._meter.create_counter(**options).add
            case Instrument.GAUGE:
                record = self._meter.create_gauge(**options).set
            case Instrument.HISTOGRAM:
                buckets = list(metric.buckets) or None
                record = self._meter.create_histogram(**options, explicit_bucket_boundaries_advisory=buckets).record
            case Instrument.UP_DOWN_COUNTER:
                add = self._meter.create_up_down_counter(**options).add

                def record(value: float, attributes: Mapping[str, str]) -> None:
                    key = (metric.name, frozenset(attributes.items()))
                    add(value - self._counts.get(key, 0.0), dict(attributes))
                    self._counts[key] = value

        self._instruments[metric.name] = record
        return record

    def _watch(self, exporter: Any, signal: str, count: Callable[[Any], int]) -> None:
        """Let `exporter.export` tell this class what it delivered and what it lost."""
        export = exporter.export

        def watched(data: Any, *args: Any, **kwargs: Any) -> Any:
            items = count(data)
            try:
                result = export(data, *args, **kwargs)
            except Exception as error:
                self._lost(signal, items, f"{type(error).__name__}: {error}")
                raise
            if signal in self._queued:
                with self._lock:
                    self._queued[signal] -= items
            if result.name != "SUCCESS":
                self._lost(signal, items, "no answer, or refused")
            return result

        exporter.export = watched
        self._exporters.append(exporter)

    def _lost(self, signal: str, items: int, reason: str) -> None:
        with self._lock:
            self._dropped[signal] += items
            first, self._warned = not self._warned, True
        if first:
            _logger.warning(
                "telemetry cannot be delivered to %s (%s); the JSON lines in the run folder stay complete. This is said once.",
                self.endpoint,
                reason,
            )
        if not self._closing:
            self.metrics([Point("samite.telemetry.dropped", float(items), {"samite.telemetry.signal": signal})], {})


def _fail(span: Any, error_type: str) -> None:
    from opentelemetry.trace import Status, StatusCode

    span.set_attribute("error.type", error_type)
    span.set_status(Status(StatusCode.ERROR, error_type))


def _ids() -> Any:
    """Random ids, but for a root span, whose ids follow from its attempt."""
    from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

    class Ids(RandomIdGenerator):
        of_root = threading.local()
        """`ids`: (trace id, span id) for the next span of this thread alone."""

        def generate_trace_id(self) -> int:
            fixed = getattr(self.of_root, "ids", None)
            return int(fixed[0]) if fixed else super().generate_trace_id()

        def generate_span_id(self) -> int:
            fixed = getattr(self.of_root, "ids", None)
            return int(fixed[1]) if fixed else super().generate_span_id()

    return Ids()


def _count_points(data: Any) -> int:
    return sum(
        len(metric.data.data_points) for resource in data.resource_metrics for scope in resource.scope_metrics for metric in scope.metrics
    )
