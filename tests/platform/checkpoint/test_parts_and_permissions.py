"""Uploads of any size in at most 10,000 equal parts (S12), and storage that refuses to say what is there, at the start and on resume (S7)."""

import secrets
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samite.checkpoint import Catalog
from samite.checkpoint.store import MissingKeyError
from samite.checkpoint.store import s3 as s3_module
from samite.checkpoint.store.probe import probe
from samite.checkpoint.store.retry import RetryingStore
from samite.checkpoint.store.s3 import S3Options, S3Store
from samite.checkpoint.store.sink import Break, Sink, SinkFault
from samite.errors import NotAllowedError, SamiteError

MIB = 1024 * 1024


@pytest.fixture
def sink():
    with Sink() as server:
        yield server


def store_of(endpoint: str, *, part_bytes: int = 16 * MIB, connections: int = 4) -> S3Store:
    options = S3Options(
        endpoint=endpoint, region="r", access_key="a", secret_key="s", timeout_s=5.0, connections=connections, most_connections=32
    )
    return S3Store("bucket", "run", options, part_bytes=part_bytes)


@given(st.integers(1, 5 * 1024**4), st.integers(5 * MIB, 64 * MIB), st.integers(1, 32))
def test_no_size_up_to_the_largest_object_needs_more_than_ten_thousand_parts_or_ones_that_s3_refuses(size, part_bytes, connections):
    found = store_of("http://127.0.0.1:1", part_bytes=part_bytes, connections=connections)._part_size(size)
    assert -(-size // found) <= 10_000
    assert 5 * MIB <= found <= 5 * 1024 * MIB


def part_numbers(sink: Sink) -> dict[str, list[int]]:
    """Upload id -> its part numbers, in order of arrival."""
    found: dict[str, list[int]] = {}
    for method, target in sink.requests:
        words = dict(word.partition("=")[::2] for word in target.partition("?")[2].split("&"))
        if method == "PUT" and "partNumber" in words:
            found.setdefault(words["uploadId"], []).append(int(words["partNumber"]))
    return found


@pytest.mark.parametrize("size", [100 * 64, 100 * 64 + 1, 1013 * 64 - 1, 10_007 * 64 + 13])
def test_a_part_size_that_would_need_too_many_parts_grows_and_the_parts_stay_equal(sink, monkeypatch, size: int):
    monkeypatch.setattr(s3_module, "SMALLEST_PART_BYTES", 1)
    monkeypatch.setattr(s3_module, "MOST_PARTS", 100)
    sink.objects.most_parts = 100
    store, content = store_of(sink.endpoint, part_bytes=64), secrets.token_bytes(size)
    store.put("k", content)
    assert store.get("k") == content
    (numbers,) = part_numbers(sink).values()
    assert sorted(numbers) == list(range(1, len(numbers) + 1))
    assert len(numbers) <= 100
    sizes = [len(piece) for piece in sink.objects.stored["bucket", "run/k"].pieces]
    assert len(set(sizes[:-1])) <= 1
    assert sizes[-1] <= sizes[0]


def test_the_server_itself_refuses_a_part_beyond_the_last(sink):
    boto = store_of(sink.endpoint).client
    upload = boto.create_multipart_upload(Bucket="bucket", Key="k")["UploadId"]
    for number in (0, 10_001):
        with pytest.raises(boto.exceptions.ClientError, match="InvalidArgument"):
            boto.upload_part(Bucket="bucket", Key="k", UploadId=upload, PartNumber=number, Body=b"x")


def test_a_second_try_that_splits_differently_is_an_upload_of_its_own_and_nothing_of_the_first_is_left(sink, monkeypatch):
    monkeypatch.setattr(s3_module, "SMALLEST_PART_BYTES", 1000)
    sink.add(SinkFault(kind=Break.STATUS, method="POST", target="*uploadId*", times=3, status=503))
    store, content = store_of(sink.endpoint, part_bytes=300_000), secrets.token_bytes(1_000_003)
    splits = iter([70_000, 120_000, 90_000, 250_000, 110_000])
    monkeypatch.setattr(store, "_part_size", lambda _: next(splits))
    RetryingStore(store, time.monotonic() + 20).put("k", content)
    assert store.get("k") == content
    counts = [len(numbers) for numbers in part_numbers(sink).values()]
    assert len(counts) >= 2
    assert len(set(counts)) >= 2
    sizes = {len(piece) for piece in sink.objects.stored["bucket", "run/k"].pieces[:-1]}
    assert len(sizes) == 1
    assert store.sweep(0.0) == 0, "every upload that failed was aborted"


def questions():
    return {
        "list": lambda store: Catalog(store).list(),
        "newest": lambda store: Catalog(store).newest_committed(),
        "ever": lambda store: Catalog(store).ever_committed(),
        "head of a key that is not there": lambda store: store.head("ckpt/x/MANIFEST"),
        "get of a key that is not there": lambda store: store.get("LATEST"),
        "range of a key that is not there": lambda store: store.read_into("LATEST", 0, memoryview(bytearray(4))),
    }


@pytest.mark.parametrize("question", list(questions()))
def test_without_the_right_to_list_no_question_is_answered_with_nothing(sink, question: str):
    sink.objects.may_list = False
    with pytest.raises(NotAllowedError, match="does not say that nothing is there") as refused:
        questions()[question](store_of(sink.endpoint))
    assert not isinstance(refused.value, MissingKeyError)


def test_the_probe_before_training_names_the_right_to_list_and_writes_no_checkpoint(sink):
    sink.objects.may_list = False
    report = probe(store_of(sink.endpoint))
    assert any("s3:ListBucket" in str(problem) for problem in report.problems)
    with pytest.raises(NotAllowedError, match="s3:ListBucket"):
        report.raise_if_unfit()


@pytest.mark.parametrize(
    ("status", "code"), [(403, "AccessDenied"), (400, "ExpiredToken"), (403, "InvalidAccessKeyId"), (404, "NoSuchBucket")]
)
def test_a_refusal_of_the_listing_alone_is_never_an_empty_place(sink, status: int, code: str):
    store = store_of(sink.endpoint)
    store.put("ckpt/x/data", b"1")
    sink.add(SinkFault(kind=Break.STATUS, method="GET", target="bucket/?*", status=status, code=code))
    for question in ("list", "newest", "ever"):
        with pytest.raises(SamiteError) as refused:
            questions()[question](store)
        assert not isinstance(refused.value, MissingKeyError)
