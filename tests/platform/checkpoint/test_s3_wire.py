"""The wire below our S3 transport: every form an HTTP/1.1 answer may take, silence, a peer that hangs up, TLS; and sums that read each byte once."""

import contextlib
import secrets
import shutil
import socket
import ssl
import subprocess
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samite.checkpoint import checksum
from samite.checkpoint.checksum import Checksums, block_checksums, crc64
from samite.checkpoint.store.s3_wire import Connection


@contextlib.contextmanager
def peer(*answers: bytes | float, context: ssl.SSLContext | None = None):
    """A server of one connection: reads each request whole, then sends the next answer as it is, or keeps silent for so many seconds."""
    listener, requests = socket.create_server(("127.0.0.1", 0)), []

    def serve() -> None:
        with contextlib.suppress(OSError):
            connection, _ = listener.accept()
            connection = context.wrap_socket(connection, server_side=True) if context else connection
            for answer in answers:
                received = b""
                while b"\r\n\r\n" not in received:
                    received += connection.recv(65536)
                head, _, body = received.partition(b"\r\n\r\n")
                length = next((int(line[16:]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length: ")), 0)
                while len(body) < length:
                    body += connection.recv(1 << 20)
                requests.append((head, body))
                if isinstance(answer, bytes):
                    connection.sendall(answer)
                else:
                    time.sleep(answer)
            connection.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}", requests
    finally:
        listener.close()
        thread.join(5)


def get(host: str, target: memoryview | None = None, timeout_s: float = 5.0):
    connection = Connection("http", host, timeout_s=timeout_s)
    try:
        return connection.exchange("GET", "/k", [], memoryview(b""), target), connection.open
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("answer", "content", "kept"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", b"hello", True),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b"", True),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\nTrailer: t\r\n\r\n", b"hello", True),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello", b"hello", False),
        (b"HTTP/1.0 200 OK\r\n\r\nhello", b"hello", False),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b"", True),
    ],
)
def test_any_form_of_answer_is_read_whole_with_or_without_a_place_for_it(answer, content, kept):
    with peer(answer) as (host, _):
        reply, still_open = get(host)
    assert (reply.content, still_open) == (content, kept)
    with peer(answer) as (host, _):
        target = memoryview(bytearray(len(content)))
        reply, _ = get(host, target)
    if reply.status == 200:
        assert (bytes(target), reply.received, reply.content) == (content, len(content), b"")


def test_more_than_was_asked_for_and_less_are_told_and_not_kept():
    for sent, wanted in ((b"hello", 3), (b"hel", 5)):
        with peer(b"HTTP/1.1 206 Partial\r\nContent-Length: 5\r\n\r\n" + sent) as (host, _):
            target = memoryview(bytearray(wanted))
            reply, still_open = get(host, target)
            assert (reply.received, bytes(target)[:3], still_open) == (3, b"hel", False)


@pytest.mark.parametrize("answer", [b"", b"SSH-2.0-other\r\n\r\n", b"HTTP/1.1 500 No\r\nContent-Length: 9\r\n\r\ncut", b"HTTP/1.1 20"])
def test_what_is_no_whole_answer_is_an_error_and_closes(answer):
    with peer(answer) as (host, _), pytest.raises(OSError, match=r"connection ended|wanted an answer"):
        get(host)


def test_a_silent_peer_is_a_timeout_and_a_slow_one_is_not():
    with peer(1.5) as (host, _), pytest.raises(TimeoutError):
        get(host, timeout_s=0.3)
    listener = socket.create_server(("127.0.0.1", 0))

    def slowly() -> None:
        connection, _ = listener.accept()
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n")
        for _ in range(8):
            time.sleep(0.2)
            connection.sendall(b"x")
        connection.close()

    thread = threading.Thread(target=slowly, daemon=True)
    thread.start()
    target = memoryview(bytearray(8))
    reply, _ = get(f"127.0.0.1:{listener.getsockname()[1]}", target, timeout_s=0.6)
    assert (reply.received, bytes(target)) == (8, b"x" * 8)
    thread.join(5)
    listener.close()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_the_same_over_tls(tmp_path):
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=127.0.0.1"]
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-days", "2", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*command, *names], check=True, capture_output=True, timeout=30)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key)
    sent, back = secrets.token_bytes(3_000_017), secrets.token_bytes(2_000_003)
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(back) + back
    with peer(answer, context=server) as (host, requests):
        connection = Connection("https", host, timeout_s=5.0, context=ssl.create_default_context(cafile=str(certificate)))
        target = memoryview(bytearray(len(back)))
        reply = connection.exchange("PUT", "/k", [("x", "y")], memoryview(sent), target)
        assert (reply.received, bytes(target), connection.open) == (len(back), back, True)
        assert requests[0][1] == sent
        connection.close()
    with peer(1.5, context=server) as (host, _):
        connection = Connection("https", host, timeout_s=0.3, context=ssl.create_default_context(cafile=str(certificate)))
        with pytest.raises(TimeoutError):
            connection.exchange("GET", "/k", [], memoryview(b""))
        assert not connection.open


@given(st.binary(max_size=200), st.lists(st.tuples(st.integers(0, 200), st.integers(0, 200)), max_size=8), st.lists(st.integers(0, 200)))
def test_sums_of_any_ranges_are_those_of_their_bytes(data, ranges, borders):
    sums = Checksums(memoryview(data), [border for border in borders if border <= len(data)])
    for one, other in ranges:
        begin, end = sorted((min(one, len(data)), min(other, len(data))))
        assert sums.of(begin, end) == crc64(data[begin:end])
    assert sums.whole == crc64(data)


def test_parts_blocks_and_the_whole_read_each_byte_once(monkeypatch):
    monkeypatch.setattr(checksum, "BLOCK_BYTES", 1000)
    read: list[int] = []
    monkeypatch.setattr(checksum, "crc64", lambda data, previous=0: read.append(len(data)) or crc64(data, previous))
    data = memoryview(secrets.token_bytes(10_000))
    sums = Checksums(data, [*range(300, 9_700, 1000), 9_700])
    assert [sums.of(start, min(start + 1600, 10_000)) for start in range(0, 10_000, 1600)] == [
        crc64(data[start : start + 1600]) for start in range(0, 10_000, 1600)
    ]
    assert sums.blocks(300, 9_700) == block_checksums(data[300:9_700])
    assert sums.whole == crc64(data)
    assert sum(read) - 9_400 == 10_000  # block_checksums above read 9,400 more by itself
