"""Opening a corpus: damage is found and named, other URIs are copied once, images sit where they belong."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from samite.errors import NotFoundError, UsageError
from samite_workloads.data import Corpus, CorpusError, open_corpus


@pytest.fixture
def copy(corpus: Corpus, tmp_path: Path) -> Path:
    return shutil.copytree(corpus.folder, tmp_path / "copy")


def test_a_folder_a_path_and_a_file_uri_open_the_same_corpus(corpus: Corpus):
    opened = [open_corpus(place).digest for place in (corpus.folder, str(corpus.folder), corpus.folder.as_uri())]
    assert opened == [corpus.digest] * 3


def test_a_file_uri_may_be_percent_encoded_or_plain(corpus: Corpus, tmp_path: Path):
    folder = shutil.copytree(corpus.folder, tmp_path / "a corpus, ü")
    assert open_corpus(folder.as_uri()).digest == open_corpus(f"file://{folder}").digest == corpus.digest


def test_every_file_of_the_corpus_is_in_its_manifest(corpus: Corpus):
    found = {path.relative_to(corpus.folder).as_posix() for path in corpus.folder.rglob("*") if path.is_file()}
    assert found == {record.path for record in corpus.manifest.files()} | {"corpus.json"}


def test_one_flipped_bit_anywhere_is_found_and_named(copy: Path):
    for path in sorted(copy.rglob("*")):
        if path.is_dir() or path.stat().st_size == 0:
            continue
        content = path.read_bytes()
        path.write_bytes(content[:-3] + bytes([content[-3] ^ 1]) + content[-2:])
        with pytest.raises(CorpusError) as caught:
            open_corpus(copy, verify="full")
        assert path.name in str(caught.value)
        path.write_bytes(content)
    open_corpus(copy, verify="full")


@pytest.mark.parametrize("verify", ["full", "auto", "size"])
def test_a_cut_file_is_found_whatever_is_verified(copy: Path, verify: str):
    path = copy / "text" / "train.tokens"
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(CorpusError, match=r"train\.tokens: wanted \d+ bytes, found \d+"):
        open_corpus(copy, verify=verify)


def test_a_missing_file_is_found_and_named(copy: Path):
    (copy / "pictures" / "train.images").unlink()
    with pytest.raises(CorpusError, match=r"train\.images: No such file or directory; the corpus is incomplete"):
        open_corpus(copy)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "samite.corpus/v9"}', "\ufffd", '{"format": "samite.corpus/v1"}'])
def test_a_description_that_is_none_is_refused_by_name(copy: Path, text: str):
    (copy / "corpus.json").write_text(text)
    with pytest.raises(CorpusError, match=r"corpus\.json"):
        open_corpus(copy)


def test_an_edited_description_is_refused(copy: Path):
    document = json.loads((copy / "corpus.json").read_text())
    document["vocab_size"] += 1
    (copy / "corpus.json").write_text(json.dumps(document))
    with pytest.raises(CorpusError, match="digest does not fit"):
        open_corpus(copy)


@pytest.mark.parametrize("path", ["../outside", "/etc/passwd", "text/../../outside"])
def test_a_description_that_reaches_outside_its_folder_is_refused(copy: Path, path: str):
    document = json.loads((copy / "corpus.json").read_text())
    document["tokenizer"]["path"] = path
    (copy / "corpus.json").write_text(json.dumps(document))
    with pytest.raises(CorpusError, match="lies outside the corpus"):
        open_corpus(copy)


@pytest.mark.parametrize("uri", ["{}/nothing", "file://{}/nothing", "builtin:other"])
def test_nothing_is_said_to_be_there_where_nothing_is(tmp_path: Path, uri: str):
    with pytest.raises(NotFoundError):
        open_corpus(uri.format(tmp_path))


def test_documents_come_back_with_their_images(corpus: Corpus):
    split = corpus.splits["pictures"]["train"]
    for number in range(len(split)):
        document = split.document(number)
        assert len(document.pictures) == 1
        assert (document.tokens_L == corpus.special.media_placeholder).sum() == 1
        height, width, channels = document.pictures[0].shape
        header = f"image {width}x{height}"
        assert header in corpus.tokenizer.decode(document.tokens_L.tolist(), skip_special_tokens=False)
        assert channels in (1, 3)


def test_lengths_count_the_positions_of_images(corpus: Corpus):
    split = corpus.splits["pictures"]["train"]
    for patch in (1, 4, 14):
        lengths_N, has_images_N = split.lengths(patch)
        assert has_images_N.all()
        for number in range(len(split)):
            document = split.document(number)
            height, width, _ = document.pictures[0].shape
            side = 2 * patch
            assert lengths_N[number] == len(document.tokens_L) - 1 + -(-height // side) * -(-width // side)


def test_the_baseline_is_the_entropy_of_the_labels(corpus: Corpus):
    labels = []
    split = corpus.splits["text"]["train"]
    for number in range(len(split)):
        labels += split.document(number).tokens_L[1:].tolist()
    _, counts = np.unique(labels, return_counts=True)
    p = counts / counts.sum()
    assert corpus.manifest.sources["text"].splits["train"].unigram_nats["text"] == pytest.approx(-(p * np.log(p)).sum())


def test_the_held_out_baseline_is_finite_and_above_the_entropy(corpus: Corpus):
    for modality in ("text", "image_caption"):
        train, held_out = (corpus.manifest.baselines[split][modality] for split in ("train", "held_out"))
        assert 0 < train < held_out < np.log(corpus.vocab_size) + 1


def write_to_store(folder: Path, uri: str) -> None:
    from samite.checkpoint.store import open_store

    store = open_store(uri)
    for path in folder.rglob("*"):
        if path.is_file():
            store.put(path.relative_to(folder).as_posix(), path.read_bytes())


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SAMITE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture(scope="module")
def s3_endpoint() -> Iterator[str]:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(params=["memory", "fsspec", "s3"])
def remote(request: pytest.FixtureRequest, corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "s3":
        for name, value in {
            "AWS_ENDPOINT_URL": request.getfixturevalue("s3_endpoint"),
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
        }.items():
            monkeypatch.setenv(name, value)
        import boto3

        boto3.client("s3").create_bucket(Bucket="corpora")
        uri = f"s3://corpora/{tmp_path.name}"
        write_to_store(corpus.folder, uri)
        return uri
    if request.param == "memory":
        uri = f"memory://{tmp_path.name}-{request.param}"
        write_to_store(corpus.folder, uri)
        return uri
    return f"local://{shutil.copytree(corpus.folder, tmp_path / 'remote')}"


def test_a_remote_corpus_is_copied_once_and_opened_from_there(home: Path, remote: str, corpus: Corpus):
    first = open_corpus(remote)
    assert first.digest == corpus.digest
    assert first.folder.is_relative_to(home / "cache")
    before = {path: path.stat().st_mtime_ns for path in first.folder.rglob("*")}
    open_corpus(remote)
    assert before == {path: path.stat().st_mtime_ns for path in first.folder.rglob("*")}
    assert [path.name for path in first.folder.parent.iterdir()] == [first.folder.name]


def test_a_damaged_copy_is_fetched_again(home: Path, remote: str):
    folder = open_corpus(remote).folder
    (folder / "text" / "train.tokens").write_bytes(b"x")
    open_corpus(remote, verify="full")


def test_a_damaged_remote_leaves_no_copy_behind(home: Path, copy: Path):
    path = copy / "text" / "train.tokens"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    uri = f"memory://{copy.parent.name}-damaged"
    write_to_store(copy, uri)
    with pytest.raises(CorpusError, match="differs from its recorded sha256"):
        open_corpus(uri)
    assert list((home / "cache" / "corpora").iterdir()) == []


def test_an_incomplete_remote_is_said_to_be_incomplete(home: Path, copy: Path):
    (copy / "text" / "train.tokens").unlink()
    uri = f"memory://{copy.parent.name}-incomplete"
    write_to_store(copy, uri)
    with pytest.raises(CorpusError, match=r"text/train\.tokens is missing"):
        open_corpus(uri)


@pytest.mark.parametrize(("uri", "error"), [("memory://nothing-there", NotFoundError), ("s3://user@bucket/x", UsageError)])
def test_a_remote_that_is_none_is_refused(home: Path, uri: str, error: type[Exception]):
    with pytest.raises(error):
        open_corpus(uri)
