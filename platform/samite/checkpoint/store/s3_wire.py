"""One HTTP/1.1 connection that moves large bodies with few system calls and no copy: what `s3_transport` sends requests over.

A body leaves in one `sendmsg` that returns when the kernel has all of it, and an answer's bytes arrive in their place by `MSG_WAITALL`, so that a part of
16 MiB wakes this process a handful of times and not hundreds. Silence is bounded by the kernel (SO_SNDTIMEO, SO_RCVTIMEO), which counts from
the last byte that moved. Over TLS, where OpenSSL stands between, Python's own time limit and slices of 1 MiB take their place.
"""

import contextlib
import socket
import ssl
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_SLICE_BYTES = 1024 * 1024
_HEAD_BYTES = 64 * 1024
_LONGEST_HEAD_BYTES = 1024 * 1024
CONNECT_S = 5.0


class WireError(OSError):
    """The peer broke HTTP or hung up in the middle."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """One answer. `content` is empty where the body went into the target; `received` says how much of it came."""

    status: int
    headers: Mapping[str, str]
    content: bytes
    received: int


class Connection:
    """One kept connection to `host` (`name` or `name:port`). For one thread at a time.

    `exchange` raises TimeoutError after `timeout_s` of silence, OSError if the connection breaks; the connection is then closed.
    """

    def __init__(self, scheme: str, host: str, *, timeout_s: float, context: ssl.SSLContext | None = None) -> None:
        name, _, port = host.rpartition(":") if host.rpartition(":")[2].isdigit() else (host, "", "")
        name = name.strip("[]")
        plain = socket.create_connection((name, int(port or (443 if scheme == "https" else 80))), timeout=CONNECT_S)
        self.open = True
        self._host = host
        self._encrypted = context is not None
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if context is None:
                limit = struct.pack("ll", int(timeout_s), int(timeout_s % 1 * 1e6))
                plain.settimeout(None)
                plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
                plain.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
                self._socket = plain
            else:
                self._socket = context.wrap_socket(plain, server_hostname=name)
                self._socket.settimeout(timeout_s)
        except BaseException:
            plain.close()
            raise

    def close(self) -> None:
        """Hang up."""
        self.open = False
        with contextlib.suppress(OSError):
            self._socket.close()

    def exchange(
        self, method: str, path: str, headers: Iterable[tuple[str, str]], body: memoryview, target: memoryview | None = None
    ) -> Reply:
        """Send one request and read its answer, into `target` if that is given and the answer is 200 or 206."""
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self._host}", *(f"{name}: {value}" for name, value in headers)]
        if method in {"PUT", "POST"}:
            lines.append(f"Content-Length: {len(body)}")
        try:
            try:
                self._send("\r\n".join([*lines, "", ""]).encode("latin-1"), body)
            except (BrokenPipeError, ConnectionResetError):  # a server that refuses may answer before it has read everything, and hang up
                reply = self._receive(method, target)
                self.close()
                return reply
            return self._receive(method, target)
        except BlockingIOError as error:
            self.close()
            raise TimeoutError("no byte moved") from error
        except BaseException:
            self.close()
            raise

    def _send(self, head: bytes, body: memoryview) -> None:
        if self._encrypted:
            self._socket.sendall(head)
            for start in range(0, len(body), _SLICE_BYTES):
                self._socket.sendall(body[start : start + _SLICE_BYTES])
            return
        sent = self._socket.sendmsg([head, body])
        while sent < len(head):
            sent += self._socket.sendmsg([head[sent:], body])
        sent -= len(head)
        while sent < len(body):
            sent += self._socket.send(body[sent:])

    def _receive(self, method: str, target: memoryview | None) -> Reply:
        status, headers, rest = self._head()
        while 100 <= status < 200:
            status, headers, rest = self._head(rest)
        received, content = 0, b""
        lower = {name.lower(): value for name, value in headers.items()}
        chunked = "chunked" in lower.get("transfer-encoding", "").lower()
        length = None if chunked or "content-length" not in lower else int(lower["content-length"])
        if method == "HEAD" or status in {204, 304}:
            length, chunked = 0, False
        if chunked:
            content = self._chunks(rest)
        elif length is None:
            content = self._until_closed(rest)
        elif target is not None and status in {200, 206}:
            received = self._fill(target[:length], rest)
            if received < length:
                self.close()  # cut short, or more came than was asked for and is not read
        else:
            place = memoryview(bytearray(length))
            if self._fill(place, rest) < length:
                raise WireError("the connection ended in the middle of an answer")
            content = bytes(place)
        if target is not None and status in {200, 206} and content:
            received = min(len(content), len(target))
            target[:received] = content[:received]
            content = b""
        if lower.get("connection", "").lower() == "close":
            self.close()
        return Reply(status=status, headers=headers, content=content, received=received)

    def _head(self, rest: bytes = b"") -> tuple[int, dict[str, str], bytes]:
        while b"\r\n\r\n" not in rest:
            more = self._socket.recv(_HEAD_BYTES)
            if not more or len(rest) > _LONGEST_HEAD_BYTES:
                raise WireError("the connection ended before an answer")
            rest += more
        head, _, rest = rest.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        version, _, words = first.partition(" ")
        if not version.startswith("HTTP/1.") or not words[:3].isdigit():
            raise WireError(f"wanted an answer in HTTP/1.1, found {first[:80]!r}")
        headers: dict[str, str] = {}
        for name, _, value in (line.partition(":") for line in lines):
            headers[name.strip()] = f"{headers[name.strip()]}, {value.strip()}" if name.strip() in headers else value.strip()
        if version == "HTTP/1.0":
            headers.setdefault("Connection", "close")
        return int(words[:3]), headers, rest

    def _fill(self, target: memoryview, rest: bytes) -> int:
        """Bytes put into `target`; fewer than it holds only if the connection ended."""
        done = min(len(rest), len(target))
        target[:done] = rest[:done]
        flags = 0 if self._encrypted else socket.MSG_WAITALL
        while done < len(target):
            count = self._socket.recv_into(target[done:], 0, flags)
            if not count:
                self.close()
                break
            done += count
        return done

    def _chunks(self, rest: bytes) -> bytes:
        content = bytearray()
        while True:
            rest = self._line(rest)
            size_text, _, rest = rest.partition(b"\r\n")
            size = int(size_text.partition(b";")[0], 16)
            if size == 0:
                while True:  # trailers, up to an empty line
                    rest = self._line(rest)
                    line, _, rest = rest.partition(b"\r\n")
                    if not line:
                        return bytes(content)
            place = memoryview(bytearray(size + 2))
            if self._fill(place, rest) < size + 2:
                raise WireError("the connection ended in the middle of an answer")
            content += place[:size]
            rest = rest[size + 2 :]

    def _line(self, rest: bytes) -> bytes:
        while b"\r\n" not in rest:
            more = self._socket.recv(_HEAD_BYTES)
            if not more:
                raise WireError("the connection ended in the middle of an answer")
            rest += more
        return rest

    def _until_closed(self, rest: bytes) -> bytes:
        content = bytearray(rest)
        while more := self._socket.recv(_HEAD_BYTES):
            content += more
        self.close()
        return bytes(content)
