"""`samite top`: the numbers that matter of a run folder, once as text and data, and live in a real terminal; reading only the end of its files."""

import json
import math
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from samite.cli.app import run
from samite.cli.top_numbers import TREND, Numbers, rows, spark
from samite.spec.attempt import Heartbeat
from samite.telemetry import jsonlines
from samite.telemetry.records import MetricRecord, Point


def write(folder: Path, step: int, *points: Point, rank: int = 0) -> None:
    record = MetricRecord(time_unix_s=1e9 + step, step=step, points=points)
    jsonlines.append_line(folder / f"metrics/rank-{rank}.jsonl", record.to_document())


def beat(folder: Path, rank: int, *, time_unix_s: float, **changes) -> None:
    values = {
        "rank": rank,
        "node": f"node-{rank}",
        "pid": 1,
        "submission_id": "a",
        "incarnation": 0,
        "step": 5,
        "tokens": 9,
        "phase": "training",
    }
    (folder / "heartbeats").mkdir(parents=True, exist_ok=True)
    Heartbeat(**{**values, "monotonic_s": 1.0, "time_unix_s": time_unix_s, **changes}).write(folder / f"heartbeats/rank-{rank}.json")


@pytest.fixture
def home(whole_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SAMITE_HOME", str(tmp_path))
    folder = shutil.copytree(whole_run, tmp_path / "runs" / "quickstart")
    status = json.loads((folder / "status.json").read_text())
    (folder / "status.json").write_text(json.dumps({**status, "name": "quickstart", "settled": True}))
    for rank in (0, 1):
        beat(folder, rank, time_unix_s=time.time() - 3 - rank)
    return folder


def test_off_a_terminal_one_screen_is_printed(home: Path, capsys: pytest.CaptureFixture[str]):
    assert run(["top", "quickstart"]) == 0
    shown = capsys.readouterr().out
    for title in ("quickstart", "loss", "gradient norm", "step time", "decay margin", "expert load over mean", "RANK", "node-1"):
        assert title in shown
    assert re.search(r"lost decay products +0 % +none", shown)


def test_the_same_as_data(home: Path, capsys: pytest.CaptureFixture[str]):
    assert run(["top", "quickstart", "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    numbers = {number["name"]: number for number in document["numbers"]}
    assert (document["kind"], document["phase"]) == ("TrainingRunTop", "Succeeded")
    assert len(numbers["loss"]["trend"]) == TREND
    assert [rank["rank"] for rank in document["ranks"]] == [0, 1]
    assert 3 <= document["ranks"][0]["ageS"] < 60


def test_numbers_come_as_they_are_written_and_only_the_last_are_kept(tmp_path: Path):
    numbers = Numbers(tmp_path)
    for step in range(100):
        write(tmp_path, step, Point("samite.loss", float(step), {"samite.loss.kind": "total"}))
    numbers.poll()
    write(tmp_path, 100, Point("samite.loss", 100.0, {"samite.loss.kind": "total"}))
    numbers.poll()
    assert numbers.trend("samite.loss", kind="total") == tuple(float(step) for step in range(101 - TREND, 101))


def test_what_is_wrong_is_marked(tmp_path: Path):
    block = {"samite.layer.block": "3"}
    write(
        tmp_path,
        1,
        Point("samite.loss", math.nan, {"samite.loss.kind": "total"}),
        Point("samite.decay.tile.margin", -2.0, block),
        Point("samite.decay.underflow", 0.01, {**block, "samite.decay.kind": "state"}),
        Point("samite.step.straggler", 1.4),
    )
    numbers = Numbers(tmp_path)
    numbers.poll()
    assert {row.title for row in rows(numbers) if row.bad} == {"loss", "decay margin", "lost decay products", "slowest rank"}
    assert "in layer 3" in next(row.note for row in rows(numbers) if row.title == "lost decay products")


def test_a_run_that_has_measured_nothing_shows_no_rows(tmp_path: Path):
    numbers = Numbers(tmp_path)
    numbers.poll()
    assert (rows(numbers), numbers.ranks()) == ([], [])


def test_a_damaged_heartbeat_is_left_out_and_of_many_ranks_the_most_silent_stay(tmp_path: Path):
    for rank in range(40):
        beat(tmp_path, rank, time_unix_s=1000.0 - (50.0 if rank == 33 else 0.0))
    (tmp_path / "heartbeats/rank-99.json").write_text("{")
    found = Numbers(tmp_path).ranks(now_unix_s=1000.0)
    assert len(found) == 16
    assert 33 in {row.rank for row in found}


def test_only_the_end_of_a_long_file_is_read(tmp_path: Path):
    path = tmp_path / "long.jsonl"
    path.write_text("".join(json.dumps({"step": step}) + "\n" for step in range(10_000)))
    follower = jsonlines.Follower(path, tail_bytes=200)
    steps = [document["step"] for document in follower.poll()]
    assert (steps[-1], follower.damaged) == (9999, 0)
    assert 5 < len(steps) < 20
    assert next(iter(jsonlines.Follower(path, tail_bytes=10_000_000).poll())) == {"step": 0}


def test_a_trend_is_drawn_from_lowest_to_highest():
    assert spark([0.0, 1.0, 2.0, math.nan]) == "▁▅█x"
    assert spark([5.0, 5.0]) == "▁▁"
    assert spark([math.inf]) == "x"
    assert spark([]) == ""


@pytest.mark.timeout(60)
def test_in_a_terminal_the_screen_is_drawn_and_a_run_that_is_over_ends_it(home: Path):
    leader, follower = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "140", "LINES": "60"}
    process = subprocess.Popen([sys.executable, "-m", "samite", "top", "quickstart"], stdout=follower, stderr=follower, env=environment)
    os.close(follower)
    seen, ends_s = b"", time.monotonic() + 50
    try:
        while time.monotonic() < ends_s and select.select([leader], [], [], 10)[0]:
            try:
                seen += os.read(leader, 65536)
            except OSError:
                break
        assert process.wait(timeout=10) == 0
    finally:
        process.kill()
        process.wait()
        os.close(leader)
    text = seen.decode()
    assert "gradient norm" in text
    assert "▁" in text
    assert "node-1" in text
