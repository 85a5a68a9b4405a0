"""Our S3 server in memory and our own transport against each other: every fault on the wire, and never a wrong byte (S7, S12, S23)."""

import gc
import hashlib
import http.client
import secrets
from concurrent.futures import ThreadPoolExecutor

import pytest

from samite.checkpoint.checksum import crc64
from samite.checkpoint.store import MissingKeyError, StoreOptions, get_range, open_store
from samite.checkpoint.store.probe import probe
from samite.checkpoint.store.retry import RetryingStore
from samite.checkpoint.store.s3 import S3Options, S3Store
from samite.checkpoint.store.s3_wire import Connection
from samite.checkpoint.store.sink import Break, Shape, Sink, SinkFault
from samite.errors import NotAllowedError, TemporaryError, UnreachableError

PART = 1024 * 1024


@pytest.fixture
def sink():
    with Sink() as server:
        yield server


def store_of(sink: Sink, **options) -> S3Store:
    settings = {"endpoint": sink.endpoint, "region": "us-east-1", "access_key": "a", "secret_key": "s", "timeout_s": 2.0, "connections": 4}
    return S3Store("bucket", "run 1", S3Options(**(settings | options)), part_bytes=PART)


def retrying(store, seconds: float = 20.0, errors=None) -> RetryingStore:
    import time

    return RetryingStore(store, time.monotonic() + seconds, on_retry=errors.append if errors is not None else None)


@pytest.mark.parametrize("zero_copy", [True, False])
def test_it_holds_checkpoints_as_a_real_server_does(sink, zero_copy):
    store = store_of(sink, zero_copy=zero_copy)
    report = probe(store)
    assert report.problems == ()
    assert [info.key for info in store.list("")] == []
    content = secrets.token_bytes(3 * PART + 17)
    connection = http.client.HTTPConnection(sink.endpoint.partition("://")[2])
    for _ in range(3):  # an answer to HEAD has no body, whatever its length says
        connection.request("HEAD", "/bucket/missing")
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (404, b"")
    connection.close()
    store.put("a b/+%2F", content)
    assert store.get("a b/+%2F") == content
    assert get_range(store, "a b/+%2F", PART - 1, 5) == content[PART - 1 : PART + 4]
    assert store.head("a b/+%2F").crc64 == crc64(content)
    with pytest.raises(MissingKeyError):
        get_range(store, "nothing", 0, 1)


@pytest.mark.parametrize("size", [0, 1, PART, PART + 1, 3 * PART, 3 * PART + 1])
def test_any_size_arrives_whole_in_equal_parts(sink, size):
    store, content = store_of(sink), secrets.token_bytes(size)
    store.put("k", content)
    assert hashlib.sha256(store.get("k")).digest() == hashlib.sha256(content).digest()
    lengths = [target for method, target in sink.requests if method == "PUT"]
    assert len(lengths) == max(1, -(-size // PART))


def test_a_small_object_is_cut_so_that_it_fills_its_connections(sink):
    store = S3Store(
        "bucket", "p", S3Options(endpoint=sink.endpoint, region="r", access_key="a", secret_key="s", connections=4, most_connections=4)
    )
    for megabytes, parts in ((16, 1), (17, 4), (40, 4), (200, 13)):
        sink.requests.clear()
        store.put("k", bytes(megabytes << 20))
        assert sum(method == "PUT" for method, _ in sink.requests) == parts


def test_more_connections_than_the_kernel_gives_at_once_still_send_every_byte(sink):
    store = store_of(sink)
    contents = [secrets.token_bytes(PART + number) for number in range(12)]
    with ThreadPoolExecutor(12) as pool:
        list(pool.map(lambda number: store.put(f"k{number}", contents[number]), range(12)))
        assert list(pool.map(lambda number: store.get(f"k{number}") == contents[number], range(12))) == [True] * 12


def test_a_part_that_fails_is_sent_again_by_itself(sink):
    sink.add(SinkFault(kind=Break.STATUS, method="PUT", target="*partNumber=3*", times=4))
    store_of(sink).put("k", secrets.token_bytes(5 * PART))
    parts = [target for method, target in sink.requests if method == "PUT"]
    assert len(parts) == 5 + 4
    assert sum(method == "POST" for method, _ in sink.requests) == 2


def test_a_part_that_stalls_is_sent_a_second_time_and_the_first_copy_that_arrives_wins(sink, monkeypatch):
    import time

    from samite.checkpoint.store import s3_parts

    monkeypatch.setattr(s3_parts, "_STRAGGLER_S", 0.3)
    sink.add(SinkFault(kind=Break.STALL, method="PUT", target="*partNumber=2*", times=1, seconds=6.0))
    content, began_s = secrets.token_bytes(8 * PART), time.monotonic()
    store_of(sink, timeout_s=20.0).put("k", content)
    assert time.monotonic() - began_s < 5
    assert store_of(sink).get("k") == content


def test_the_window_grows_while_that_helps_and_halves_when_storage_asks(sink):
    from samite.checkpoint.store.s3_parts import Window

    now_s = [0.0]
    window = Window(4, 16, clock=lambda: now_s[0])

    def rounds(seconds: float, count: int = 1) -> int:
        """Full windows of parts of 1000 bytes, each of which takes `seconds`."""
        for _ in range(count):
            at_once = window.limit
            for _ in range(at_once):
                window.enter()
            now_s[0] += seconds
            for _ in range(at_once):
                window.leave(1000)
        return window.limit

    assert rounds(1.0) == 8  # the first measurement is better than none
    assert rounds(2.0) == 4  # twice as many in twice the time: back to what was as good
    assert rounds(1.0, 20) == 4  # and left there
    now_s[0] += 60.0
    assert rounds(1.0) == 8  # until that was long ago
    assert rounds(1.0) == 16  # twice as many in the same time
    assert rounds(1.0) == 16  # no more than the most
    window.slow_down()
    assert rounds(1.0) == 8
    store = store_of(sink, connections=8)
    sink.add(SinkFault(kind=Break.STATUS, method="PUT", target="*partNumber=*", times=16))
    store.put("k", secrets.token_bytes(6 * PART))
    assert store._window.limit < 8


FAULTS = {
    "six answers of 503": SinkFault(kind=Break.STATUS, method="PUT", times=6),
    "six connections cut in the middle of a body": SinkFault(kind=Break.CUT, method="PUT", times=6),
    "three lost answers": SinkFault(kind=Break.LOST_REPLY, method="PUT", times=3),
    "a bit flipped on the way in": SinkFault(kind=Break.STATUS, method="PUT", times=1, status=400, code="BadDigest"),
    "500 at the end of an upload": SinkFault(
        kind=Break.STATUS, method="POST", target="*uploadId=*", times=3, status=500, code="InternalError"
    ),
    "a stalled part": SinkFault(kind=Break.STALL, method="PUT", times=1, seconds=4.0),
}


@pytest.mark.parametrize("name", list(FAULTS))
@pytest.mark.parametrize("zero_copy", [True, False])
def test_a_save_survives(sink, name, zero_copy):
    sink.add(FAULTS[name])
    content = secrets.token_bytes(3 * PART + 5)
    retrying(store_of(sink, zero_copy=zero_copy)).put("k", content)
    sink.clear()
    assert store_of(sink).get("k") == content


def test_a_bit_that_flips_on_the_way_is_refused_by_the_server_and_sent_again(sink):
    sink.add(SinkFault(kind=Break.FLIP, method="PUT", target="*partNumber=2*", times=1))
    errors: list = []
    content = secrets.token_bytes(3 * PART)
    retrying(store_of(sink), errors=errors).put("k", content)
    assert store_of(sink).get("k") == content
    assert any("BadDigest" in str(error) for error in errors)


@pytest.mark.parametrize("kind", [Break.TRUNCATE, Break.CUT, Break.LOST_REPLY])
def test_a_read_that_ends_early_is_repeated_and_never_half_a_block(sink, kind):
    content = secrets.token_bytes(2 * PART)
    store_of(sink).put("k", content)
    sink.add(SinkFault(kind=kind, method="GET", times=3))
    assert get_range(retrying(store_of(sink)), "k", 5, PART) == content[5 : 5 + PART]


def test_503_for_ever_ends_with_the_deadline_and_says_what_storage_said(sink):
    sink.add(SinkFault(kind=Break.STATUS, method="PUT"))
    with pytest.raises(TemporaryError, match="503 SlowDown"):
        retrying(store_of(sink), 1.5).put("k", secrets.token_bytes(3 * PART))


def test_credentials_that_expire_in_the_middle_of_a_save_are_a_refusal_and_no_retry(sink):
    sink.add(SinkFault(kind=Break.STATUS, method="PUT", target="*partNumber=*", skip=1, status=400, code="ExpiredToken"))
    with pytest.raises(NotAllowedError, match="have expired"):
        retrying(store_of(sink)).put("k", secrets.token_bytes(3 * PART))


def test_an_upload_that_fails_leaves_no_parts_and_one_that_dies_is_swept(sink):
    store = store_of(sink)
    sink.add(SinkFault(kind=Break.STATUS, method="PUT", target="*partNumber=2*", status=403, code="AccessDenied"))
    with pytest.raises(NotAllowedError):
        store.put("k", secrets.token_bytes(3 * PART))
    sink.clear()
    store.client.create_multipart_upload(Bucket="bucket", Key="run 1/orphan")
    assert (store.sweep(3600), store.sweep(0), store.sweep(0)) == (0, 1, 0)


def test_connections_are_kept_and_a_server_that_closed_them_meanwhile_is_no_fault(sink):
    store = store_of(sink)
    for number in range(5):
        store.put(f"k{number}", b"content")
    port = int(sink.endpoint.rpartition(":")[2])
    assert len(sink._open) == 1
    with sink._lock:
        held = list(sink._open)
    for connection in held:
        connection.shutdown(2)
    errors: list = []
    retrying(store, errors=errors).put("again", b"content")
    assert errors == []
    assert store.get("again") == b"content"
    assert port == int(sink.endpoint.rpartition(":")[2])


def test_a_server_that_refuses_before_it_has_read_the_body_is_understood():
    import socket
    import threading

    listener = socket.create_server(("127.0.0.1", 0))

    def refuse() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connection.recv(4096)
            body = b"<Error><Code>AccessDenied</Code><Message>not you</Message></Error>"
            connection.sendall(b"HTTP/1.1 403 Forbidden\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(1 << 20):
                pass
            connection.close()

    thread = threading.Thread(target=refuse, daemon=True)
    thread.start()
    options = S3Options(endpoint=f"http://127.0.0.1:{listener.getsockname()[1]}", region="r", access_key="a", secret_key="s", timeout_s=3)
    with pytest.raises(NotAllowedError, match="s3:PutObject"):
        S3Store("bucket", "p", options).put("k", bytes(8 * PART))
    listener.close()


def test_a_port_where_nobody_listens_and_one_that_never_answers_are_unreachable(sink):
    nobody = S3Options(endpoint="http://127.0.0.1:9", region="r", access_key="a", secret_key="s", timeout_s=1)
    with pytest.raises(UnreachableError):
        S3Store("b", "p", nobody).put("k", b"x")
    sink.add(SinkFault(kind=Break.STALL, seconds=30.0))
    with pytest.raises(UnreachableError):
        store_of(sink, timeout_s=0.3).put("k", b"x")


def test_a_proxy_in_the_environment_leaves_the_bodies_to_boto3(sink, monkeypatch):
    monkeypatch.setenv("http_proxy", sink.endpoint)
    monkeypatch.setenv("no_proxy", "")
    store = store_of(sink)
    assert store.client is not None
    assert store._transport is None
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    store = store_of(sink)
    assert store.client is not None
    assert store._transport is not None


def test_a_store_that_goes_closes_its_connections(sink):
    store = store_of(sink)
    store.put("k", b"x")
    transport = store._transport
    kept = [one for ones in transport._idle.values() for one in ones]
    assert len(kept) == 1
    del store, transport
    gc.collect()
    assert all(isinstance(one, Connection) and not one.open for one in kept)


def test_shaping_is_what_it_says():
    import time

    with Sink(shape=Shape(latency_s=0.05, bytes_per_s=10e6)) as server:
        store = open_store("s3://b/p", StoreOptions(endpoint=server.endpoint, access_key="a", secret_key="s", region="r"))
        began_s = time.monotonic()
        store.put("k", bytes(2_000_000))
        assert time.monotonic() - began_s > 0.2
