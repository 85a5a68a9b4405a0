"""Records in storage: whole, in order, resumable, bounded, and no trouble of the storage reaches the attempt."""

import time

import pytest

from samite.checkpoint.records import PART_BYTES, part_key, read_record, recorded_files, recorded_submissions
from samite.checkpoint.store import FileStore, MemoryStore
from samite.errors import UnreachableError
from samite.spec.attempt import FailureReport
from samite_workloads.bridge.mirror import RecordMirror
from samite_workloads.train.reports import write_report

MINE = "demo-s00-a2"
ATTEMPT = f"attempts/{MINE}"


class TroubledStore(MemoryStore):
    """Refuses or delays what is put, as long as it is told to."""

    down = False
    slow_s = 0.0
    largest = 0

    def put(self, key, data, *, crc64=None) -> None:
        time.sleep(self.slow_s)
        if self.down:
            raise UnreachableError("no storage today")
        self.largest = max(self.largest, len(data))
        super().put(key, data, crc64=crc64)


@pytest.fixture
def store(tmp_path) -> TroubledStore:
    return TroubledStore(f"memory://records{tmp_path}")


@pytest.fixture
def append(driver):
    def write(name: str, text: str) -> None:
        (driver / name).parent.mkdir(parents=True, exist_ok=True)
        with (driver / name).open("a", encoding="utf-8") as file:
            file.write(text)

    return write


def content(store, name: str, submission: str = MINE) -> str:
    return b"".join(read_record(store, recorded_files(store, submission)[name])).decode()


def test_everything_that_people_ask_for_later_is_in_storage(store, driver, append):
    for name in ("attempt.json", "result.json"):
        append(f"{ATTEMPT}/{name}", "{}")
    write_report(driver / ATTEMPT / "failures", FailureReport(failure_class="infra", error_type="E", message="m", rank=1))
    append("events.jsonl", "{}\n")
    append("metrics/rank-0.jsonl", "{}\n")
    for name in ("rank-0.log", "driver.log", "stacks-rank-0.txt"):
        append(f"{ATTEMPT}/logs/{name}", "line\n")
    mirror = RecordMirror(store, driver, MINE, every_s=60)
    mirror.start()
    assert mirror.close(patience_s=5)
    assert list(recorded_files(store, MINE)) == [
        "attempt.json",
        "events/events.jsonl",
        "failures/incarnation-0-rank-1.json",
        "logs/driver.log",
        "logs/rank-0.log",
        "logs/stacks-rank-0.txt",
        "metrics/rank-0.jsonl",
        "result.json",
    ]
    assert recorded_submissions(store) == [MINE]
    assert store.head(part_key(MINE, "metrics/rank-0.jsonl", 0)) is not None


def test_a_growing_file_is_the_sum_of_its_parts_at_every_moment_and_each_is_bounded(store, driver, append):
    mirror, text = RecordMirror(store, driver, MINE), ""
    for number in range(12):
        text += f"{number} " * 40_000 + "\n"
        (driver / "events.jsonl").write_text(text)
        mirror.copy()
        assert content(store, "events/events.jsonl") == text
    assert len(recorded_files(store, MINE)["events/events.jsonl"]) > 2
    assert store.largest <= PART_BYTES


def test_a_line_longer_than_a_part_is_cut_and_whole_again_when_read(store, driver, append):
    append("metrics/rank-0.jsonl", "x" * (3 * PART_BYTES) + "\nend\n")
    RecordMirror(store, driver, MINE).copy(last=True)
    assert content(store, "metrics/rank-0.jsonl") == "x" * (3 * PART_BYTES) + "\nend\n"


def test_a_quiet_log_waits_and_events_never_do(store, driver, append):
    mirror = RecordMirror(store, driver, MINE)
    append("metrics/rank-0.jsonl", "x" * 8000)
    append("events.jsonl", "x" * 8000)
    mirror.copy()
    before = mirror.uploads
    append("metrics/rank-0.jsonl", "y")
    append("events.jsonl", "y")
    assert not mirror.copy()
    assert mirror.uploads == before + 1
    append("metrics/rank-0.jsonl", "y" * 1000)
    assert mirror.copy()
    assert content(store, "metrics/rank-0.jsonl") == "x" * 8000 + "y" * 1001


def test_what_does_not_change_is_not_sent_again(store, driver, append):
    mirror = RecordMirror(store, driver, MINE)
    append("events.jsonl", "{}\n")
    append(f"{ATTEMPT}/attempt.json", "{}")
    mirror.copy()
    before = mirror.uploads
    for _ in range(5):
        assert mirror.copy(last=True)
    assert mirror.uploads == before


def test_a_driver_started_again_goes_on_in_the_same_part(store, driver, append):
    append("events.jsonl", "1\n")
    RecordMirror(store, driver, MINE).copy()
    append("events.jsonl", "2\n")
    RecordMirror(store, driver, MINE).copy()
    assert content(store, "events/events.jsonl") == "1\n2\n"
    assert len(recorded_files(store, MINE)["events/events.jsonl"]) == 1


def test_the_next_submission_records_only_its_own_part_of_the_runs_files(store, driver, append):
    append("events.jsonl", "1\n")
    RecordMirror(store, driver, "demo-s00-a1").copy()
    append("events.jsonl", "2\n")
    RecordMirror(store, driver, MINE).copy()
    assert content(store, "events/events.jsonl", "demo-s00-a1") == "1\n"
    assert content(store, "events/events.jsonl") == "2\n"


def test_without_a_memory_the_parts_that_are_there_stay(store, driver, append):
    append("events.jsonl", "1\n")
    RecordMirror(store, driver, MINE).copy()
    for file in (driver / "events.jsonl", driver / "bridge/mirrored.json"):
        file.unlink()
    append("events.jsonl", "2\n")
    RecordMirror(store, driver, MINE).copy()
    assert content(store, "events/events.jsonl") == "1\n2\n"


def test_a_storage_that_is_down_for_a_while_gets_everything_afterwards(store, driver, append):
    mirror = RecordMirror(store, driver, MINE, every_s=0.02)
    store.down = True
    append("events.jsonl", "1\n")
    mirror.start()
    ends_s = time.monotonic() + 5
    while mirror.errors < 3:
        assert time.monotonic() < ends_s
        time.sleep(0.01)
    store.down = False
    append("events.jsonl", "2\n")
    assert mirror.close(patience_s=5)
    assert content(store, "events/events.jsonl") == "1\n2\n"


@pytest.mark.parametrize("trouble", ["down", "slow"])
def test_the_end_does_not_wait_for_a_storage_that_does_not_answer_and_counts_what_is_lost(store, driver, append, trouble):
    append("events.jsonl", "x" * 1000)
    mirror = RecordMirror(store, driver, MINE, every_s=60)
    mirror._places = {}
    store.down, store.slow_s = trouble == "down", 3.0 if trouble == "slow" else 0.0
    mirror.start()
    began_s = time.monotonic()
    assert not mirror.close(patience_s=0.5)
    assert time.monotonic() - began_s < 1.5
    assert mirror.dropped_bytes == 1000
    mirror._thread.join(10)


def test_a_log_that_runs_far_ahead_loses_its_oldest_part(store, driver, append):
    mirror = RecordMirror(store, driver, MINE, log_behind_bytes=2 * PART_BYTES)
    append(f"{ATTEMPT}/logs/rank-0.log", "begin\n")
    mirror.copy()
    append(f"{ATTEMPT}/logs/rank-0.log", ("x" * 99 + "\n") * 50_000 + "end\n")
    assert mirror.copy(last=True)
    text = content(store, "logs/rank-0.log")
    assert text.startswith("begin\n")
    assert text.endswith("end\n")
    assert mirror.dropped_bytes == 50_000 * 100 + 4 - PART_BYTES


def test_one_round_is_bounded_and_the_rest_follows(store, driver, append):
    for rank in range(4):
        append(f"metrics/rank-{rank}.jsonl", ("x" * 99 + "\n") * 40_000)
    mirror = RecordMirror(store, driver, MINE)
    assert not mirror.copy()
    assert mirror.uploaded_bytes < 9 << 20
    while not mirror.copy():
        pass
    assert sum(len(content(store, f"metrics/rank-{rank}.jsonl")) for rank in range(4)) == 16_000_000


def test_records_lie_beside_checkpoints_in_a_folder_too(tmp_path, driver, append):
    store = FileStore(tmp_path / "checkpoints")
    append("events.jsonl", "{}\n")
    RecordMirror(store, driver, MINE).copy()
    assert (tmp_path / "checkpoints" / "records" / MINE / "events" / "events.000000.jsonl").read_text() == "{}\n"
    assert [entry.name for entry in (tmp_path / "checkpoints").iterdir()] == ["records"]
