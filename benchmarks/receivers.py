"""Where the signals of a benchmark go: a real OpenTelemetry collector, or a Prometheus that receives OTLP itself. Used by `thousand_ranks`."""

import contextlib
import json
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

COLLECTOR = """
receivers: {{otlp: {{protocols: {{grpc: {{endpoint: "127.0.0.1:{grpc}"}}}}}}}}
exporters:
  prometheus: {{endpoint: "127.0.0.1:{scrape}", resource_to_telemetry_conversion: {{enabled: true}}}}
service:
  telemetry: {{metrics: {{level: none}}}}
  pipelines: {{metrics: {{receivers: [otlp], exporters: [prometheus]}}}}
"""


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextlib.contextmanager
def collector(program: Path, folder: Path) -> Iterator[tuple[str, Any, int]]:
    """A collector: its OTLP endpoint, a function that gives the names of all series, its process id."""
    ports = {"grpc": free_port(), "scrape": free_port()}
    (folder / "collector.yaml").write_text(COLLECTOR.format(**ports), encoding="utf-8")
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([program, "--config", str(folder / "collector.yaml")], stdout=log, stderr=log)

    def series() -> list[str]:
        with urllib.request.urlopen(f"http://127.0.0.1:{ports['scrape']}/metrics", timeout=60) as answer:
            return [line for line in answer.read().decode().splitlines() if line and not line.startswith("#")]

    try:
        until_open(ports["grpc"], process, folder / "log")
        yield f"http://127.0.0.1:{ports['grpc']}", series, process.pid
    finally:
        process.terminate()
        process.wait(timeout=20)


@contextlib.contextmanager
def prometheus(program: Path, folder: Path) -> Iterator[tuple[str, Any, int]]:
    """The same of a Prometheus that receives OTLP itself."""
    from live_prometheus import running

    with running(program, folder / "prometheus", groups=()) as live:

        def series() -> list[str]:
            found = live.ask("query", query='{__name__=~".+"}')["result"]
            return [item["metric"]["__name__"] + json.dumps(item["metric"]) for item in found]

        yield live.otlp, series, live.pid


def until_open(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until somebody listens; AssertionError with the log if the process ends."""
    for _ in range(300):
        assert process.poll() is None, log.read_text(encoding="utf-8")[-2000:]
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.1)
    raise TimeoutError(f"nobody listens on port {port}")
