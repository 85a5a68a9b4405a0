"""Stages and checkpoints by the clock instead of by steps, decided by rank 0 and followed by all; and AdamW in the place of Muon."""

from samite.checkpoint import Catalog, open_store


def steps_stored(attempt):
    return sorted(entry.step for entry in Catalog(open_store(attempt.checkpoint_uri)).list())


def test_a_stage_of_seconds_ends_on_all_ranks_after_the_same_step(new_attempt, run_attempt, result_of, document):
    document["spec"]["stages"][0]["budget"] = {"wallSeconds": 1.5}
    document["spec"]["checkpoint"]["interval"] = {"seconds": 0.4}
    attempt = new_attempt(ranks=2)
    assert run_attempt(attempt) == [0, 0]
    result = result_of(attempt)
    assert result.outcome == "stage_complete"
    assert result.step >= 2
    stored = steps_stored(attempt)
    assert stored[-1] == result.step
    assert len(stored) >= 2
    state = Catalog(open_store(attempt.checkpoint_uri)).manifest(result.checkpoint_id).extra["state"]
    assert 1.5 <= state["stage_wall_s"] < 30


def test_adamw_alone_trains_and_resumes_too(new_attempt, run_attempt, ask_for_fault, result_of, document, losses):
    document["spec"]["optimizer"].update(name="AdamW", learningRate=0.003)
    whole, broken = new_attempt("whole"), new_attempt("broken")
    assert run_attempt(whole) == [0]
    ask_for_fault(broken, {"kind": "kill", "rank": 0, "step": 4})
    assert run_attempt(broken) == [-9]
    assert run_attempt(new_attempt("broken")) == [0]
    found = losses(broken.run_folder)
    assert found == losses(whole.run_folder)
    assert found[6] < found[1]
