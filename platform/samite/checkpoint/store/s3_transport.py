"""Large bodies on the wire without a copy: botocore prepares, signs, retries and parses; between that, our own sender moves the bytes.

    client.put_object(Body=b"")  ─▶ endpoint, credentials, signature (UNSIGNED-PAYLOAD; the CRC64 header is signed) ─▶ before-send ─▶ Transport
                                                                                            s3_wire.Connection: sendmsg(view) / recv_into(view)

botocore's own path copies every body, reads it in pieces of 16 KiB and over plain http hashes it with SHA-256. Connections are kept and reused; where a
proxy stands between, or the switch is off, botocore sends the bodies itself.
"""

import contextlib
import os
import threading
import urllib.request
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from samite.checkpoint.store.s3_wire import Connection

if TYPE_CHECKING:
    import ssl

    from mypy_boto3_s3.client import S3Client

_IDLE_CONNECTIONS = 64
_DROPPED = frozenset({"expect", "content-length", "transfer-encoding", "host", "connection"})


@dataclass(slots=True)
class Cargo:
    """What one request carries: bytes to send, or a place for those that come back."""

    body: memoryview = memoryview(b"")  # noqa: RUF009  an empty view cannot be changed
    target: memoryview | None = None
    received: int = 0


class _Answer:
    """The body of an answer as botocore's parser reads it."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def stream(self) -> Iterator[bytes]:
        """All of it at once."""
        yield self._content

    def read(self, amount: int | None = None) -> bytes:
        """The next bytes."""
        taken = self._content if amount is None else self._content[:amount]
        self._content = self._content[len(taken) :]
        return taken

    def close(self) -> None:
        """Nothing is open."""


class Transport:
    """Sends the requests of one client that were announced with `carrying`; all others are left to botocore. Thread-safe."""

    def __init__(self, client: "S3Client", *, timeout_s: float, verify: bool) -> None:
        self._timeout_s = timeout_s
        self._verify = verify
        self._local = threading.local()
        self._lock = threading.Lock()
        self._idle: dict[tuple[str, str], list[Connection]] = {}
        self._context: ssl.SSLContext | None = None
        weakref.finalize(self, _close_all, self._idle)
        client.meta.events.register("before-send.s3", self._send)

    @contextlib.contextmanager
    def carrying(self, cargo: Cargo) -> Iterator[Cargo]:
        """Requests of this thread inside the block carry `cargo` (again at each retry)."""
        self._local.cargo = cargo
        try:
            yield cargo
        finally:
            self._local.cargo = None

    def _send(self, request: Any, **_: Any) -> Any:
        """botocore's before-send: the answer, or None to let botocore send it. Raises botocore's own connection errors."""
        from botocore.awsrequest import AWSResponse
        from botocore.exceptions import ConnectionClosedError, EndpointConnectionError, ReadTimeoutError

        cargo: Cargo | None = getattr(self._local, "cargo", None)
        if cargo is None:
            return None
        parts = urlsplit(request.url)
        path = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
        headers = [(name, _text(value)) for name, value in request.headers.items() if name.lower() not in _DROPPED]
        fresh = False
        while True:
            connection = None if fresh else self._take(parts.scheme, parts.netloc)
            reused = connection is not None
            try:
                if connection is None:
                    connection = self._connect(parts.scheme, parts.netloc)
            except OSError as error:
                raise EndpointConnectionError(endpoint_url=request.url, error=error) from error
            try:
                reply = connection.exchange(request.method, path, headers, cargo.body, cargo.target)
            except TimeoutError as error:
                raise ReadTimeoutError(endpoint_url=request.url, error=error) from error
            except (OSError, ValueError) as error:
                if reused:  # the server had closed it while it was idle: not a fault yet
                    fresh = True
                    continue
                raise ConnectionClosedError(endpoint_url=request.url, request=request, error=error) from error
            cargo.received = reply.received
            self._give_back(parts.scheme, parts.netloc, connection)
            return AWSResponse(request.url, reply.status, cast("Any", reply.headers), _Answer(reply.content))

    def _take(self, scheme: str, host: str) -> Connection | None:
        with self._lock:
            waiting = self._idle.get((scheme, host))
            return waiting.pop() if waiting else None

    def _give_back(self, scheme: str, host: str, connection: Connection) -> None:
        if not connection.open:
            return
        with self._lock:
            waiting = self._idle.setdefault((scheme, host), [])
            if len(waiting) < _IDLE_CONNECTIONS:
                waiting.append(connection)
                return
        connection.close()

    def _connect(self, scheme: str, host: str) -> Connection:
        return Connection(scheme, host, timeout_s=self._timeout_s, context=self._tls() if scheme == "https" else None)

    def _tls(self) -> "ssl.SSLContext":
        import ssl

        from botocore.httpsession import get_cert_path

        with self._lock:
            if self._context is None:
                if self._verify:
                    trusted = os.environ.get("AWS_CA_BUNDLE") or os.environ.get("REQUESTS_CA_BUNDLE") or get_cert_path(True)
                    self._context = ssl.create_default_context(cafile=trusted)
                else:
                    self._context = ssl._create_unverified_context()  # noqa: SLF001, S323  asked for by checkpoint.insecure
            return self._context


def _text(value: str | bytes) -> str:
    """botocore's headers are either."""
    return value if isinstance(value, str) else value.decode("latin-1")


def _close_all(idle: dict[tuple[str, str], list[Connection]]) -> None:
    """Close the connections of a transport that nobody uses any more."""
    for connections in idle.values():
        for connection in connections:
            connection.close()


def direct(endpoint: str) -> bool:
    """Whether no proxy of the environment stands before `endpoint`."""
    parts = urlsplit(endpoint)
    proxies = urllib.request.getproxies()
    return parts.scheme not in proxies or bool(urllib.request.proxy_bypass(parts.netloc))


def drain(body: Any, target: memoryview) -> int:
    """Fill `target` from boto3's stream as far as it goes."""
    done = 0
    while done < len(target):
        data = body.read(min(len(target) - done, 1 << 20))
        if not data:
            break
        target[done : done + len(data)] = data
        done += len(data)
    body.close()
    return done
