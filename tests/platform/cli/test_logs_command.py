"""Log bytes from programs that die at any point (scenario S6), and what is shown of them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from samite.cli.logs import visible
from samite.engines.base import LogChoice
from samite.engines.local.log_files import LogFile, LogFiles
from samite.engines.log_lines import MAX_LINE_CHARACTERS


def lines_of(data: bytes, tmp_path: Path) -> list[str]:
    file = tmp_path / "x.log"
    file.write_bytes(data)
    return list(LogFile(file).drain(last=True))


@pytest.mark.parametrize("offset", [4095, 4096, 8191, 65535, 65533, 131071])
def test_an_emoji_across_a_read_border_stays_whole(offset: int, tmp_path: Path):
    data = b"a" * offset + "\U0001f680".encode() + b"\nnext\n"
    assert "".join(lines_of(data, tmp_path)).count("\U0001f680") == 1


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_character_that_is_written_in_two_halves_is_shown_once(cut: int, tmp_path: Path):
    file, emoji = tmp_path / "x.log", "\U0001f680".encode()
    file.write_bytes(b"go " + emoji[:cut])
    log = LogFile(file)
    assert list(log.drain()) == []
    with file.open("ab") as handle:
        handle.write(emoji[cut:] + b"\n")
    assert list(log.drain()) == ["go \U0001f680"]


def test_only_bad_bytes_are_replaced(tmp_path: Path):
    assert lines_of(b"a\x80b\n\xff\n", tmp_path) == ["a�b", "�"]


def test_a_five_megabyte_line_is_cut_and_says_so(tmp_path: Path):
    shown = [visible(line) for line in lines_of(b"x" * 5_000_000 + b"\nend\n", tmp_path)]
    assert shown[-1].endswith("end")
    assert max(map(len, shown)) < 5 * MAX_LINE_CHARACTERS


def test_a_truncated_file_is_read_from_its_beginning_without_repeating(tmp_path: Path):
    file = tmp_path / "x.log"
    file.write_text("one\ntwo\n")
    log = LogFile(file)
    assert list(log.drain()) == ["one", "two"]
    assert list(log.drain()) == []
    file.write_text("new\n")
    assert list(log.drain()) == ["new"]


def test_a_vanished_file_ends_quietly(tmp_path: Path):
    log = LogFile(tmp_path / "gone.log")
    assert list(log.drain(last=True)) == []


def test_progress_bars_colours_and_control_characters_cannot_act_on_the_terminal():
    assert visible("10%\r50%\r100%\r") == "100%"
    assert visible("\x1b[31mred\x1b[0m \x07\x00\tend") == "red \\x07\\x00\tend"


def test_the_newest_attempt_is_shown_unless_another_is_asked_for(tmp_path: Path):
    for attempt in (1, 2, 10):
        logs = tmp_path / "attempts" / f"demo-s00-a{attempt}" / "logs"
        logs.mkdir(parents=True)
        (logs / "rank-0.log").write_text("x\n")
        (logs / "rank-1.log").write_text("x\n")
    newest = LogFiles(tmp_path, LogChoice(source="rank", ranks=frozenset({1})))
    assert [stream.label for stream in newest.streams()] == ["a10 rank-1"]
    every = LogFiles(tmp_path, LogChoice(source="rank", ranks=frozenset({0}), attempt=0))
    assert [stream.label for stream in every.streams()] == ["a1 rank-0", "a2 rank-0", "a10 rank-0"]
    (tmp_path / "supervisor.log").write_text("x\n")
    before = LogFiles(tmp_path, LogChoice(source="all", previous=True))
    assert [stream.label for stream in before.streams()] == ["a2 rank-0", "a2 rank-1"]


@pytest.mark.parametrize(
    ("numbers", "choice", "chosen"),
    [
        ([], LogChoice(previous=True), set()),
        ([7], LogChoice(previous=True), set()),
        ([2, 10, 2, 9], LogChoice(previous=True), {9}),
        ([2, 10, 9], LogChoice(), {10}),
        ([2, 10, 9], LogChoice(attempt=0), {2, 9, 10}),
        ([2, 10, 9], LogChoice(attempt=9), {9}),
        ([2, 10, 9], LogChoice(attempt=3), set()),
        ([], LogChoice(), set()),
    ],
)
def test_attempts_are_chosen_by_number(numbers: list[int], choice: LogChoice, chosen: set[int]):
    assert choice.of_attempts(numbers) == chosen


def test_a_closed_pipe_ends_the_command_quietly(tmp_path: Path):
    run = tmp_path / "runs" / "demo"
    logs = run / "attempts" / "demo-s00-a1" / "logs"
    logs.mkdir(parents=True)
    (run / "spec.json").write_text("{}")
    (run / "status.json").write_text('{"phase": "Succeeded", "settled": true}')
    (logs / "rank-0.log").write_text("line\n" * 200_000)
    shell = f"{sys.executable} -m samite logs demo | head -1"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {shell}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "SAMITE_HOME": str(tmp_path)},
    )
    assert done.stdout == "a1 rank-0: line\n"
    assert done.stderr == ""
