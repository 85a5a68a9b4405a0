"""What a rank does when something goes wrong: all ranks stop before the optimizer, the cause is reported by class, and the exit code says whether to try again."""

import json
import time
from pathlib import Path

import pytest
import torch

from samite.checkpoint import open_store
from samite.checkpoint.fence import open_session
from samite_workloads.train.reports import first_cause


def test_a_gradient_that_is_not_finite_on_one_rank_stops_all_ranks_before_the_update(
    new_attempt, run_attempt, ask_for_fault, reports_of, result_of, events_of, losses
):
    attempt = new_attempt(ranks=2)
    ask_for_fault(attempt, {"kind": "nan", "rank": 1, "step": 3})  # step 3 is neither sampled nor saved
    run_attempt(attempt)
    reports = reports_of(attempt)
    assert [(r.rank, r.failure_class, r.error_type, r.step) for r in reports] == [
        (0, "numeric", "NonFiniteError", 2),
        (1, "numeric", "NonFiniteError", 2),
    ]
    assert {tuple(r.data_window) for r in reports} == {(12, 18)}  # 6 rows a step
    assert sorted(losses(attempt.run_folder)) == [1, 2]
    assert result_of(attempt).failure["failure_class"] == "numeric"
    (event,) = events_of(attempt, "samite.numeric.nonfinite")
    assert (event["attributes"]["samite.step.index"], event["attributes"]["samite.layer.block"]) == (3, "embed_tokens")
    assert {(r.good_step, "layer embed_tokens" in r.message) for r in reports} == {(2, True)}

    again = new_attempt(ranks=2, skip_data_windows=((12, 18),))
    assert run_attempt(again) == [0, 0]
    assert result_of(again).outcome == "stage_complete"


def test_a_refused_step_leaves_no_trace_in_what_is_trained_after_it(new_attempt, run_attempt, ask_for_fault, result_of, stored):
    clean, poisoned = new_attempt("clean"), new_attempt("poisoned")
    run_attempt(clean)
    ask_for_fault(poisoned, {"kind": "nan", "rank": 0, "step": 3})
    run_attempt(poisoned)
    again = new_attempt("poisoned")
    run_attempt(again)
    found, wanted = stored(again, result_of(again).checkpoint_id), stored(clean, result_of(clean).checkpoint_id)
    assert [name for name in wanted if not torch.equal(found[name], wanted[name])] == []


def test_an_exception_is_reported_with_its_traceback_and_the_others_name_a_lost_peer(
    new_attempt, run_attempt, ask_for_fault, reports_of, result_of
):
    attempt = new_attempt(ranks=2)
    ask_for_fault(attempt, {"kind": "exception", "rank": 1, "step": 2})
    run_attempt(attempt)
    witness, culprit = reports_of(attempt)
    assert (culprit.failure_class, culprit.error_type, culprit.node, culprit.restartable) == (
        "application",
        "InjectedFaultError",
        "node-1",
        True,
    )
    assert "begin_step" in culprit.traceback
    assert (witness.failure_class, witness.error_type) == ("infra", "PeerLostError")
    assert first_cause([witness, culprit]) == culprit
    assert result_of(attempt).outcome == "failed"


def test_a_killed_rank_leaves_its_peers_with_a_lost_peer(new_attempt, run_attempt, ask_for_fault, reports_of):
    attempt = new_attempt(ranks=2)
    ask_for_fault(attempt, {"kind": "kill", "rank": 1, "step": 2})
    assert run_attempt(attempt)[1] == -9
    assert [(r.rank, r.error_type) for r in reports_of(attempt)] == [(0, "PeerLostError")]


def test_running_out_of_memory_has_a_class_of_its_own(new_attempt, run_attempt, ask_for_fault, reports_of):
    attempt = new_attempt()
    ask_for_fault(attempt, {"kind": "oom", "rank": 0, "step": 1})
    run_attempt(attempt)
    assert [(r.failure_class, r.error_type) for r in reports_of(attempt)] == [("oom", "MemoryError")]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stage": 1}, "names no hand-over"),
        ({"ranks": 1, "num_workers": 4}, "ranks can share evenly"),
    ],
)
def test_what_no_restart_can_repair_is_said_to_be_so(change, message, new_attempt, run_attempt, reports_of, document):
    attempt = new_attempt(**change)
    run_attempt(attempt)
    reports = reports_of(attempt)
    assert {r.restartable for r in reports} == {False}
    assert message in reports[0].message


def test_a_corpus_for_more_tokens_than_the_model_has_is_refused(new_attempt, run_attempt, reports_of, document):
    document["spec"]["model"]["overrides"]["vocab_size"] = 64
    attempt = new_attempt()
    run_attempt(attempt)
    report = reports_of(attempt)[0]
    assert (report.restartable, "model.overrides.vocab_size" in report.message) == (False, True)


def test_a_rank_that_finds_itself_fenced_stops_instead_of_training_for_nothing(new_attempt, run_attempt, document, reports_of):
    document["spec"]["stages"][0]["budget"] = {"steps": 4000}
    attempt = new_attempt()
    beat = Path(attempt.run_folder) / "heartbeats" / "rank-0.json"

    def begin_a_newer_session():
        ends_s = time.monotonic() + 60
        while time.monotonic() < ends_s and not (beat.exists() and json.loads(beat.read_text())["checkpoint_step"] >= 2):
            time.sleep(0.02)
        open_session(open_store(attempt.checkpoint_uri), run_uid=attempt.run_uid, epoch=attempt.attempt + 1, nonce="newer")

    assert run_attempt(attempt, meanwhile=begin_a_newer_session) == [0]
    (report,) = reports_of(attempt)
    assert (report.error_type, report.restartable) == ("FencedError", False)
