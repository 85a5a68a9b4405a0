"""The bridge's thread: it outlives every trouble, never holds the rank up, says its last words before the end, and obeys."""

import json
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from samite.spec.attempt import Heartbeat
from samite_workloads.bridge.control_files import ControlFiles
from samite_workloads.bridge.rank import period_s

SUBMISSION = "demo-s00-a2"


def until(condition, limit_s: float = 5.0) -> None:
    ends_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < ends_s, "waited too long"
        time.sleep(0.01)


def test_what_is_written_arrives_without_anybody_asking(driver, new_rank, lines):
    rank = new_rank()
    rank.bridge.open()
    rank.append("metrics/rank-0.jsonl", '{"step":1}\n')
    rank.beat(1)
    until(lambda: (driver / "metrics/rank-0.jsonl").exists() and (driver / "heartbeats/rank-0.json").exists())
    rank.append("metrics/rank-0.jsonl", '{"step":2}\n')
    assert rank.bridge.close()
    assert [line["step"] for line in lines(driver / "metrics/rank-0.jsonl")] == [1, 2]


def test_a_collector_that_is_gone_for_a_while_costs_nothing_and_loses_nothing(driver, link, new_rank, lines):
    rank = new_rank()
    rank.bridge.open()
    link.dead = True
    for step in range(5):
        rank.append("metrics/rank-0.jsonl", f'{{"step":{step}}}\n')
        time.sleep(0.06)
    until(lambda: rank.bridge.errors >= 2)
    link.dead = False
    until(rank.folder.is_told)
    assert [line["step"] for line in lines(driver / "metrics/rank-0.jsonl")] == list(range(5))
    assert rank.bridge.close()


def test_a_collector_that_never_answers_delays_start_and_end_by_their_bounds_only(link, new_rank):
    rank = new_rank()
    link.hang_s = 60.0
    began_s = time.monotonic()
    rank.bridge.open(patience_s=0.3)
    assert time.monotonic() - began_s < 1.0
    rank.append("metrics/rank-0.jsonl", '{"step":1}\n')
    link.hang_s, link.dead = 0.0, True
    until(lambda: rank.bridge.errors > 0)
    began_s = time.monotonic()
    assert not rank.bridge.close(patience_s=0.5)
    assert time.monotonic() - began_s < 2.0


def test_a_late_welcome_does_not_put_the_past_over_the_present(driver, link, new_rank):
    new_rank(0, "before").beat(3)
    (driver / "heartbeats").mkdir(exist_ok=True)
    (driver / "heartbeats/rank-0.json").write_text((driver.parent / "before/heartbeats/rank-0.json").read_text())
    rank = new_rank(0, "pod")
    link.dead = True
    rank.bridge.open(patience_s=0.1)
    rank.beat(9, incarnation=1)
    link.dead = False
    until(lambda: Heartbeat.read(driver / "heartbeats/rank-0.json").step == 9)
    assert Heartbeat.read(rank.path / "heartbeats/rank-0.json").step == 9
    assert rank.bridge.close()


def test_a_full_disk_on_the_drivers_pod_is_a_period_without_an_answer(driver, link, new_rank):
    rank = new_rank()
    (driver / "metrics").write_text("a file where a folder should be")
    rank.bridge.open()
    rank.append("metrics/rank-0.jsonl", '{"step":1}\n')
    until(lambda: rank.bridge.errors > 0)
    (driver / "metrics").unlink()
    assert rank.bridge.close()
    assert (driver / "metrics/rank-0.jsonl").read_text() == '{"step":1}\n'


def test_stacks_are_written_on_request_once_and_told(driver, new_rank):
    rank = new_rank()
    rank.bridge.open()
    rank.beat(1)
    ControlFiles(driver).apply({"stacks.json": '{"request": "hang-1"}'})
    file = driver / f"attempts/{SUBMISSION}/logs/stacks-rank-0.txt"
    until(lambda: file.exists() and "until" in file.read_text())
    until(lambda: json.loads((driver / "heartbeats/rank-0.json").read_text()).get("answered") == "hang-1")
    time.sleep(0.2)
    assert file.read_text().count("--- hang-1") == 1
    ControlFiles(driver).apply({"stacks.json": '{"request": "hang-2"}'})
    until(lambda: "--- hang-2" in file.read_text())
    assert rank.bridge.close()


def test_the_thread_that_trains_is_in_the_stacks_however_many_others_there_are(driver, new_rank):
    over = threading.Event()
    others = [threading.Thread(target=over.wait) for _ in range(120)]
    for other in others:
        other.start()
    try:
        rank = new_rank()
        rank.bridge.open()
        ControlFiles(driver).apply({"stacks.json": '{"request": "hang-1"}'})
        file = driver / f"attempts/{SUBMISSION}/logs/stacks-rank-0.txt"
        until(lambda: file.exists() and "Main thread" in file.read_text(), limit_s=10.0)
        assert "test_the_thread_that_trains_is_in_the_stacks" in file.read_text()
        assert rank.bridge.close()
    finally:
        over.set()
        for other in others:
            other.join()


def test_of_ten_thousand_ranks_each_sends_less_often():
    assert [period_s(number) for number in (1, 500, 1000, 10_000)] == [1.0, 1.0, 2.0, 20.0]


PROGRAM = """
    import sys, time
    from pathlib import Path
    sys.path.insert(0, {tests!r})
    from conftest import DirectLink, Rank, SUBMISSION
    from samite_workloads.bridge.receiving import Collector
    rank = Rank(Path({pod!r}), DirectLink(Collector(Path({driver!r}), SUBMISSION)), 1)
    rank.bridge.open()
    rank.beat(4, incarnation=2)
    rank.append("metrics/rank-1.jsonl", "1\\n")
    time.sleep(20)
"""


@pytest.fixture
def blocked_rank(tmp_path, driver):
    """A process whose training function stands still; always ended."""
    tests = str(Path(__file__).parent)
    program = textwrap.dedent(PROGRAM.format(tests=tests, pod=str(tmp_path / "pod"), driver=str(driver)))
    process = subprocess.Popen([sys.executable, "-c", program])
    yield process
    process.kill()
    process.wait(10)


def test_a_blocked_rank_is_killed_by_its_own_bridge_and_only_the_one_that_is_meant(driver, blocked_rank):
    def order(**changes) -> None:
        ControlFiles(driver).apply({"kill.json": json.dumps({"request": "1", "submission_id": SUBMISSION, **changes})})

    until((driver / "heartbeats/rank-1.json").exists, 20.0)
    for others in ({"submission_id": "demo-s00-a1"}, {"ranks": [0, 2]}, {"incarnation": 1}, {"incarnation": 1, "ranks": [1]}):
        order(**others)
        time.sleep(0.5)
        assert blocked_rank.poll() is None
    order(ranks=[1], incarnation=2)
    assert blocked_rank.wait(5) == -signal.SIGKILL
    assert (driver / "metrics/rank-1.jsonl").read_text() == "1\n"
