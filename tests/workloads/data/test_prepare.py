"""Preparing a corpus: deterministic, done once, whole or not at all."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from samite.errors import ConflictError
from samite_workloads.data import CorpusError, Manifest, open_corpus, prepare
from samite_workloads.data.documents import Document, MemorySource
from samite_workloads.data.prepare import Progress

TEXTS = ["the loom and the thread " * 20, "six threads make samite\n" * 9, "", "ünïcode 日本語 🧵 " * 5]


def source(texts: list[str] = TEXTS, name: str = "text") -> MemorySource:
    return MemorySource([Document(parts=(text,), origin=str(number)) for number, text in enumerate(texts)], name=name)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_the_same_inputs_give_the_same_bytes(tmp_path: Path):
    first = prepare(tmp_path / "a", [source()], vocab_size=280)
    second = prepare(tmp_path / "b", [source()], vocab_size=280)
    assert first.manifest.digest == second.manifest.digest
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


@pytest.mark.parametrize("changed", [{"vocab_size": 281}, {"texts": [*TEXTS, "one more"]}, {"name": "other"}])
def test_other_inputs_give_another_digest(tmp_path: Path, changed: dict):
    first = prepare(tmp_path / "a", [source()], vocab_size=280)
    vocab_size = changed.pop("vocab_size", 280)
    second = prepare(tmp_path / "b", [source(**changed)], vocab_size=vocab_size)
    assert first.manifest.digest != second.manifest.digest


def test_a_second_preparation_is_instant_and_touches_nothing(tmp_path: Path):
    prepare(tmp_path / "corpus", [source()], vocab_size=280)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "corpus").rglob("*")}
    again = prepare(tmp_path / "corpus", [source()], vocab_size=280)
    assert again.reused
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "corpus").rglob("*")}
    assert names(tmp_path) == ["corpus"]


def test_another_corpus_is_replaced_only_by_force(tmp_path: Path):
    first = prepare(tmp_path / "corpus", [source()], vocab_size=280)
    with pytest.raises(ConflictError, match="holds another corpus"):
        prepare(tmp_path / "corpus", [source(["other"])], vocab_size=280)
    assert open_corpus(tmp_path / "corpus").digest == first.manifest.digest
    second = prepare(tmp_path / "corpus", [source(["other"])], vocab_size=280, force=True)
    assert open_corpus(tmp_path / "corpus").digest == second.manifest.digest
    assert names(tmp_path) == ["corpus"]


def test_a_corpus_behind_a_link_is_replaced_where_it_lies(tmp_path: Path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    prepare(tmp_path / "link" / "corpus", [source()], vocab_size=280)
    (tmp_path / "direct").symlink_to(tmp_path / "disk" / "corpus")
    second = prepare(tmp_path / "direct", [source(["other"])], vocab_size=280, force=True)
    assert open_corpus(tmp_path / "disk" / "corpus").digest == second.manifest.digest
    assert (tmp_path / "direct").is_symlink()
    assert names(tmp_path / "disk") == ["corpus"]


def test_a_folder_with_other_things_in_it_is_left_alone(tmp_path: Path):
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "thesis.tex").write_text("years of work")
    with pytest.raises(ConflictError, match="is not a corpus"):
        prepare(tmp_path / "corpus", [source()], vocab_size=280)
    assert (tmp_path / "corpus" / "thesis.tex").read_text() == "years of work"


def test_an_empty_folder_is_filled(tmp_path: Path):
    (tmp_path / "corpus").mkdir()
    assert not prepare(tmp_path / "corpus", [source()], vocab_size=280).reused


def test_a_damaged_corpus_of_the_same_recipe_is_not_taken_for_done(tmp_path: Path):
    prepare(tmp_path / "corpus", [source()], vocab_size=280)
    (tmp_path / "corpus" / "text" / "train.tokens").write_bytes(b"")
    assert not prepare(tmp_path / "corpus", [source()], vocab_size=280, force=True).reused
    open_corpus(tmp_path / "corpus")


class Interrupted(MemorySource):
    def documents(self, skipped):
        yield from list(super().documents(skipped))[:2]
        raise KeyboardInterrupt


def test_an_interrupt_leaves_nothing_half_made(tmp_path: Path):
    documents = [Document(parts=(text,), origin="") for text in TEXTS]
    with pytest.raises(KeyboardInterrupt):
        prepare(tmp_path / "corpus", [Interrupted(documents, name="text")], vocab_size=280)
    assert names(tmp_path) == []


def test_an_interrupt_of_a_forced_replacement_keeps_the_old_corpus(tmp_path: Path):
    first = prepare(tmp_path / "corpus", [source()], vocab_size=280)
    documents = [Document(parts=(text,), origin="") for text in ["x", "y", "z"]]
    with pytest.raises(KeyboardInterrupt):
        prepare(tmp_path / "corpus", [Interrupted(documents, name="text")], vocab_size=280, force=True)
    assert open_corpus(tmp_path / "corpus").digest == first.manifest.digest
    assert names(tmp_path) == ["corpus"]


CHILD = """
import sys, time
from pathlib import Path
from samite_workloads.data import prepare
from samite_workloads.data.documents import Document, MemorySource

class Slow(MemorySource):
    def documents(self, skipped):
        for document in super().documents(skipped):
            print("document", flush=True)
            time.sleep(float(sys.argv[2]))
            yield document

texts = [f"document {n} of silk" for n in range(20)]
source = Slow([Document(parts=(t,), origin=t) for t in texts], name="text")
print("digest", prepare(Path(sys.argv[1]), [source], vocab_size=270).manifest.digest, flush=True)
"""


def child(folder: Path, pause_s: float, **environment: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(folder), str(pause_s)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def digest_of(process: subprocess.Popen) -> tuple[str, int]:
    """(digest, documents read) of a finished child."""
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    lines = output.splitlines()
    return lines[-1].split()[1], lines.count("document")


@pytest.mark.timeout(280)
def test_concurrent_preparations_make_the_corpus_once(tmp_path: Path):
    processes = [child(tmp_path / "corpus", 0.02) for _ in range(4)]
    results = [digest_of(process) for process in processes]
    assert len({digest for digest, _ in results}) == 1
    assert sorted(read for _, read in results) == [0, 0, 0, 40]
    assert names(tmp_path) == ["corpus"]
    open_corpus(tmp_path / "corpus", verify="full")


@pytest.mark.timeout(280)
def test_a_killed_preparation_is_taken_over_and_cleaned_up(tmp_path: Path):
    killed = child(tmp_path / "corpus", 0.2)
    assert killed.stdout is not None
    killed.stdout.readline()
    waiting = child(tmp_path / "corpus", 0.0)
    time.sleep(1)
    killed.send_signal(signal.SIGKILL)
    killed.wait(timeout=30)
    killed.stdout.close()
    digest, read = digest_of(waiting)
    assert read == 40
    assert open_corpus(tmp_path / "corpus").digest == digest
    assert names(tmp_path) == ["corpus"]


@pytest.mark.timeout(280)
def test_the_digest_does_not_depend_on_threads_or_hash_seeds(tmp_path: Path):
    settings = [{"PYTHONHASHSEED": "1", "RAYON_NUM_THREADS": "1"}, {"PYTHONHASHSEED": "2", "RAYON_NUM_THREADS": "4"}]
    processes = [child(tmp_path / str(number), 0.0, **setting) for number, setting in enumerate(settings)]
    assert len({digest_of(process)[0] for process in processes}) == 1


def test_progress_names_every_phase(tmp_path: Path):
    seen: list[Progress] = []
    prepare(tmp_path / "corpus", [source()], vocab_size=280, progress=seen.append)
    phases = list(dict.fromkeys(progress.phase for progress in seen))
    assert phases == ["reading text for the tokenizer", "training the tokenizer", "tokenizing text"]
    assert seen[-1].documents == len(TEXTS)
    assert seen[-1].tokens > 0


@pytest.mark.parametrize(
    ("sources", "words"),
    [
        ([], "no source given"),
        ([source(), source()], "two sources are named 'text'"),
        ([source(name="a/b")], "source name 'a/b'"),
        ([source(name="../x")], "source name '../x'"),
        ([source([])], "source text: no document to read"),
    ],
)
def test_sources_that_cannot_be_are_refused(tmp_path: Path, sources: list, words: str):
    with pytest.raises(CorpusError) as caught:
        prepare(tmp_path / "corpus", sources, vocab_size=280)
    assert words in str(caught.value)
    assert names(tmp_path) == []


def test_a_vocabulary_below_the_bytes_is_refused(tmp_path: Path):
    with pytest.raises(CorpusError, match="vocabulary of 100 is too small: bytes and special tokens alone need 262"):
        prepare(tmp_path / "corpus", [source()], vocab_size=100)


def test_a_uri_is_refused_as_a_target(tmp_path: Path):
    with pytest.raises(CorpusError, match="prepared in a local folder"):
        prepare(Path("s3://bucket/corpus"), [source()])


def test_an_unwritable_place_is_said_as_it_is(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CorpusError, match="was not made"):
        prepare(tmp_path / "file" / "corpus", [source()], vocab_size=280)


def test_a_corpus_of_one_document_has_it_for_training(tmp_path: Path):
    for number in range(40):
        folder = tmp_path / str(number)
        prepare(folder, [source([f"only document {number}"])], vocab_size=270, held_out_fraction=0.5)
        split = open_corpus(folder).splits["text"]
        assert (len(split["train"]), len(split["held_out"])) == (1, 0)


def test_a_tokenizer_of_the_users_is_taken_as_it_is(tmp_path: Path):
    first = prepare(tmp_path / "a", [source()], vocab_size=280)
    second = prepare(tmp_path / "b", [source(["quite another text"])], tokenizer_file=tmp_path / "a" / "tokenizer.json")
    assert second.manifest.tokenizer.sha256 == first.manifest.tokenizer.sha256
    assert second.manifest.vocab_size == 280


@pytest.mark.parametrize(("text", "words"), [("{}", "not a tokenizers JSON file"), (None, "cannot read the tokenizer")])
def test_a_tokenizer_file_that_is_none_is_refused_by_name(tmp_path: Path, text: str | None, words: str):
    if text is not None:
        (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(CorpusError, match=words) as caught:
        prepare(tmp_path / "corpus", [source()], tokenizer_file=tmp_path / "tokenizer.json")
    assert str(tmp_path / "tokenizer.json") in str(caught.value)


def test_large_vocabularies_are_stored_in_four_bytes(tmp_path: Path):
    from tokenizers import Tokenizer

    prepare(tmp_path / "a", [source()], vocab_size=280)
    tokenizer = Tokenizer.from_file(str(tmp_path / "a" / "tokenizer.json"))
    tokenizer.add_tokens([f"<extra {number}>" for number in range(66_000)])
    tokenizer.save(str(tmp_path / "big.json"))
    manifest = prepare(tmp_path / "b", [source(["<extra 65999> and text"])], tokenizer_file=tmp_path / "big.json").manifest
    assert manifest.token_bytes == 4
    stored = open_corpus(tmp_path / "b").splits["text"]["train"].document(0).tokens_L
    assert stored.max() > 65_536


def test_the_manifest_survives_its_own_text(tmp_path: Path):
    manifest = prepare(tmp_path / "corpus", [source()], vocab_size=280).manifest
    assert Manifest.from_json(manifest.to_json(), "here") == manifest
    json.loads(manifest.to_json())
