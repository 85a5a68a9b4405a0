"""A real Prometheus with our rules, fed by OTLP and by scrapes, asked as Grafana would ask it.

The trainer speaks OTLP over gRPC and Prometheus takes it over HTTP: the door in between hands the same bytes on, as a collector would.
"""

import contextlib
import json
import re
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import yaml
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2, logs_service_pb2_grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from samite.dashboards.rules import rule_groups, to_yaml

PROMOTED = ["service.name", "samite.run.name", "samite.run.uid", "k8s.namespace.name", "k8s.node.name", "k8s.pod.name"]
VARIABLES = {"$run": ".*", "$uid": ".*", "$stage": ".*", "$__rate_interval": "1m", "$__interval": "30s", "$__range": "1h"}


@dataclass
class LivePrometheus:
    """One Prometheus process. `began_s` is when it was started: queries look at everything since."""

    address: str
    began_s: float
    pid: int = 0
    otlp: str = ""
    """gRPC address for `telemetry.otlpEndpoint`."""
    spans: list[Any] = field(default_factory=list)
    """What came in as traces."""

    def ask(self, path: str, **query: Any) -> Any:
        text = urllib.parse.urlencode(query)
        with urllib.request.urlopen(f"{self.address}/api/v1/{path}?{text}", timeout=30) as answer:
            return json.loads(answer.read())["data"]

    def curves(self, expr: str, step_s: float = 5.0) -> list[dict[str, Any]]:
        """Series of `expr` since the start, variables filled in, without points that are NaN."""
        for name, value in VARIABLES.items():
            expr = re.sub(re.escape(name) + r"\b", value, expr)
        found = self.ask("query_range", query=expr, start=self.began_s, end=time.time(), step=step_s)["result"]
        return [series for series in found if any(value != "NaN" for _, value in series["values"])]

    def fired(self) -> set[str]:
        """Alerts that fired at any time."""
        return {series["metric"]["alertname"] for series in self.curves('ALERTS{alertstate="firing"}', 1.0)}

    def metadata(self) -> dict[str, list[dict[str, str]]]:
        """Type, unit and help of each metric, as Prometheus keeps them."""
        return self.ask("metadata")


@contextlib.contextmanager
def running(program: Path, folder: Path, *, groups: Sequence[str], scrape: str = "", feature: str = "") -> Iterator[LivePrometheus]:
    """Start it, with the alert rules of `groups` and, if given, an endpoint to scrape; gone afterwards."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rules.yaml").write_text(to_yaml(rule_groups(groups)))
    config: dict[str, Any] = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["rules.yaml"],
        "otlp": {"promote_resource_attributes": PROMOTED},
        "scrape_configs": [{"job_name": "samite-operator", "static_configs": [{"targets": [scrape]}]}] if scrape else [],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    port = _free_port()
    arguments = [f"--web.listen-address=127.0.0.1:{port}", "--web.enable-otlp-receiver", "--config.file=prometheus.yml", "--log.level=warn"]
    arguments += [f"--enable-feature={feature}"] if feature else []
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([program, *arguments, "--storage.tsdb.path=data"], cwd=folder, stdout=log, stderr=log)
        try:
            live = LivePrometheus(address=f"http://127.0.0.1:{port}", began_s=time.time(), pid=process.pid)
            _until_ready(live, process, folder / "log")
            with _door(live) as live.otlp:
                yield live
        finally:
            process.terminate()
            try:
                process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(timeout=5)


def _until_ready(live: LivePrometheus, process: subprocess.Popen, log: Path) -> None:
    ends_s = time.monotonic() + 60
    while True:
        assert process.poll() is None, log.read_text()[-2000:]
        assert time.monotonic() < ends_s, "not ready"
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{live.address}/-/ready", timeout=2):
            return
        time.sleep(0.2)


class _Metrics(metrics_service_pb2_grpc.MetricsServiceServicer):
    def __init__(self, address: str) -> None:
        self.address = address

    def Export(self, request, context):
        headers = {"Content-Type": "application/x-protobuf"}
        call = urllib.request.Request(f"{self.address}/api/v1/otlp/v1/metrics", data=request.SerializeToString(), headers=headers)
        try:
            urllib.request.urlopen(call, timeout=10).close()
        except OSError as error:
            context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        return metrics_service_pb2.ExportMetricsServiceResponse()


class _Logs(logs_service_pb2_grpc.LogsServiceServicer):
    def Export(self, request, context):
        return logs_service_pb2.ExportLogsServiceResponse()


class _Traces(trace_service_pb2_grpc.TraceServiceServicer):
    def __init__(self, spans: list[Any]) -> None:
        self.spans = spans

    def Export(self, request, context):
        self.spans += [span for resource in request.resource_spans for scope in resource.scope_spans for span in scope.spans]
        return trace_service_pb2.ExportTraceServiceResponse()


@contextlib.contextmanager
def _door(live: LivePrometheus) -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(4))
    metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(_Metrics(live.address), server)
    logs_service_pb2_grpc.add_LogsServiceServicer_to_server(_Logs(), server)
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(_Traces(live.spans), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.stop(grace=0).wait(5)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
