"""`samite data`: what people see, and the exit codes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer

from samite.cli import data
from samite.errors import ConflictError, NotFoundError, SamiteError, UsageError


def run(*arguments: object) -> None:
    app = typer.Typer()
    app.callback()(lambda: None)
    data.register(app)
    app([str(argument) for argument in ("data", *arguments)], standalone_mode=False)


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    folder = tmp_path / "[texts]"
    folder.mkdir()
    for number in range(30):
        (folder / f"{number}.txt").write_text(f"document {number} about silk\n" * 10)
    (folder / "binary.bin").write_bytes(b"\0")
    return folder


def test_prepare_shows_the_corpus_on_stdout_and_the_rest_on_stderr(tmp_path: Path, texts: Path, capsys: pytest.CaptureFixture[str]):
    run("prepare", "--out", tmp_path / "corpus", "--source", f"text={texts}", "--vocab-size", 300)
    output = capsys.readouterr()
    assert output.out.splitlines()[0].split() == ["SOURCE", "DOCUMENTS", "TOKENS", "IMAGES", "HELD", "OUT", "LEFT", "OUT"]
    assert output.out.splitlines()[1].split()[0] == "text"
    assert f"left out {texts / 'binary.bin'}: binary" in output.err
    assert "made in" in output.err
    run("prepare", "--out", tmp_path / "corpus", "--source", f"text={texts}", "--vocab-size", 300)
    assert "was already there" in capsys.readouterr().err


def test_json_output_is_the_manifest(tmp_path: Path, texts: Path, capsys: pytest.CaptureFixture[str]):
    run("prepare", "--out", tmp_path / "corpus", "--source", f"text={texts}", "--vocab-size", 300, "-o", "json")
    prepared = json.loads(capsys.readouterr().out)
    run("show", tmp_path / "corpus", "-o", "json")
    assert json.loads(capsys.readouterr().out) == prepared
    assert prepared["digest"].startswith("sha256:")


def test_show_says_what_a_model_has_to_beat_and_what_was_left_out(tmp_path: Path, texts: Path, capsys: pytest.CaptureFixture[str]):
    run("prepare", "--out", tmp_path / "corpus", "--source", f"text={texts}", "--vocab-size", 300)
    capsys.readouterr()
    run("show", tmp_path / "corpus")
    said = capsys.readouterr().err
    assert "unigram baseline, train: text=" in said
    assert "text: left out 1, binary" in said


def test_stats_say_what_a_context_length_cuts_and_pads(tmp_path: Path, texts: Path, capsys: pytest.CaptureFixture[str]):
    run("prepare", "--out", tmp_path / "corpus", "--source", f"text={texts}", "--vocab-size", 300)
    capsys.readouterr()
    run("stats", tmp_path / "corpus", "--context-length", 32, "-o", "json")
    figures = json.loads(capsys.readouterr().out)
    assert figures["rows"]["padding_fraction"] == 0
    assert figures["rows"]["token_share"] == {"text": 1.0}
    assert figures["sources"]["text"]["longer_than_context"] > 0
    run("stats", tmp_path / "corpus", "--context-length", 32)
    assert "rows of 32 tokens: 0.00% padding" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (("show", "{}/nothing"), NotFoundError, "is not a prepared corpus. Make one: samite data prepare --out"),
        (("show", "{}"), NotFoundError, "is not a prepared corpus"),
        (("prepare", "--out", "{}/c", "--source", "{}/nowhere"), NotFoundError, "does not exist"),
        (("prepare", "--out", "{}", "--source", "stdlib"), ConflictError, "exists and is not a corpus"),
        (("prepare", "--out", "{}/c", "--source", "digits", "--pixels", "9"), SamiteError, "multiple of 8"),
        (("prepare", "--out", "{}/c", "--held-out", "1.5"), SamiteError, "held-out fraction"),
    ],
)
def test_mistakes_end_with_an_error_of_the_tree(tmp_path: Path, texts: Path, arguments: tuple[str, ...], error: type, words: str):
    with pytest.raises(error) as caught:
        run(*(argument.format(tmp_path) for argument in arguments))
    assert words in str(caught.value)


def test_a_manifest_that_is_none_is_refused_by_show(tmp_path: Path):
    for text in ("", "[]", "{}", '{"format": 3}'):
        (tmp_path / "corpus.json").write_text(text)
        with pytest.raises(SamiteError, match="is not a corpus description"):
            run("show", tmp_path)


def test_a_missing_worker_extra_is_said_with_the_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "samite_workloads.data.arguments", None)
    with pytest.raises(UsageError, match=r"pip install 'samite\[worker,quickstart\]'"):
        run("prepare", "--out", tmp_path / "corpus")


def test_looking_at_a_corpus_loads_nothing_heavy(tmp_path: Path, texts: Path):
    run("prepare", "--out", tmp_path / "corpus", "--source", f"text={texts}", "--vocab-size", 300)
    program = (
        "import sys, typer; from samite.cli import data; app = typer.Typer(); app.callback()(lambda: None); data.register(app); "
        f"app(['data', 'show', {str(tmp_path / 'corpus')!r}], standalone_mode=False); "
        "assert not {'torch', 'numpy', 'tokenizers', 'samite_workloads'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, capture_output=True)


@pytest.mark.timeout(280)
def test_ctrl_c_leaves_nothing_behind(tmp_path: Path):
    program = (
        "import sys, typer; from samite.cli import data; app = typer.Typer(); app.callback()(lambda: None); data.register(app)\n"
        "sys.exit(app(sys.argv[1:], standalone_mode=False))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, "data", "prepare", "--out", str(tmp_path / "corpus"), "--source", "stdlib"],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        assert process.stderr is not None
        assert "reading text" in process.stderr.readline()
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=200)
    finally:
        process.kill()
    assert process.returncode == 130
    assert list(tmp_path.iterdir()) == []


def test_progress_is_one_live_line_on_a_terminal_and_rare_lines_elsewhere():
    from samite_workloads.data.prepare import Progress

    for live, expected in ((True, ["\r\x1b[Kreading: 0 documents", "\r\x1b[K"]), (False, ["reading: 0 documents\n"])):
        written: list[str] = []
        progress = data._Progress(written.append, live=live)
        for number in range(50):
            progress(Progress(phase="reading", documents=number))
        progress.done()
        assert written == expected
