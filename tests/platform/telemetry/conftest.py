"""A real OTLP/gRPC receiver in the test process, and endpoints that misbehave in every way we know."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2, logs_service_pb2_grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc


@dataclass
class Receiver:
    """What arrived, flattened. `refuse_after_s` answers every call with 'unavailable, come back in that many seconds'."""

    endpoint: str = ""
    refuse_after_s: float | None = None
    metrics: dict = field(default_factory=dict)
    """Name to the newest protobuf metric of that name."""
    logs: list = field(default_factory=list)
    spans: list = field(default_factory=list)
    resources: list = field(default_factory=list)
    calls: int = 0

    def answer(self, context, response):
        self.calls += 1
        if self.refuse_after_s is not None:
            info = RetryInfo(retry_delay=Duration(seconds=int(self.refuse_after_s)))
            context.set_trailing_metadata((("google.rpc.retryinfo-bin", info.SerializeToString()),))
            context.abort(grpc.StatusCode.UNAVAILABLE, "overloaded")
        return response

    def points(self, name: str) -> dict[tuple, object]:
        """The data points of one metric by their attribute values, in the order of attribute names."""
        metric = self.metrics[name]
        data = getattr(metric, metric.WhichOneof("data")).data_points
        return {tuple(a.value.string_value for a in sorted(point.attributes, key=lambda a: a.key)): point for point in data}


class _Metrics(metrics_service_pb2_grpc.MetricsServiceServicer):
    def __init__(self, receiver: Receiver) -> None:
        self.receiver = receiver

    def Export(self, request, context):
        response = self.receiver.answer(context, metrics_service_pb2.ExportMetricsServiceResponse())
        for resource in request.resource_metrics:
            self.receiver.resources.append({a.key: a.value.string_value for a in resource.resource.attributes})
            for scope in resource.scope_metrics:
                self.receiver.metrics.update({metric.name: metric for metric in scope.metrics})
        return response


class _Logs(logs_service_pb2_grpc.LogsServiceServicer):
    def __init__(self, receiver: Receiver) -> None:
        self.receiver = receiver

    def Export(self, request, context):
        response = self.receiver.answer(context, logs_service_pb2.ExportLogsServiceResponse())
        for resource in request.resource_logs:
            for scope in resource.scope_logs:
                self.receiver.logs.extend(scope.log_records)
        return response


class _Traces(trace_service_pb2_grpc.TraceServiceServicer):
    def __init__(self, receiver: Receiver) -> None:
        self.receiver = receiver

    def Export(self, request, context):
        response = self.receiver.answer(context, trace_service_pb2.ExportTraceServiceResponse())
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self.receiver.spans.extend(scope.spans)
        return response


@contextlib.contextmanager
def serving(receiver: Receiver) -> Iterator[Receiver]:
    server = grpc.server(ThreadPoolExecutor(4))
    metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(_Metrics(receiver), server)
    logs_service_pb2_grpc.add_LogsServiceServicer_to_server(_Logs(receiver), server)
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(_Traces(receiver), server)
    receiver.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield receiver
    finally:
        server.stop(grace=0).wait(5)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with serving(Receiver()) as running:
        yield running


def _serve(listener: socket.socket, answer: bytes | None, stop: threading.Event) -> None:
    listener.settimeout(0.1)
    held = []
    while not stop.is_set():
        with contextlib.suppress(OSError):
            connection, _ = listener.accept()
            if answer is None:
                held.append(connection)
            else:
                connection.recv(1024)
                connection.sendall(answer)
                connection.close()
    for connection in held:
        connection.close()


RETRY_LATER = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 3600\r\nContent-Length: 0\r\n\r\n"


@pytest.fixture
def bad_endpoint(request: pytest.FixtureRequest) -> Iterator[str]:
    """An endpoint of the kind given as parameter. Each is a real socket, a real name, or a real address."""
    kind = request.param
    stop = threading.Event()
    with contextlib.ExitStack() as cleanup:
        cleanup.callback(stop.set)
        if kind == "grpc unavailable, retry in 3600 s":
            yield cleanup.enter_context(serving(Receiver(refuse_after_s=3600))).endpoint
        elif kind == "grpc unavailable, retry in 1 s":
            yield cleanup.enter_context(serving(Receiver(refuse_after_s=1))).endpoint
        elif kind == "black hole":
            # A listener whose backlog is full: the kernel drops further SYN packets, as a firewall does.
            hole = cleanup.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
            for _ in range(4):
                filler = cleanup.enter_context(contextlib.closing(socket.socket()))
                filler.setblocking(False)
                filler.connect_ex(hole.getsockname())
            yield f"http://127.0.0.1:{hole.getsockname()[1]}"
        elif kind == "refused":
            with socket.create_server(("127.0.0.1", 0)) as closed:
                port = closed.getsockname()[1]
            yield f"http://127.0.0.1:{port}"
        elif kind == "no such name":
            yield "http://collector.invalid:4317"
        elif kind == "no such name over TLS":
            yield "https://collector.invalid:4317"
        else:
            listener = cleanup.enter_context(socket.create_server(("127.0.0.1", 0)))
            answer = {"accepts and stays silent": None, "http 503, retry in 3600 s": RETRY_LATER, "garbage": b"\0\xff" * 99}[kind]
            server = threading.Thread(target=_serve, args=(listener, answer, stop))
            server.start()
            cleanup.callback(server.join, 5)
            cleanup.callback(stop.set)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
