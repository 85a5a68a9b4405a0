"""What decisions read from storage: results, warnings, the numbers of gates, the highest attempt. And how slow reads stay beside a turn."""

import json
import secrets
import threading

import pytest

from samite.checkpoint.records import part_key, record_key
from samite.checkpoint.store import MemoryStore
from samite.engines.kuberay.background import Background
from samite.engines.kuberay.records_watch import (
    highest_attempt,
    recorded_numbers,
    recorded_result,
    recorded_warnings,
    submissions_of_stage,
)
from samite.errors import UnreachableError
from samite.lifecycle import GateQuestion
from samite.spec.attempt import AttemptResult


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(f"memory://{secrets.token_hex(6)}")


def lines(*documents: dict) -> bytes:
    return b"".join(json.dumps(document).encode() + b"\n" for document in documents)


def loss(step: int, value: float) -> dict:
    return {"time": 1.0, "step": step, "points": [["samite.loss", value, {"samite.loss.kind": "total"}]]}


def test_the_highest_attempt_is_the_largest_number_and_the_operator_s_records_are_none(store):
    assert highest_attempt(store) == 0
    for name in ("demo-s00-a9", "demo-s01-a10", "operator"):
        store.put(record_key(name, "result.json"), b"{}")
    assert highest_attempt(store) == 10
    assert submissions_of_stage(store, "demo", 0) == ["demo-s00-a9"]


def test_a_result_is_read_once_it_is_there(store):
    assert recorded_result(store, "demo-s00-a1") is None
    result = AttemptResult(outcome="stopped", submission_id="demo-s00-a1", step=7, tokens=1, checkpoint_id="c")
    store.put(record_key("demo-s00-a1", "result.json"), result.to_json().encode())
    assert recorded_result(store, "demo-s00-a1") == result
    store.put(record_key("demo-s00-a1", "result.json"), b"{")
    assert recorded_result(store, "demo-s00-a1") is None


def test_a_stall_stands_until_the_next_commit_and_decay_is_kept(store):
    stall, commit = {"name": "samite.storage.stall", "attributes": {}}, {"name": "samite.checkpoint.committed", "attributes": {}}
    decay = {
        "name": "samite.decay.underflow",
        "attributes": {
            "samite.decay.cause": "lossy_flush",
            "samite.step.index": 12,
            "samite.decay.lost": 3,
            "samite.threshold": 0,
            "samite.layer.block": "kda.1",
        },
    }
    trend = {"name": "samite.decay.underflow", "attributes": {"samite.decay.cause": "trend", "samite.step.index": 99}}
    key = part_key("demo-s00-a1", "events/events.jsonl", 0)
    assert recorded_warnings(store, "demo-s00-a1").decay is None
    store.put(key, lines(decay, trend, stall) + b"{damaged\n")
    found = recorded_warnings(store, "demo-s00-a1")
    assert found.stalled
    assert (found.decay.step, found.decay.lossy_flushes, found.decay.layer) == (12, 3.0, "kda.1")
    store.put(key, lines(decay, stall, commit))
    assert not recorded_warnings(store, "demo-s00-a1").stalled


def test_a_gate_s_numbers_run_over_parts_and_attempts_in_order(store):
    for part, steps in ((0, (1, 2)), (1, (3, 4))):
        store.put(part_key("demo-s00-a2", "metrics/rank-0.jsonl", part), lines(*(loss(step, 10.0 - step) for step in steps)))
    store.put(part_key("demo-s00-a10", "metrics/rank-0.jsonl", 0), lines(loss(5, 1.0)))
    question = GateQuestion(metric="loss", op="<=", value=5.0, window=2)
    numbers = recorded_numbers(store, ["demo-s00-a10", "demo-s00-a2"], [question, GateQuestion(metric="grad_norm", op="<=", value=1.0)])
    assert numbers == {"loss": pytest.approx(3.5)}


def test_a_slow_read_holds_no_turn_up_and_silence_keeps_the_last_answer():
    now, answers = [0.0], iter([1, UnreachableError("away"), 2])
    asked = threading.Semaphore(0)

    def work() -> int:
        try:
            found = next(answers)
            if isinstance(found, Exception):
                raise found
            return found
        finally:
            asked.release()

    background = Background(clock=lambda: now[0])

    def ask() -> object:
        return background.ask("uid/x", work, every_s=5.0)

    def settled(wanted: object) -> None:
        for _ in range(200):
            if background.ask("uid/x", work, every_s=1e9) == wanted:
                return
            threading.Event().wait(0.01)
        raise AssertionError(wanted)

    assert ask() is None
    assert asked.acquire(timeout=5)
    settled(1)
    assert ask() == 1
    now[0] = 6.0
    ask()
    assert asked.acquire(timeout=5)
    settled(1)
    threading.Event().wait(0.05)
    now[0] = 12.0
    ask()
    assert asked.acquire(timeout=5)
    settled(2)
    background.close()


def test_work_that_is_under_way_is_not_begun_twice_and_its_error_is_told():
    background, gate, count = Background(), threading.Event(), [0]

    def work() -> None:
        count[0] += 1
        gate.wait(5)
        raise UnreachableError("away")

    assert background.once("k", work, wait_s=0.01) is False
    assert background.once("k", work, wait_s=0.01) is False
    gate.set()
    with pytest.raises(UnreachableError):
        background.once("k", work, wait_s=5)
    assert count == [1]
    background.close()
