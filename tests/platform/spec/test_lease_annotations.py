"""What a driver says through its run's Lease, and what its reader holds afterwards."""

import json

import pytest

from samite.spec.attempt import AttemptResult, AttemptSpec, FailureReport, Heartbeat
from samite.spec.lease import (
    FAILURES,
    FAILURES_BYTES,
    HEARTBEATS,
    RESULT,
    STACKS,
    SUBMISSION,
    RankSign,
    attempt_number,
    failures_annotation,
    heartbeats_annotation,
    read_lease,
    result_annotation,
)

MINE = "demo-s00-a1"


def sign(rank: int, *, step: int = 5, beat_at_s: float = 90.0, heard_at_s: float = 99.0, **more) -> RankSign:
    beat = Heartbeat(
        rank=rank, node=f"pod-{rank}", pid=7, submission_id="demo-s00-a1", incarnation=0, step=step, tokens=9, phase="training",
        monotonic_s=beat_at_s, time_unix_s=2.5,
    )  # fmt: skip
    return RankSign(heartbeat=beat, heard_at_s=heard_at_s, **more)


def test_ages_travel_and_the_reader_holds_them_on_its_own_clock():
    text = heartbeats_annotation([sign(1, cpu_share=0.5, cpu_window_s=6.0), sign(0)], now_s=100.0)
    assert "monotonic_s" not in text
    report = read_lease({SUBMISSION: MINE, HEARTBEATS: text}, seen_at_s=7000.0)
    assert [found.heartbeat.rank for found in report.signs] == [0, 1]
    assert (report.signs[1].heartbeat.monotonic_s, report.signs[1].heard_at_s, report.signs[1].cpu_share) == (6990.0, 6999.0, 0.5)
    assert (report.num_ranks, report.min_step, report.max_step) == (2, 5, 5)


def test_of_many_ranks_the_slowest_the_lead_and_the_youngest_heartbeat_travel():
    signs = [sign(rank, step=1000 + rank, beat_at_s=99.5 if rank == 777 else 90.0) for rank in range(2000)]
    text = heartbeats_annotation(signs, now_s=100.0)
    report = read_lease({SUBMISSION: MINE, HEARTBEATS: text}, seen_at_s=100.0)
    assert [found.heartbeat.rank for found in report.signs] == [*range(16), 777, 1999]
    assert (report.num_ranks, report.min_step, report.max_step) == (2000, 1000, 2999)
    assert len(text) < 8000


def test_failures_keep_the_first_cause_whole_within_their_bytes():
    reports = [
        FailureReport(
            failure_class="infra", error_type="PeerLostError", message="m" * 5000, rank=rank, traceback="t" * 9000, time_unix_s=rank
        )
        for rank in range(64)
    ]
    text = failures_annotation(reversed(reports))
    assert len(text) <= FAILURES_BYTES
    found = read_lease({FAILURES: text}, seen_at_s=0.0).failures
    assert (found[0].rank, len(found[0].traceback), found[-1].traceback) == (0, 4000, "")


def test_a_first_cause_that_is_too_large_is_told_all_the_same():
    report = FailureReport(failure_class="infra", error_type="E", message="\0" * 9000, traceback="\0" * 9000)
    found = read_lease({FAILURES: failures_annotation([report] * 3)}, seen_at_s=0.0).failures
    assert [len(failure.message) for failure in found] == [400] * 3


def test_a_result_comes_back_and_its_long_traceback_keeps_its_end():
    result = AttemptResult(outcome="failed", submission_id="a", step=3, tokens=4, failure={"traceback": "x" * 9000 + "end"})
    back = read_lease({SUBMISSION: "a", RESULT: result_annotation(result)}, seen_at_s=0.0).result
    assert back is not None
    assert (back.step, back.failure["traceback"][-3:], len(back.failure["traceback"])) == (3, "end", 4000)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"ranks": 3}', "[1, null, {}]", '[{"rank": 1}]'])
def test_damaged_annotations_say_nothing(text: str):
    report = read_lease({HEARTBEATS: text, RESULT: text, FAILURES: text}, seen_at_s=0.0)
    assert (report.signs, report.result, report.failures) == ((), None, ())


def test_what_another_submission_left_is_not_this_ones():
    result = result_annotation(AttemptResult(outcome="stage_complete", submission_id=MINE, step=3, tokens=4))
    left = {HEARTBEATS: heartbeats_annotation([sign(0)], now_s=100.0), RESULT: result}
    report = read_lease({SUBMISSION: "demo-s00-a2", **left}, seen_at_s=0.0)
    assert (report.signs, report.result) == ((), None)


def test_answered_stack_requests_are_counted():
    assert read_lease({STACKS: json.dumps({"hang-1": 3})}, seen_at_s=0.0).stacks == {"hang-1": 3}


def test_the_fencing_number_is_read_from_the_submission_id():
    assert [attempt_number(text) for text in ("demo-s01-a12", "x-a2-s00-a3", "demo", "")] == [12, 3, -1, -1]


def test_an_attempt_travels_packed_in_one_printable_word():
    attempt = AttemptSpec(
        run={"metadata": {"name": "ü" * 3000}}, run_uid="u", stage_index=0, attempt=1, submission_id="r-s00-a1", run_folder="", num_workers=2,
        checkpoint_uri="s3://b/p",
    )  # fmt: skip
    text = attempt.packed()
    assert AttemptSpec.unpack(text).to_json() == attempt.to_json()
    assert text.isascii()
    assert len(text) < 1000
    for damaged in ("", "!", text[:-9], "aGVsbG8="):
        with pytest.raises(ValueError, match="SAMITE_ATTEMPT"):
            AttemptSpec.unpack(damaged)
