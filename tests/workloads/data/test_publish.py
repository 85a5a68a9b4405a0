"""A corpus on its way to shared storage and back."""

from pathlib import Path

import pytest

from samite.checkpoint.store import open_store
from samite.errors import ConflictError
from samite_workloads.data import open_corpus, prepare
from samite_workloads.data.documents import Document, MemorySource
from samite_workloads.data.layout import MANIFEST_NAME, CorpusError
from samite_workloads.data.publish import publish


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SAMITE_HOME", str(tmp_path / "home"))
    return make_corpus(tmp_path / "corpus", "silk")


def make_corpus(folder: Path, word: str) -> Path:
    texts = [Document(parts=(f"{word} {number} " * 20,), origin=f"text:{number}") for number in range(60)]
    return prepare(folder, [MemorySource(texts, name="text")], vocab_size=300, held_out_fraction=0.1).folder


def test_what_was_pushed_is_opened_elsewhere_with_the_same_digest(corpus: Path, tmp_path: Path):
    seen: list[tuple[int, int]] = []
    assert publish(corpus, f"memory://{tmp_path.name}", progress=lambda sent, total: seen.append((sent, total)))
    assert open_corpus(f"memory://{tmp_path.name}").digest == open_corpus(str(corpus)).digest
    assert seen[-1][0] == seen[-1][1] > 0


def test_pushing_again_sends_nothing(corpus: Path, tmp_path: Path):
    uri = (tmp_path / "shared").as_uri()
    publish(corpus, uri)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "shared").rglob("*")}
    assert not publish(corpus, uri)
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "shared").rglob("*")}


def test_another_corpus_at_the_same_place_is_refused_and_what_is_there_stays(corpus: Path, tmp_path: Path):
    uri = (tmp_path / "shared").as_uri()
    publish(corpus, uri)
    with pytest.raises(ConflictError, match="choose another URI"):
        publish(make_corpus(tmp_path / "other", "gold"), uri)
    assert open_corpus(uri).digest == open_corpus(str(corpus)).digest


def test_a_copy_that_was_interrupted_is_nothing_until_it_is_finished(corpus: Path, tmp_path: Path):
    uri = (tmp_path / "shared").as_uri()

    def pull_the_plug(sent: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        publish(corpus, uri, progress=pull_the_plug)
    assert open_store(uri).head(MANIFEST_NAME) is None
    assert publish(corpus, uri)
    assert open_corpus(uri).digest == open_corpus(str(corpus)).digest


def test_a_damaged_folder_is_never_sent(corpus: Path, tmp_path: Path):
    shard = corpus / "text" / "train.tokens"
    shard.write_bytes(shard.read_bytes()[:-1] + b"x")
    with pytest.raises(CorpusError):
        publish(corpus, (tmp_path / "shared").as_uri())
    assert not (tmp_path / "shared").exists()
