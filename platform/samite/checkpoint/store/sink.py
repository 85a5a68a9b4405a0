"""An S3 server in memory: for tests of faults and integrity, and for benchmarks whose server must cost little.

    with Sink() as sink:                      # or: python -m samite.checkpoint.store.sink --port 9000 --latency-ms 30 --connection-mbps 10
        open_store("s3://bucket/run", StoreOptions(endpoint=sink.endpoint, access_key="any", secret_key="any"))

Verifies CRC64-NVME, CRC32 and CRC32C of every body and of completed uploads, honours If-None-Match and If-Match, wants equal parts. Shapes the time to
the first byte and the bandwidth of each connection. Breaks on command (`SinkFault`). Buckets exist once they are named. With `keys` every request must be
signed by one of them (Signature Version 4, in headers or presigned); without, signatures are not looked at.
"""

import argparse
import contextlib
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase

from samite.checkpoint.store.sink_messages import Answer, Request
from samite.checkpoint.store.sink_objects import Objects
from samite.checkpoint.store.sink_signatures import refusal

_HEAD_BYTES = 64 * 1024
_PACE_BYTES = 256 * 1024


class Break(StrEnum):
    """What goes wrong with a request."""

    STATUS = "status"
    """Answered with `status` and `code`; nothing is done."""
    CUT = "cut"
    """The connection is closed when half of the body has been received."""
    LOST_REPLY = "lost_reply"
    """Done, and the connection closed without an answer."""
    TRUNCATE = "truncate"
    """The answer ends half way, the connection with it."""
    STALL = "stall"
    """The answer waits `seconds` first."""
    FLIP = "flip"
    """One bit of the body is flipped before it is stored or sent: what checksums are for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SinkFault:
    """One rule: requests of `method` whose `bucket/key?query` fits `target`; the first `skip` pass, then `times` break (None: all)."""

    kind: Break
    method: str = "*"
    target: str = "*"
    skip: int = 0
    times: int | None = None
    status: int = 503
    code: str = "SlowDown"
    seconds: float = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """How slow it is; nothing is shaped by default."""

    latency_s: float = 0.0
    """Before each answer."""
    bytes_per_s: float = 0.0
    """Of each connection, each way; 0 for no limit."""


class Sink:
    """The server. Threads, one for each connection; `with` starts and ends it."""

    def __init__(
        self,
        *,
        port: int = 0,
        shape: Shape | None = None,
        faults: Iterable[SinkFault] = (),
        equal_parts: bool = True,
        keys: Mapping[str, str] | None = None,
    ) -> None:
        self.objects = Objects(equal_parts=equal_parts)
        self.requests: list[tuple[str, str]] = []
        """(method, bucket/key?query) of every request, in order."""
        self.keys = keys
        """Access key -> secret; None takes requests of anybody."""
        self.clock: Callable[[], float] = time.time
        """What signatures' dates are compared with."""
        self._shape = shape or Shape()
        self._faults = list(faults)
        self._seen: dict[int, int] = {}
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", port), backlog=256)
        self._open: set[socket.socket] = set()
        self._thread = threading.Thread(target=self._accept, name="samite-sink", daemon=True)

    @property
    def endpoint(self) -> str:
        """For `checkpoint.endpoint`."""
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> "Sink":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop and forget everything."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            connections = list(self._open)
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def serve(self) -> None:
        """Serve in this thread until it is interrupted."""
        self._accept()

    def add(self, *faults: SinkFault) -> None:
        """More rules; counting starts now."""
        with self._lock:
            self._faults += faults

    def clear(self) -> None:
        """No more faults."""
        with self._lock:
            self._faults.clear()
            self._seen.clear()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._connection, args=(connection,), name="samite-sink-connection", daemon=True).start()

    def _connection(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            self._open.add(connection)
        try:
            rest = b""
            while True:
                found = self._receive(connection, rest)
                if found is None:
                    return
                request, rest, fault = found
                if not self._respond(connection, request, fault):
                    return
        except OSError:
            return
        finally:
            with self._lock:
                self._open.discard(connection)
            connection.close()

    def _receive(self, connection: socket.socket, rest: bytes) -> tuple[Request, bytes, SinkFault | None] | None:
        while b"\r\n\r\n" not in rest:
            more = connection.recv(_HEAD_BYTES)
            if not more or len(rest) > 4 * _HEAD_BYTES:
                return None
            rest += more
        head, _, rest = rest.partition(b"\r\n\r\n")
        request = Request.parse(head)
        with self._lock:
            self.requests.append((request.method, request.target))
        fault = self._match(request)
        if request.headers.get("expect", "").lower() == "100-continue":
            connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        length = int(request.headers.get("content-length", "0"))
        body = bytearray(length)
        taken = min(len(rest), length)
        body[:taken] = rest[:taken]
        rest = rest[taken:]
        view, began_s = memoryview(body), time.monotonic()
        stop = length // 2 if fault is not None and fault.kind is Break.CUT else length
        while taken < stop:
            step = stop if not self._shape.bytes_per_s else min(stop, taken + _PACE_BYTES)
            count = connection.recv_into(view[taken:step])
            if not count:
                return None
            taken += count
            self._pace(taken, began_s)
        if stop < length or (fault is not None and fault.kind is Break.CUT):
            return None
        request.body = body
        return request, rest, fault

    def _respond(self, connection: socket.socket, request: Request, fault: SinkFault | None) -> bool:
        kind = None if fault is None else fault.kind
        if kind is Break.FLIP and request.body:
            request.body[len(request.body) // 2] ^= 1
        refused = fault is not None and kind is Break.STATUS
        answer = (
            Answer.error(fault.status, fault.code, "injected")
            if fault and refused
            else self._refusal(request) or self.objects.handle(request)
        )
        if fault is not None and kind is Break.STALL:
            time.sleep(fault.seconds)
        if kind is Break.LOST_REPLY:
            return False
        if self._shape.latency_s:
            time.sleep(self._shape.latency_s)
        body = [] if request.method == "HEAD" else answer.body
        if body and (kind is Break.TRUNCATE or (kind is Break.FLIP and request.method == "GET")):
            changed = bytearray().join(body)
            changed[len(changed) // 2] ^= kind is Break.FLIP
            body = [memoryview(changed)[: len(changed) // 2 if kind is Break.TRUNCATE else None]]
        connection.sendall(answer.head())
        sent, began_s = 0, time.monotonic()
        for view in body:
            step = _PACE_BYTES if self._shape.bytes_per_s else len(view)
            for start in range(0, len(view), step):
                connection.sendall(view[start : start + step])
                sent += len(view[start : start + step])
                self._pace(sent, began_s)
        return kind is not Break.TRUNCATE

    def _refusal(self, request: Request) -> Answer | None:
        return None if self.keys is None else refusal(request, self.keys, self.clock())

    def _pace(self, num_bytes: int, began_s: float) -> None:
        if self._shape.bytes_per_s:
            ahead_s = num_bytes / self._shape.bytes_per_s - (time.monotonic() - began_s)
            if ahead_s > 0:
                time.sleep(ahead_s)

    def _match(self, request: Request) -> SinkFault | None:
        with self._lock:
            for number, fault in enumerate(self._faults):
                if fault.method not in {"*", request.method} or not fnmatchcase(request.target, fault.target):
                    continue
                seen = self._seen[number] = self._seen.get(number, 0) + 1
                if seen > fault.skip and (fault.times is None or seen <= fault.skip + fault.times):
                    return fault
        return None


def main(arguments: list[str] | None = None) -> int:
    """Serve until interrupted; prints the endpoint."""
    parser = argparse.ArgumentParser(prog="python -m samite.checkpoint.store.sink", description="An S3 server in memory, on loopback.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--latency-ms", type=float, default=0.0)
    parser.add_argument("--connection-mbps", type=float, default=0.0, help="megabytes a second of each connection; 0 for no limit")
    parser.add_argument(
        "--key", action="append", default=[], metavar="KEY:SECRET", help="take only requests that are signed by this key; repeatable"
    )
    parser.add_argument("--any-parts", action="store_true", help="take uploads whose parts differ in size, as AWS does")
    found = parser.parse_args(arguments)
    sink = Sink(
        port=found.port,
        equal_parts=not found.any_parts,
        keys=dict(pair.split(":", 1) for pair in found.key) or None,
        shape=Shape(latency_s=found.latency_ms / 1e3, bytes_per_s=found.connection_mbps * 1e6),
    )
    sys.stdout.write(f"{sink.endpoint}\n")
    sys.stdout.flush()
    with contextlib.suppress(KeyboardInterrupt):
        sink.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
