"""How the readings leave: `GET /metrics` and `/healthz`, and OTLP from observable instruments, which tell only what is there at that moment."""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from samite.engines.node_agent.collect import Agent
from samite.telemetry.agent_metrics import AGENT_METRICS
from samite.telemetry.instruments import Instrument, Metric
from samite.telemetry.otlp import EXPORT_TIMEOUT_S


class MetricsServer:
    """Answers on `port` (0: any free one; see `port`)."""

    def __init__(self, agent: Agent, *, port: int, host: str) -> None:
        pages: dict[str, Callable[[], str]] = {"/metrics": agent.exposition, "/healthz": lambda: "ok\n"}

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 10.0

            def do_GET(self) -> None:
                found = pages.get(self.path.partition("?")[0])
                body = (found() if found is not None else "there are /metrics and /healthz\n").encode()
                with contextlib.suppress(ConnectionError):  # a scrape that gave up waiting is no error of ours
                    self.send_response(200 if found is not None else 404)
                    self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Scrapes come each few seconds: nobody wants them in the log."""

        self._server = ThreadingHTTPServer((host, port), Handler)
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=5.0)


class OtlpAgent:
    """Sends what `agent` reads every `interval_s` seconds. A collector that is down costs nothing but the readings of that time."""

    def __init__(self, agent: Agent, endpoint: str, *, interval_s: float, resource: dict[str, str]) -> None:
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import Resource

        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL + 1)  # it would log every failure and every retry
        exporter = OTLPMetricExporter(endpoint=endpoint if "://" in endpoint else f"http://{endpoint}", timeout=EXPORT_TIMEOUT_S)
        self._reader = PeriodicExportingMetricReader(exporter, export_interval_millis=interval_s * 1e3)
        self._provider = MeterProvider(
            resource=Resource.create({**agent.resource, **resource}), metric_readers=[self._reader], shutdown_on_exit=False
        )
        meter = self._provider.get_meter("samite")
        for metric in AGENT_METRICS:
            match metric.instrument:
                case Instrument.COUNTER:
                    create: Callable[..., object] = meter.create_observable_counter
                case Instrument.UP_DOWN_COUNTER:
                    create = meter.create_observable_up_down_counter
                case _:
                    create = meter.create_observable_gauge
            create(metric.name, callbacks=[_callback(agent, metric)], unit=metric.unit, description=metric.brief)

    def stop(self, timeout_s: float = 3.0) -> None:
        """Send the last readings and end, within about `timeout_s`."""
        ending = threading.Thread(target=self._provider.shutdown, daemon=True)
        ending.start()
        ending.join(timeout=timeout_s)


def _callback(agent: Agent, metric: Metric) -> Any:
    from opentelemetry.metrics import CallbackOptions, Observation

    def observe(_: CallbackOptions) -> Iterable[Observation]:
        return [Observation(reading.value, reading.labels) for reading in agent.look() if reading.name == metric.name]

    return observe
