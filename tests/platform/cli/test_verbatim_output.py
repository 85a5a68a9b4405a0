"""What a person typed comes out as it went in (scenario S1), on every way out of the CLI, on a terminal and off it."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from samite.cli.output import Column, OutputFormat, one_line, print_items

HOSTILE = (
    "[/red]",
    "expected shape [2, 3] got [/A]",
    "[slug].tsx",
    "[a]",
    "[bold]x[/bold]",
    ":rocket:",
    "{{braces}}",
    "%s %(x)s",
    "[link=x]y[/link]",
)


def run(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "SAMITE_HOME": str(home)}
    return subprocess.run(
        [sys.executable, "-m", "samite", *arguments], capture_output=True, text=True, timeout=60, env=environment, check=False
    )


def on_a_terminal(home: Path, *arguments: str) -> str:
    """What a terminal of 200 columns receives."""
    main, side = pty.openpty()
    environment = {**os.environ, "SAMITE_HOME": str(home), "NO_COLOR": "1", "TERM": "xterm", "COLUMNS": "200"}
    process = subprocess.Popen([sys.executable, "-m", "samite", *arguments], stdout=side, stderr=side, stdin=side, env=environment)
    os.close(side)
    received = b""
    while True:
        try:
            data = os.read(main, 65536)
        except OSError:
            break
        if not data:
            break
        received += data
    os.close(main)
    process.wait(timeout=60)
    return received.decode().replace("\r\n", "\n")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A finished run whose every text is hostile."""
    folder = tmp_path / "runs" / "odd"
    folder.mkdir(parents=True)
    (folder / "spec.json").write_text(json.dumps({"uid": "u", "run": {"metadata": {"name": "odd"}, "spec": {"stages": []}}}))
    status = {"name": "odd", "phase": "Failed", "settled": True, "reason": "Because", "message": " | ".join(HOSTILE), "currentStage": "[a]"}
    (folder / "status.json").write_text(json.dumps(status))
    lines = [{"time": 1.0, "name": "samite.run.held", "severity": "ERROR", "attributes": {"samite.reason": text}} for text in HOSTILE]
    (folder / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    logs = folder / "attempts" / "odd-s00-a1" / "logs"
    logs.mkdir(parents=True)
    (logs / "rank-0.log").write_text("\n".join(HOSTILE) + "\n")
    return tmp_path


@pytest.mark.parametrize("command", [("status", "odd"), ("events", "odd"), ("logs", "odd"), ("list", "-o", "wide"), ("describe", "odd")])
@pytest.mark.parametrize("terminal", [False, True])
def test_hostile_texts_come_out_verbatim(home: Path, command: tuple[str, ...], terminal: bool):
    shown = on_a_terminal(home, *command) if terminal else run(home, *command).stdout
    flat = "".join(shown.split())
    missing = [text for text in HOSTILE if "".join(text.split()) not in flat]
    assert missing == []


def test_a_path_in_brackets_is_named_as_it_is(tmp_path: Path):
    file = tmp_path / "[v1]" / "[bold].yaml"
    file.parent.mkdir()
    file.write_text("kind: [/red]\n")
    done = run(tmp_path, "submit", "-f", str(file))
    assert done.returncode == 3
    assert str(file) in done.stderr


def test_a_run_that_does_not_exist_is_named_verbatim_with_the_exit_code_of_not_found(tmp_path: Path):
    done = run(tmp_path, "status", "[/red]x")
    assert (done.returncode, "[/red]x" in done.stderr) == (2, True)
    done = run(tmp_path, "status", "[x]")
    assert (done.returncode, "'[x]'" in done.stderr) == (5, True)


def test_a_cell_cannot_break_its_row_or_act_on_the_terminal(capsys: pytest.CaptureFixture[str]):
    columns = (Column(title="TEXT", value=lambda item: item["text"]),)
    print_items([{"text": "a\nb\x1b[31m\x07"}], OutputFormat.table, kind="Thing", columns=columns)
    assert capsys.readouterr().out == "TEXT\na b\\x1b[31m\\x07\n"
    assert one_line("ü 🚀 [x]") == "ü 🚀 [x]"


def test_json_output_is_one_document_and_nothing_else_is_on_stdout(home: Path):
    done = run(home, "list", "-o", "json")
    document = json.loads(done.stdout)
    assert (document["apiVersion"], document["kind"], document["items"][0]["name"]) == (
        "samite.dev/v1alpha1",
        "TrainingRunStatusList",
        "odd",
    )
