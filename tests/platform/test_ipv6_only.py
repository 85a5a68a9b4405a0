"""Where there is only IPv6 (scenario S25): addresses keep their brackets and connections are made, to Ray, the API server, S3 and a collector.

The servers are those of the other tests; a forwarder on [::1] is the only way to them here.
"""

import contextlib
import importlib.util
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType

import pytest

from samite.checkpoint.store import StoreOptions, open_store
from samite.checkpoint.store.sink import Sink
from samite.cli.app import run
from samite.engines.ray_jobs import JobStatus, RayJobs
from samite.telemetry.records import Point
from samite.telemetry.setup import setup_telemetry

HERE = Path(__file__).parent
pytestmark = pytest.mark.timeout(60)


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    for side in (source, target):
        with contextlib.suppress(OSError):
            side.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def over_ipv6() -> Iterator[Callable[[int], str]]:
    """`[::1]:port` of a way to a port of 127.0.0.1."""
    if not has_ipv6():
        pytest.skip("this machine has no IPv6 loopback")
    listeners: list[socket.socket] = []
    pumps: list[threading.Thread] = []
    connections: list[socket.socket] = []

    def forward(listener: socket.socket, port: int) -> None:
        while True:
            try:
                near, _ = listener.accept()
                far = socket.create_connection(("127.0.0.1", port), timeout=10)
            except OSError:
                return
            far.settimeout(None)
            connections.extend((near, far))
            for pair in ((near, far), (far, near)):
                pumps.append(threading.Thread(target=_pump, args=pair, daemon=True))
                pumps[-1].start()

    def way(port: int) -> str:
        listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
        listeners.append(listener)
        pumps.append(threading.Thread(target=forward, args=(listener, port), daemon=True))
        pumps[-1].start()
        return f"[::1]:{listener.getsockname()[1]}"

    yield way
    for one in (*listeners, *connections):
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()
    for pump in pumps:
        pump.join(timeout=5)


def loaded(path: Path, name: str) -> ModuleType:
    """A test module of another folder."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def test_ray_s_dashboard_is_asked_at_an_address_in_brackets(over_ipv6: Callable[[int], str]):
    hosts = []

    class Dashboard(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            hosts.append(self.headers["Host"])
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"status": "RUNNING", "message": "", "driver_exit_code": null}')

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Dashboard) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        place = over_ipv6(server.server_port)
        assert RayJobs(address=f"http://{place}").job("demo-s00-a1").status is JobStatus.RUNNING
        server.shutdown()
        thread.join(timeout=5)
    assert hosts == [place]


def test_checkpoints_go_to_an_s3_endpoint_in_brackets(over_ipv6: Callable[[int], str]):
    with Sink() as sink:
        place = over_ipv6(int(sink.endpoint.rpartition(":")[2]))
        options = StoreOptions(endpoint=f"http://{place}", access_key="any", secret_key="any", insecure=True)
        store = open_store("s3://bucket/run", options)
        store.put("a b+c", b"silk")
        assert store.get("a b+c") == b"silk"
        assert [item.key for item in store.list("")] == ["a b+c"]


def test_the_command_line_talks_to_an_api_server_in_brackets(
    over_ipv6: Callable[[int], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    world_of = loaded(HERE / "cli" / "served_api.py", "served_api")
    monkeypatch.setenv("SAMITE_HOME", str(tmp_path / "home"))
    with world_of.served(world_of.World()) as world:
        place = over_ipv6(int(world.address.rpartition(":")[2]))
        kubeconfig = world_of.write_kubeconfig(tmp_path / "kubeconfig", f"http://{place}")
        assert run(["--kubeconfig", str(kubeconfig), "list", "-o", "json"]) == 0
        assert world.asked("GET", "trainingruns")
    assert "Traceback" not in capsys.readouterr().err


def test_telemetry_reaches_a_collector_in_brackets(over_ipv6: Callable[[int], str], tmp_path: Path):
    receiving = loaded(HERE / "telemetry" / "conftest.py", "otlp_receiver_for_ipv6")
    with receiving.serving(receiving.Receiver()) as receiver:
        place = over_ipv6(int(receiver.endpoint.rpartition(":")[2]))
        files = {"metrics_path": tmp_path / "m.jsonl", "events_path": tmp_path / "e.jsonl"}
        with setup_telemetry(service="samite-trainer", run="demo", uid="u1", otlp_endpoint=f"http://{place}", **files) as telemetry:
            telemetry.record_step(1, [Point("samite.loss", 2.5, {"samite.loss.kind": "total"})])
    assert "samite.loss" in receiver.metrics
