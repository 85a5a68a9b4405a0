"""Reading a spec: files that cannot be read, text that is no spec, and a run with its defaults."""

import os
from pathlib import Path

import pytest

from samite.errors import NotAllowedError, NotFoundError, SpecError, UsageError
from samite.spec import TrainingRun, load_run

MINIMAL = """\
apiVersion: samite.dev/v1alpha1
kind: TrainingRun
metadata:
  name: tiny-run
spec:
  stages:
    - name: pretrain
      contextLength: 256
      batch: {tokens: 2048}
      budget: {steps: 10}
"""


def problems_of(text: str | bytes | Path, **options: object) -> list[tuple[str, int | None]]:
    with pytest.raises(SpecError) as refused:
        load_run(text, **options)
    return [(problem.path, problem.line) for problem in refused.value.problems]


def test_the_least_document_gets_every_default():
    loaded = load_run(MINIMAL)
    assert loaded.run.spec.stages[0].context_length == 256
    assert loaded.run.spec.optimizer.learning_rate == 1e-3
    assert loaded.run.spec.checkpoint.interval.steps == 100
    assert loaded.run.spec.restart.budgets.infra.limit == 20
    assert loaded.run.total_steps == 10
    assert loaded.lines["spec.stages[0].batch.tokens"] == 9


def test_the_document_stays_as_it_was_given(tmp_path: Path):
    file = tmp_path / "run.yaml"
    file.write_text(MINIMAL)
    loaded = load_run(file)
    assert loaded.document["spec"] == {
        "stages": [{"name": "pretrain", "contextLength": 256, "batch": {"tokens": 2048}, "budget": {"steps": 10}}]
    }
    assert loaded.source == str(file)
    assert loaded.text == MINIMAL


def test_a_null_means_that_the_field_is_left_out():
    run = load_run(MINIMAL + "  seed: ~\n  checkpoint:\n  optimizer: {learningRate: null}\n").run
    assert (run.spec.seed, run.spec.checkpoint.keep.last, run.spec.optimizer.learning_rate) == (0, 3, 1e-3)


def test_every_default_written_out_means_the_same_run():
    run = load_run(MINIMAL).run
    assert TrainingRun.from_document(run.to_document()) == run


def test_a_budget_in_tokens_rounds_up_to_a_whole_step():
    assert load_run(MINIMAL.replace("{steps: 10}", "{tokens: 2049}")).run.total_steps == 2


def test_a_budget_in_seconds_has_no_number_of_steps():
    assert load_run(MINIMAL.replace("{steps: 10}", "{wallSeconds: 60}")).run.total_steps is None


@pytest.mark.parametrize("name", ["[v1]", "[/red]", "ü space", "a" * 150])
def test_any_folder_name_will_do(tmp_path: Path, name: str):
    (tmp_path / name).mkdir(parents=True)
    file = tmp_path / name / "run.yaml"
    file.write_text(MINIMAL)
    assert load_run(file).source == str(file)
    assert load_run(str(file)).source == str(file)


def test_a_missing_file_is_not_found_and_its_neighbours_are_named(tmp_path: Path):
    (tmp_path / "other.yaml").write_text(MINIMAL)
    with pytest.raises(NotFoundError, match=r"other\.yaml"):
        load_run(tmp_path / "run.yaml")


def test_a_missing_folder_is_named(tmp_path: Path):
    with pytest.raises(NotFoundError, match="there is no folder"):
        load_run(tmp_path / "nowhere" / "run.yaml")


def test_a_folder_is_a_usage_error_that_names_the_file(tmp_path: Path):
    with pytest.raises(UsageError, match=r"run\.yaml"):
        load_run(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_is_not_allowed(tmp_path: Path):
    file = tmp_path / "run.yaml"
    file.write_text(MINIMAL)
    file.chmod(0)
    with pytest.raises(NotAllowedError):
        load_run(file)


@pytest.mark.parametrize("path", ["a\0b", "x" * 5000, "run.yaml/under/a/file", "apiVersion: samite.dev/v1alpha1"])
def test_what_cannot_be_a_path_is_not_found(path: str):
    with pytest.raises(NotFoundError):
        load_run(path)


@pytest.mark.parametrize("text", ["", "\n", "  \n# nothing but a comment\n", "---\n", "~\n"])
def test_an_empty_file_says_how_to_begin(tmp_path: Path, text: str):
    file = tmp_path / "run.yaml"
    file.write_text(text)
    with pytest.raises(SpecError) as refused:
        load_run(file)
    assert "apiVersion: samite.dev/v1alpha1" in refused.value.problems[0].hint


@pytest.mark.parametrize("text", ["- a\n- b\n", "just text\n", "5\n"])
def test_a_document_that_is_no_mapping_is_one_problem(text: str):
    assert len(problems_of(text)) == 1


def test_a_document_of_another_kind_is_one_problem():
    assert problems_of("apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\nspec: {replicas: 3}\n") == [("kind", 2)]


def test_bytes_that_are_not_utf8_are_refused_with_the_line():
    assert problems_of(MINIMAL.encode() + b"# caf\xe9\n") == [("", 11)]
    assert len(problems_of(MINIMAL.encode("utf-16"))) == 1


def test_a_byte_order_mark_is_no_problem():
    assert load_run(b"\xef\xbb\xbf" + MINIMAL.encode()).run.name == "tiny-run"


def test_windows_line_ends_are_no_problem():
    assert load_run(MINIMAL.replace("\n", "\r\n")).lines["spec.stages"] == 6


def test_a_file_of_five_megabytes_is_refused_without_being_parsed(tmp_path: Path):
    file = tmp_path / "run.yaml"
    file.write_bytes(b"a: [1, 2, 3]\n" * 400_000)
    with pytest.raises(SpecError) as refused:
        load_run(file)
    assert refused.value.problems[0].wanted == "at most 262144 bytes"


def test_a_full_size_document_is_read_within_seconds():
    text = MINIMAL + "  env:\n" + "".join(f"    - {{name: A{i}, value: x}}\n" for i in range(7000))
    assert problems_of(text)[0] == ("spec.env", 11)


def test_a_relative_corpus_starts_from_the_folder_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    corpus = tmp_path / "specs" / "corpus"
    corpus.mkdir(parents=True)
    (corpus / "corpus.json").write_text('{"sources": {"books": {}}}')
    file = tmp_path / "specs" / "run.yaml"
    file.write_text(MINIMAL + "  data: {uri: ./corpus, mixture: [{source: books, weight: 1}]}\n")
    monkeypatch.chdir("/")
    loaded = load_run(file)
    assert loaded.run.spec.data.uri == str(corpus)
    assert loaded.document["spec"]["data"]["uri"] == "./corpus"


def test_a_source_that_the_corpus_lacks_is_refused(tmp_path: Path):
    (tmp_path / "corpus.json").write_text('{"sources": {"books": {}, "code": {}}}')
    text = MINIMAL + f"  data: {{uri: '{tmp_path}', mixture: [{{source: book, weight: 1}}]}}\n"
    assert problems_of(text) == [("spec.data.mixture[0].source", 11)]


def test_the_models_take_no_snake_case_from_a_document():
    assert problems_of(MINIMAL.replace("contextLength", "context_length")) == [("spec.stages[0].context_length", 8)]


def test_problems_stand_in_the_order_of_the_file():
    text = MINIMAL.replace("steps: 10", "steps: 0").replace("tiny-run", "Tiny").replace("tokens: 2048", "tokens: 1000")
    assert [line for _, line in problems_of(text)] == [4, 9, 10]


def test_a_wrong_field_does_not_hide_the_problems_of_its_neighbours():
    text = MINIMAL.replace("name: pretrain", "name: 7").replace("{steps: 10}", "{steps: ten, tokens: 5}")
    assert [path for path, _ in problems_of(text)] == ["spec.stages[0].name", "spec.stages[0].budget.steps", "spec.stages[0].budget"]


@pytest.mark.parametrize(("written", "value"), [("1e-5", 1e-5), ("3e-4", 3e-4), (".5", 0.5), ("1_0", 10.0), ("0x1", 1.0), ("1", 1.0)])
def test_a_learning_rate_is_the_number_that_kubectl_would_send(written: str, value: float):
    text = MINIMAL + f"  optimizer: {{learningRate: {written}}}\n"
    assert load_run(text).run.spec.optimizer.learning_rate == value


@pytest.mark.parametrize("written", ["1e-5x", '"1e-5"', "on", "010", "12:30", ".inf", "1e400", "[1]"])
def test_what_is_no_number_for_kubectl_is_no_learning_rate(written: str):
    assert problems_of(MINIMAL + f"  optimizer:\n    learningRate: {written}\n") == [("spec.optimizer.learningRate", 12)]


@pytest.mark.parametrize(("written", "value"), [("1e1", 10), ("1_0", 10), ("10.0", 10), ("0b1010", 10), ("+10", 10)])
def test_a_whole_number_may_be_written_in_any_way_that_kubectl_reads(written: str, value: int):
    assert load_run(MINIMAL.replace("steps: 10", f"steps: {written}")).run.total_steps == value


@pytest.mark.parametrize("written", ["on", "1e3", "010", "y", "1_000", "12:30", "0x1f", "true", "~", "2026-11-30", ".5"])
def test_a_name_is_text_for_every_reader(written: str):
    assert [path for path, _ in problems_of(MINIMAL.replace("tiny-run", written))] == ["metadata.name"]


@pytest.mark.parametrize("written", ["a1e3", "on-call", "run-010"])
def test_a_name_that_only_begins_like_a_number_or_a_truth_value_is_fine(written: str):
    assert load_run(MINIMAL.replace("tiny-run", written)).run.name == written
