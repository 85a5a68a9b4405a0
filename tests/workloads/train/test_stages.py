"""From stage to stage: nothing starts without the committed hand-over, and each state is carried or begun anew as it says."""

import json
import shutil
import time
from pathlib import Path

import pytest
import torch

from samite.checkpoint import Catalog, open_store
from samite.checkpoint.handover import commit_document
from samite.lifecycle.handover import content_hash


def hand_over(attempt, checkpoint_id: str) -> str:
    """What an engine does at the end of stage 0; returns the content hash."""
    document = {"runUid": attempt.run_uid, "stageIndex": 0, "stage": "short", "nextStage": "long", "checkpointId": checkpoint_id, "step": 6}
    commit_document(open_store(attempt.checkpoint_uri), "short", document)
    return content_hash(document)


def state_of(attempt, checkpoint_id: str):
    return Catalog(open_store(attempt.checkpoint_uri)).manifest(checkpoint_id).extra["state"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the run folder of a finished first stage is kept for the tests of this file; empty before the first of them."""
    return tmp_path_factory.mktemp("finished") / "run"


@pytest.fixture
def first_stage(finished, new_attempt, run_attempt, result_of):
    """A finished first stage: (attempt, checkpoint id). Trained once, copied for every other test."""
    attempt = new_attempt()
    place = Path(attempt.run_folder)
    if finished.exists():
        shutil.rmtree(place)
        shutil.copytree(finished, place)
    else:
        assert run_attempt(attempt) == [0]
        shutil.copytree(place, finished)
    return attempt, result_of(attempt).checkpoint_id


def test_the_next_stage_goes_on_where_the_first_one_ended(first_stage, new_attempt, run_attempt, result_of, losses, document):
    before, checkpoint_id = first_stage
    after = new_attempt(stage=1, ranks=1, handover=hand_over(before, checkpoint_id))
    assert run_attempt(after) == [0]
    result = result_of(after)
    assert (result.outcome, result.step, result.tokens) == ("stage_complete", 9, 9 * 288)
    state = state_of(after, result.checkpoint_id)
    assert (state["stage_name"], state["stage_step"], state["step_counter"]) == ("long", 3, 9)
    assert state["cursor"]["row"] == 6 * 6 + 3 * 3
    assert sorted(losses(after.run_folder)) == list(range(1, 10))


def test_resets_begin_anew_and_the_rest_is_carried(first_stage, new_attempt, run_attempt, result_of, document, stored):
    before, checkpoint_id = first_stage
    document["spec"]["stages"][1]["handover"].update(
        optimizer="Reset", dataCursor="Reset", stepCounter="Reset", tokenCounter="Reset", routerBias="Reset"
    )
    document["spec"]["stages"][1]["budget"] = {"steps": 1}
    after = new_attempt(stage=1, handover=hand_over(before, checkpoint_id))
    assert run_attempt(after) == [0]
    result = result_of(after)
    state = state_of(after, result.checkpoint_id)
    assert (state["step"], state["step_counter"], state["token_counter"], state["cursor"]["row"]) == (7, 1, 288, 3)
    tensors, earlier = stored(after, result.checkpoint_id), stored(before, checkpoint_id)
    assert tensors["optimizer/adamw/steps"].item() == 1.0
    weights = "model/layers.0.self_attn.o_proj.weight"
    assert 0 < (tensors[weights] - earlier[weights]).norm() < earlier[weights].norm()


@pytest.mark.parametrize(
    ("told", "committed", "message"),
    [("", True, "names no hand-over"), ("0" * 64, False, "has not handed over"), ("0" * 64, True, "has content hash")],
)
def test_without_the_right_hand_over_the_next_stage_refuses_to_start(
    told, committed, message, first_stage, new_attempt, run_attempt, reports_of
):
    before, checkpoint_id = first_stage
    if committed:
        hand_over(before, checkpoint_id)
    after = new_attempt(stage=1, handover=told)
    run_attempt(after)
    report = reports_of(after)[0]
    assert (report.error_type, report.restartable) == ("HandoverMissingError", False)
    assert message in report.message


def test_a_stage_never_starts_from_another_checkpoint_than_the_one_handed_over(first_stage, new_attempt, run_attempt, reports_of):
    before, _ = first_stage
    older = min(entry.checkpoint_id for entry in Catalog(open_store(before.checkpoint_uri)).list())
    after = new_attempt(stage=1, handover=hand_over(before, older))
    run_attempt(after)
    assert f"must start from checkpoint {older}" in reports_of(after)[0].message


def test_asking_for_a_checkpoint_writes_one_and_asking_to_stop_ends_the_attempt(new_attempt, run_attempt, result_of, document):
    document["spec"]["checkpoint"]["interval"] = {"steps": 1000}
    document["spec"]["stages"][0]["budget"] = {"steps": 100000}
    attempt = new_attempt(ranks=2)
    control = Path(attempt.run_folder) / "control"

    def ask():
        beat, ends_s = Path(attempt.run_folder) / "heartbeats" / "rank-0.json", time.monotonic() + 80

        def wait_for(key, least):
            while time.monotonic() < ends_s and not (beat.exists() and json.loads(beat.read_text())[key] >= least):
                time.sleep(0.05)

        wait_for("step", 2)
        (control / "checkpoint.json").write_text('{"request": "1"}')
        wait_for("checkpoint_step", 1)
        (control / "stop.json").write_text('{"request": "2"}')

    assert run_attempt(attempt, meanwhile=ask) == [0, 0]
    result = result_of(attempt)
    assert result.outcome == "stopped"
    steps = sorted(entry.step for entry in Catalog(open_store(attempt.checkpoint_uri)).list())
    assert len(steps) == 2
    assert steps[-1] == result.step


def test_weights_reset_but_router_bias_carried_keeps_only_the_bias(first_stage, new_attempt, run_attempt, result_of, document, stored):
    before, checkpoint_id = first_stage
    document["spec"]["stages"][1]["handover"].update(weights="Reset", optimizer="Reset")
    document["spec"]["stages"][1]["budget"] = {"steps": 1}
    document["spec"]["router"] = {"balancing": "None"}
    after = new_attempt(stage=1, handover=hand_over(before, checkpoint_id))
    assert run_attempt(after) == [0]
    tensors, earlier = stored(after, result_of(after).checkpoint_id), stored(before, checkpoint_id)
    biases = [name for name in tensors if name.endswith("e_score_correction_bias")]
    assert biases
    assert all(torch.equal(tensors[name], earlier[name]) for name in biases)
    assert all(earlier[name].any() for name in biases)
