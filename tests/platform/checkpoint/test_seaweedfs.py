"""The same store against a real S3 server: checksums are verified, conditions hold, refusals are refusals. Also S26: versioned buckets."""

import secrets
from concurrent.futures import ThreadPoolExecutor

import pytest

from samite.checkpoint import Catalog
from samite.checkpoint.checksum import crc64
from samite.checkpoint.retention import delete_checkpoint
from samite.checkpoint.store import MissingKeyError, StoreOptions, get_range, open_store
from samite.checkpoint.store.probe import probe
from samite.checkpoint.store.s3 import S3Store
from samite.cli.app import run
from samite.errors import NotAllowedError, TemporaryError

pytestmark = pytest.mark.network_tools


@pytest.fixture
def options(seaweed_endpoint) -> StoreOptions:
    return StoreOptions(endpoint=seaweed_endpoint, access_key="test-key", secret_key="test-secret", region="us-east-1", timeout_s=20)


@pytest.fixture
def store(options) -> S3Store:
    name = f"b-{secrets.token_hex(4)}"
    found = open_store(f"s3://{name}/run 1", options)
    found.client.create_bucket(Bucket=name)
    return found


def test_a_real_server_does_all_that_the_format_needs(store):
    report = probe(store)
    assert report.problems == ()
    content = secrets.token_bytes(3_000_000)
    store.put("ckpt/1/data/0.bin", content, crc64=crc64(content))
    assert get_range(store, "ckpt/1/data/0.bin", 1_000_000, 17) == content[1_000_000:1_000_017]
    assert store.head("ckpt/1/data/0.bin").size == 3_000_000
    assert store.head("missing") is None
    with pytest.raises(MissingKeyError):
        store.get("missing")
    assert list(store.children("ckpt/")) == ["1/"]


def test_the_server_refuses_bytes_that_changed_on_the_way(store):
    with pytest.raises(TemporaryError, match=r"400|409"):
        store.put("object", b"these bytes", crc64=crc64(b"other bytes"))
    assert store.head("object") is None


def test_parts_are_sent_in_parallel_and_the_whole_has_the_checksum_we_computed(store):
    parted = S3Store(store._bucket, "run 1", store._options, part_bytes=5 * 1024 * 1024)
    content = secrets.token_bytes(17 * 1024 * 1024 + 3)
    parted.put("large", content)
    assert store.get("large") == content
    found = store.head("large")
    assert found.crc64 in {None, crc64(content)}


def test_unfinished_uploads_of_dead_writers_are_swept_when_they_are_old_enough(store):
    store.client.create_multipart_upload(Bucket=store._bucket, Key="run 1/orphan")
    assert store.sweep(older_than_s=3600) == 0
    assert store.sweep(older_than_s=0) == 1
    assert store.client.list_multipart_uploads(Bucket=store._bucket).get("Uploads", []) == []


def test_of_sixteen_writers_exactly_one_commits(store):
    contents = [f"writer {number}".encode() for number in range(16)]
    with ThreadPoolExecutor(16) as pool:
        won = list(pool.map(lambda content: store.put_if_absent("ckpt/1/MANIFEST", content), contents))
    assert sum(won) == 1
    assert store.get("ckpt/1/MANIFEST") == contents[won.index(True)]


def test_without_the_right_to_list_nothing_is_taken_for_empty(store, options, seaweed_endpoint):
    narrow = StoreOptions(endpoint=seaweed_endpoint, access_key="nolist-key", secret_key="nolist-secret", region="us-east-1")
    refused = open_store(store.uri, narrow)
    with pytest.raises(NotAllowedError, match="s3:ListBucket"):
        Catalog(refused).newest_committed()
    report = probe(refused)
    with pytest.raises(NotAllowedError, match="s3:PutObject"):
        report.raise_if_unfit()
    wrong = StoreOptions(endpoint=seaweed_endpoint, access_key="test-key", secret_key="wrong", region="us-east-1")
    with pytest.raises(NotAllowedError, match="does not accept these credentials"):
        open_store(store.uri, wrong).get("k")


def test_a_versioned_bucket_is_probed_in_the_real_prefix_and_a_delete_marker_counts_as_absent(store):
    store.client.put_bucket_versioning(Bucket=store._bucket, VersioningConfiguration={"Status": "Enabled"})
    report = probe(store)
    assert report.problems == ()
    assert "versioning" in report.notes[0]
    contents = [f"writer {number}".encode() for number in range(16)]
    with ThreadPoolExecutor(16) as pool:
        won = list(pool.map(lambda content: store.put_if_absent("ckpt/00000001-1-00000000/MANIFEST", content), contents))
    assert sum(won) == 1
    delete_checkpoint(store, "00000001-1-00000000")
    assert store.head("ckpt/00000001-1-00000000/MANIFEST") is None
    assert list(store.children("ckpt/")) == []
    assert store.put_if_absent("ckpt/00000001-1-00000000/MANIFEST", b"again")


def test_a_manager_saves_to_a_real_server_and_walks_back_past_damage_at_rest(store):
    import torch

    from samite_workloads.checkpoint import CheckpointManager, CheckpointOptions

    torch.set_num_threads(1)
    saver = CheckpointManager(store, run_uid="run", epoch=1, options=CheckpointOptions(verify_on_save=True))
    for step in (1, 2):
        saver.save(step, {"w": torch.full((300_000,), float(step)), "b": torch.full((5, 7), step).bfloat16()}, {"cursor": step})
    first, second = (commit.checkpoint_id for commit in saver.wait(60))
    key = f"ckpt/{second}/data/00000-0.bin"
    content = bytearray(store.get(key))
    content[100_000] ^= 1
    store.put(key, content)
    targets = {"w": torch.zeros(300_000), "b": torch.zeros(5, 7, dtype=torch.bfloat16)}
    restored = saver.restore("latest", targets)
    assert (restored.checkpoint_id, restored.extra) == (first, {"cursor": 1})
    assert targets["w"].eq(1).all()
    assert targets["b"].eq(1).all()
    saver.close()


@pytest.mark.parametrize(
    ("key", "bucket", "code", "said"), [("nolist", "", 4, "s3:ListBucket"), ("test", "no-such-bucket", 5, "does not exist")]
)
def test_the_command_line_ends_with_the_code_of_what_storage_said(store, options, monkeypatch, capsys, key, bucket, code, said):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", f"{key}-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", f"{key}-secret")
    uri = f"s3://{bucket or store._bucket}/run 1"
    assert run(["checkpoints", "ls", uri, "--endpoint", options.endpoint]) == code
    assert said in capsys.readouterr().err


def test_storage_that_does_not_answer_is_11(monkeypatch, capsys):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    assert run(["checkpoints", "ls", "s3://b/run", "--endpoint", "http://127.0.0.1:9"]) == 11
    assert "did not answer" in capsys.readouterr().err
