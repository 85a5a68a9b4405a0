"""What every backend must do, asked of each of them in the same words."""

import secrets
from concurrent.futures import ThreadPoolExecutor

import pytest

from samite.checkpoint.checksum import crc64
from samite.checkpoint.store import FileStore, MemoryStore, MissingKeyError, StoreOptions, get_range, open_store
from samite.checkpoint.store.fsspec_store import FsspecStore
from samite.checkpoint.store.probe import probe
from samite.errors import CheckpointDamagedError


@pytest.fixture(params=["memory", "file", "file_without_links", "fsspec_local", "fsspec_memory", "s3_moto"])
def store(request, tmp_path):
    match request.param:
        case "memory":
            return MemoryStore(f"memory://{secrets.token_hex(4)}")
        case "file":
            return FileStore(tmp_path / "a folder" / "x")
        case "file_without_links":
            found = FileStore(tmp_path / "x", durable=False)
            found.links = False
            return found
        case "fsspec_local":
            return FsspecStore(f"local://{tmp_path}/x")
        case "fsspec_memory":
            return FsspecStore(f"memory://{secrets.token_hex(4)}/x")
        case _:
            endpoint = request.getfixturevalue("moto_endpoint")
            options = StoreOptions(endpoint=endpoint, access_key="test", secret_key="test", region="us-east-1")
            found = open_store(f"s3://bucket-{secrets.token_hex(4)}/run 1+%2F", options)
            found._client = request.getfixturevalue("moto_client")
            found.client.create_bucket(Bucket=found._bucket)
            return found


@pytest.fixture(scope="module")
def moto_client(moto_endpoint):
    return open_store("s3://any", StoreOptions(endpoint=moto_endpoint, access_key="test", secret_key="test", region="us-east-1")).client


def test_what_is_put_is_read_back_whole_and_in_parts(store):
    content = secrets.token_bytes(70_000)
    store.put("a/b/c", content, crc64=crc64(content))
    assert store.get("a/b/c") == content
    assert get_range(store, "a/b/c", 100, 5000) == content[100:5100]
    assert get_range(store, "a/b/c", 69_999, 1) == content[-1:]
    assert store.head("a/b/c").size == 70_000


def test_put_replaces(store):
    store.put("key", b"first")
    before = store.head("key").etag
    store.put("key", b"the second")
    assert store.get("key") == b"the second"
    assert store.head("key").etag != before


def test_an_empty_object_is_an_object(store):
    store.put("empty", b"")
    assert store.get("empty") == b""
    assert store.head("empty").size == 0


def test_a_missing_key_is_a_fact(store):
    store.put("other", b"x")
    assert store.head("missing") is None
    for call in (lambda: store.get("missing"), lambda: get_range(store, "missing", 0, 1)):
        with pytest.raises(MissingKeyError, match="missing"):
            call()
    store.delete(["missing"])


def test_reading_past_the_end_is_damage(store):
    store.put("short", b"12345")
    for offset in (2, 5, 50):
        with pytest.raises(CheckpointDamagedError, match="short"):
            get_range(store, "short", offset, 10)


def test_create_once_keeps_the_first_and_knows_its_own(store):
    assert store.put_if_absent("once", b"first")
    assert not store.put_if_absent("once", b"second")
    assert store.put_if_absent("once", b"first")
    assert store.get("once") == b"first"


def test_of_sixteen_writers_exactly_one_creates(store):
    contents = [f"writer {number}".encode() for number in range(16)]
    with ThreadPoolExecutor(16) as pool:
        won = list(pool.map(lambda content: store.put_if_absent("race/MANIFEST", content), contents))
    assert sum(won) == 1
    assert store.get("race/MANIFEST") == contents[won.index(True)]


def test_compare_and_swap_replaces_only_what_was_seen(store):
    assert store.compare_and_swap("LATEST", b"1", None)
    assert not store.compare_and_swap("LATEST", b"2", None)
    seen = store.head("LATEST").etag
    store.put("LATEST", b"by another")
    assert not store.compare_and_swap("LATEST", b"3", seen)
    assert store.compare_and_swap("LATEST", b"4 and longer", store.head("LATEST").etag)
    assert store.get("LATEST") == b"4 and longer"


def test_listing_shows_what_is_there_and_no_neighbour(store):
    for key in ("ckpt/1/MANIFEST", "ckpt/1/data/0.bin", "ckpt/10/MANIFEST", "ckpt2/x", "top"):
        store.put(key, b"x" * len(key))
    assert [info.key for info in store.list("ckpt/1/")] == ["ckpt/1/MANIFEST", "ckpt/1/data/0.bin"]
    assert [info.size for info in store.list("ckpt/1/")] == [15, 17]
    assert list(store.children("ckpt/1/")) == ["MANIFEST", "data/"]
    assert list(store.children("ckpt/")) == ["1/", "10/"]
    assert list(store.children("")) == ["ckpt/", "ckpt2/", "top"]
    assert list(store.list("nothing/")) == list(store.children("nothing/")) == []


def test_deleted_keys_can_be_created_again(store):
    assert store.put_if_absent("ckpt/1/MANIFEST", b"first")
    store.delete(["ckpt/1/MANIFEST"])
    assert store.head("ckpt/1/MANIFEST") is None
    assert store.put_if_absent("ckpt/1/MANIFEST", b"second")


def test_the_probe_finds_it_fit_and_leaves_nothing(store):
    report = probe(store)
    assert report.problems == ()
    assert list(store.list("")) == []
