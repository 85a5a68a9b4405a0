"""What a rank writes on its pod is in the driver's folder as if they shared it: once, in order, bounded, whatever is lost on the way."""

import json
import os
import time
from pathlib import Path

import pytest

from samite.spec.attempt import FailureReport, Heartbeat
from samite_workloads.bridge.control_files import ControlFiles, texts
from samite_workloads.bridge.messages import Piece, Push
from samite_workloads.bridge.places import folder_id
from samite_workloads.bridge.receiving import Collector
from samite_workloads.bridge.sending import LOG_BEHIND_BYTES, PUSH_BYTES
from samite_workloads.train.reports import write_report

SUBMISSION = "demo-s00-a2"
ATTEMPT = f"attempts/{SUBMISSION}"


def files_below(folder: Path) -> dict[str, str]:
    return {
        file.relative_to(folder).as_posix(): file.read_text(encoding="utf-8")
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file.relative_to(folder).parts[0] not in ("bridge", "heartbeats")
    }


def test_the_drivers_folder_is_the_union_of_the_pods_folders(driver, new_rank):
    ranks = [new_rank(0), new_rank(1)]
    for number, rank in enumerate(ranks):
        rank.send()
        for step in (1, 2):
            rank.append(f"metrics/rank-{number}.jsonl", f'{{"step":{step}}}\n')
            rank.append(f"{ATTEMPT}/logs/rank-{number}.log", f"step {step}\n")
            rank.beat(step)
            rank.send()
    ranks[0].append("events.jsonl", '{"name":"samite.training.started"}\n')
    (ranks[0].path / ATTEMPT / "result.json").write_text('{"outcome":"stage_complete"}')
    write_report(ranks[1].path / ATTEMPT / "failures", FailureReport(failure_class="infra", error_type="E", message="m", rank=1))
    for rank in ranks:
        rank.send(last=True)
        assert rank.folder.is_told()
    united = files_below(ranks[0].path) | files_below(ranks[1].path)
    assert len(united) == 7
    assert files_below(driver) == united
    assert [Heartbeat.read(driver / "heartbeats" / f"rank-{r}.json").step for r in (0, 1)] == [2, 2]


def test_a_push_whose_answer_was_lost_is_not_appended_twice(driver, link, new_rank, lines):
    rank = new_rank()
    rank.send()
    rank.append("metrics/rank-0.jsonl", '{"step":1}\n')
    link.lose_answers = 1
    with pytest.raises(Exception, match="answer was lost"):
        rank.send()
    rank.append("metrics/rank-0.jsonl", '{"step":2}\n')
    rank.send()
    rank.send()
    assert [line["step"] for line in lines(driver / "metrics/rank-0.jsonl")] == [1, 2]
    assert rank.folder.is_told()


def test_a_collector_that_was_started_again_goes_on_where_its_predecessor_died(driver, link, new_rank, lines):
    rank = new_rank()
    rank.send()
    rank.beat(1)
    rank.append("metrics/rank-0.jsonl", '{"step":1}\n')
    rank.send()
    link.collector = Collector(driver, SUBMISSION)
    rank.append("metrics/rank-0.jsonl", '{"step":2}\n')
    rank.send()
    assert [line["step"] for line in lines(driver / "metrics/rank-0.jsonl")] == [1, 2]
    beat = json.loads((driver / "heartbeats/rank-0.json").read_text())
    assert (beat["step"], beat["heard_s"] > beat["monotonic_s"]) == (1, True)


def test_what_a_killed_rank_had_not_sent_comes_with_its_successor_on_the_pod(driver, new_rank, lines):
    killed = new_rank()
    killed.send()
    killed.append("metrics/rank-0.jsonl", '{"step":1}\n')
    killed.append("events.jsonl", '{"name":"last"}\n')
    write_report(killed.path / ATTEMPT / "failures", FailureReport(failure_class="infra", error_type="E", message="m", rank=0))
    successor = new_rank()
    successor.send()
    assert lines(driver / "metrics/rank-0.jsonl") == [{"step": 1}]
    assert lines(driver / "events.jsonl") == [{"name": "last"}]
    assert len(list((driver / ATTEMPT / "failures").iterdir())) == 1


def test_a_pods_history_of_earlier_attempts_does_not_come_again(driver, new_rank, lines):
    pod = new_rank().path
    (pod / "metrics/rank-0.jsonl").write_text('{"step":1}\n')
    rank = new_rank()
    rank.append("metrics/rank-0.jsonl", '{"step":2}\n')
    rank.send()
    assert lines(driver / "metrics/rank-0.jsonl") == [{"step": 2}]


def test_two_ranks_of_one_pod_share_events_and_none_comes_twice(driver, new_rank, lines):
    first, second = new_rank(0, "pod"), new_rank(1, "pod", leads=False)
    first.send()
    second.send()
    for number in range(50):
        (first if number % 2 else second).append("events.jsonl", f'{{"n":{number}}}\n')
        (second if number % 3 else first).send(last=True)
    first.send(last=True)
    assert [line["n"] for line in lines(driver / "events.jsonl")] == list(range(50))


def test_a_rank_that_moved_to_another_pod_finds_its_past_and_continues_its_files(driver, new_rank, lines):
    before = new_rank(0, "pod-a")
    before.send()
    before.beat(7)
    before.append("metrics/rank-0.jsonl", '{"step":7}\n')
    for mark in ("incarnations/0", "incarnations/1"):
        (before.path / ATTEMPT / mark).parent.mkdir(exist_ok=True)
        (before.path / ATTEMPT / mark).write_text("1\n")
    (before.path / "control/fired").mkdir()
    (before.path / "control/fired/kill-1.rank-0.0").touch()
    write_report(before.path / ATTEMPT / "failures", FailureReport(failure_class="infra", error_type="E", message="m", rank=0))
    before.send(last=True)

    after = new_rank(0, "pod-b")
    after.bridge._greet(early=True, timeout_s=1.0)
    assert Heartbeat.read(after.path / "heartbeats/rank-0.json").step == 7
    found = sorted(
        file.relative_to(after.path).as_posix() for pattern in (f"{ATTEMPT}/*/*", "control/fired/*") for file in after.path.glob(pattern)
    )
    assert found == [
        f"{ATTEMPT}/failures/incarnation-0-rank-0.json",
        f"{ATTEMPT}/incarnations/0",
        f"{ATTEMPT}/incarnations/1",
        "control/fired/kill-1.rank-0.0",
    ]
    after.append("metrics/rank-0.jsonl", '{"step":8}\n')
    after.send()
    assert [line["step"] for line in lines(driver / "metrics/rank-0.jsonl")] == [7, 8]


def test_heartbeats_keep_their_age_on_the_collectors_clock_even_when_a_push_comes_late(driver, link, new_rank):
    rank = new_rank()
    ahead_s = 5000.0

    def arrive(beat: Heartbeat, sent_at_s: float) -> float:
        push = Push(
            folder_id="far",
            rank=0,
            session="s",
            sent_at_s=sent_at_s + ahead_s,
            documents={"heartbeats/rank-0.json": Heartbeat(**{**as_dict(beat), "monotonic_s": beat.monotonic_s + ahead_s}).to_json()},
        )
        link.collector.push(push)
        return time.monotonic() - Heartbeat.read(driver / "heartbeats/rank-0.json").monotonic_s

    def as_dict(beat: Heartbeat) -> dict:
        return {name: getattr(beat, name) for name in beat.__slots__}

    assert arrive(rank.beat(1), time.monotonic()) < 0.5
    late = rank.beat(2)
    sent_at_s = time.monotonic()
    time.sleep(0.6)
    assert 0.55 < arrive(late, sent_at_s) < 1.2


def test_an_attempts_heartbeats_are_not_those_of_another(driver, new_rank):
    rank = new_rank()
    rank.send()
    rank.beat(3, submission_id="demo-s00-a1")
    rank.send()
    assert not (driver / "heartbeats/rank-0.json").exists()


def test_the_process_is_heard_while_its_training_function_stands_still(driver, new_rank):
    rank = new_rank()
    rank.send()
    rank.beat(3)
    rank.send()
    first = json.loads((driver / "heartbeats/rank-0.json").read_text())
    time.sleep(1.1)
    rank.send()
    second = json.loads((driver / "heartbeats/rank-0.json").read_text())
    assert first["monotonic_s"] == second["monotonic_s"]
    assert second["heard_s"] - first["heard_s"] > 1.0
    assert 0.0 <= second["cpu_share"] < 1.5


def test_no_push_is_larger_than_its_bound_and_all_lines_come_whole(driver, link, new_rank, lines):
    rank = new_rank()
    rank.send()
    rank.append("metrics/rank-0.jsonl", "".join(f'{{"step":{n},"pad":"{"x" * 200}"}}\n' for n in range(6000)))
    while not rank.folder.is_told():
        rank.send()
        if (driver / "metrics/rank-0.jsonl").exists():
            lines(driver / "metrics/rank-0.jsonl")
    assert [line["step"] for line in lines(driver / "metrics/rank-0.jsonl")] == list(range(6000))
    assert max(sum(len(piece.data) for piece in push.pieces) for push in link.pushes) <= PUSH_BYTES


def test_a_line_without_its_end_waits_unless_nothing_more_will_come(driver, new_rank):
    rank = new_rank()
    rank.send()
    rank.append("events.jsonl", '{"a":1}\n{"b":')
    rank.send()
    assert (driver / "events.jsonl").read_text() == '{"a":1}\n'
    rank.append("events.jsonl", "2}\n")
    rank.send()
    assert (driver / "events.jsonl").read_text() == '{"a":1}\n{"b":2}\n'


def test_a_log_that_runs_ahead_loses_its_middle_and_says_so(driver, new_rank):
    rank = new_rank()
    log = f"{ATTEMPT}/logs/rank-0.log"
    rank.append(log, "the beginning\n")
    rank.send()
    rank.append(log, "x" * (2 * LOG_BEHIND_BYTES) + "\nthe end\n")
    rank.send()
    text = (driver / log).read_text()
    assert text.startswith("the beginning\n\n... ")
    assert "bytes left out here" in text
    assert text.endswith("\nthe end\n")
    assert len(text) < PUSH_BYTES
    assert rank.folder.left_out_bytes > LOG_BEHIND_BYTES
    rank.append(log, "later\n")
    rank.send()
    assert (driver / log).read_text().endswith("the end\nlater\n")


@pytest.mark.parametrize(
    "name", ["../out.txt", "/etc/out", "control/stop.json", "attempts/../../x", "bridge/folder-id", "attempts/.hidden", "a"]
)
def test_nothing_is_written_outside_of_what_may_travel(driver, link, name):
    before = files_below(driver.parent)
    link.collector.push(
        Push(
            folder_id="f", rank=0, session="s", sent_at_s=0.0, documents={name: "x"},
            pieces=(Piece(name=name, offset=0, advance=1, data=b"x"),),
        )
    )  # fmt: skip
    assert {name: text for name, text in files_below(driver.parent).items() if "taken" not in name} == before


def test_control_documents_reach_the_rank_keep_their_time_and_go_again(driver, new_rank):
    rank = new_rank()
    (rank.path / "control/stop.json").write_text("left from an earlier attempt")
    ControlFiles(driver).apply({"checkpoint.json": '{"request": "1"}', "../evil.json": "{}", "faults.JSON": "{}"})
    rank.send()
    assert [file.name for file in (rank.path / "control").glob("*.json")] == ["checkpoint.json"]
    first_ns = (rank.path / "control/checkpoint.json").stat().st_mtime_ns
    time.sleep(0.3)
    ControlFiles(driver).apply({"checkpoint.json": '{"request": "1"}', "faults.json": '{"faults": []}'})
    rank.send()
    assert (rank.path / "control/checkpoint.json").stat().st_mtime_ns == first_ns
    assert (rank.path / "control/faults.json").read_text() == '{"faults": []}'
    time.sleep(0.3)
    ControlFiles(driver).apply({"checkpoint.json": '{"request": "2"}'})
    rank.send()
    assert sorted(file.name for file in (rank.path / "control").glob("*.json")) == ["checkpoint.json"]
    assert (rank.path / "control/checkpoint.json").stat().st_mtime_ns > first_ns


def test_a_damaged_control_annotation_is_not_the_wish_for_nothing():
    assert texts("{") is None
    assert texts("[]") is None
    assert texts("") == {}
    assert texts('{"stop.json": {"request": "1"}, "x.json": 3}') == {"stop.json": '{"request":"1"}\n'}


def test_a_rank_in_the_collectors_own_folder_sends_nothing(driver, link, new_rank):
    rank = new_rank(0, driver.name)
    rank.append("metrics/rank-0.jsonl", '{"step":1}\n')
    rank.beat(1)
    for _ in range(3):
        rank.send()
    assert link.pushes == []
    assert (driver / "metrics/rank-0.jsonl").read_text() == '{"step":1}\n'


def test_a_folder_has_one_id_however_many_ask_at_once(tmp_path):
    readers = []
    for _ in range(8):
        reading, writing = os.pipe()
        if os.fork() == 0:
            os.write(writing, folder_id(tmp_path).encode())
            os._exit(0)
        os.close(writing)
        readers.append(reading)
    found = {os.read(reading, 64) for reading in readers}
    for reading in readers:
        os.close(reading)
        os.wait()
    assert len(found) == 1
    assert len(found.pop()) == 16


def test_of_ten_thousand_reports_a_new_process_gets_the_earliest_of_the_newest_worker_group(driver, link, new_rank):
    folder = driver / ATTEMPT / "failures"
    for incarnation, ranks in ((0, 5), (1, 100)):
        for rank in range(ranks):
            write_report(folder, FailureReport(failure_class="infra", error_type="E", message="m", rank=rank, incarnation=incarnation))
    found = link.collector.greet(new_rank().folder.greeting()).documents
    names = [name.rpartition("/")[2] for name in found if "/failures/" in name]
    assert names == [f"incarnation-1-rank-{rank}.json" for rank in range(64)]
