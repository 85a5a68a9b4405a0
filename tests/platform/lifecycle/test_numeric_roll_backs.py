"""Bad numbers are gone back from: which checkpoint is resumed from, which rows are left out, and that nothing loops."""

from dataclasses import replace

import pytest

from samite.lifecycle import CheckpointObserved, CheckpointsObserved, Phase, QuarantineCheckpoints, Request, RequestKind, RunPlan
from samite.lifecycle.memory import Memory
from samite.lifecycle.plan import NumericPolicy
from samite.lifecycle.rollback import RollBack, covered, last_step_to_keep
from samite.lifecycle.simulation import Engine, faults, impatient, small_plan, small_run
from samite.spec import TrainingRun


def running(*, roll_back_steps: int = 0, checkpoint_every: int = 5) -> Engine:
    plan = small_plan(detection=impatient())
    first = replace(plan.stages[0], numeric=NumericPolicy(roll_back_steps=roll_back_steps))
    engine = small_run(replace(plan, stages=(first, *plan.stages[1:])), checkpoint_every=checkpoint_every)
    engine.run_until(Phase.RUNNING)
    return engine


def started_from(engine: Engine) -> list[int]:
    return [event.attributes["samite.step.resumed"] for event in engine.events if event.name == "samite.training.started"]


def attributes(engine: Engine, name: str) -> list[dict]:
    return [dict(event.attributes) for event in engine.events if event.name == name]


@pytest.mark.parametrize(
    ("window", "steps", "withdrawn", "resumed"),
    [
        ((13, 15), 0, [], 10),  # the newest checkpoint is from before the spike
        ((14, 17), 0, [15], 10),  # one was taken inside it
        ((14, 17), 3, [15], 10),
        ((14, 17), 5, [10, 15], 5),  # wanted: 9 or older
        ((14, 17), 500, [10, 15], 5),  # none is that old: the oldest
    ],
)
def test_a_spike_goes_back_to_a_checkpoint_from_before_it_and_leaves_its_rows_out(
    window: tuple[int, int], steps: int, withdrawn: list[int], resumed: int
):
    engine = running(roll_back_steps=steps)
    faults.spike(engine.world, window)
    engine.run_until(Phase.RECOVERING)
    decision = engine.run_until(Phase.RUNNING)
    assert decision.status.skipped_data_windows == (window,)
    assert sorted(int(item.step) for item in engine.world.checkpoints if item.checkpoint_id in engine.world.quarantined) == withdrawn
    engine.run_until(Phase.SUCCEEDED)
    first, second, _ = engine.world.jobs.values()
    assert (first.submit.skip_data_windows, second.submit.skip_data_windows) == ((), (window,))
    assert engine.memory.recoveries[0].recomputed_steps == window[1] - 1 - resumed
    assert engine.memory.restarts == {"numeric": 1}
    (skipped,) = attributes(engine, "samite.numeric.window.skipped")
    assert (skipped["data_window"], skipped["message"]) == (list(window), "LossSpike: loss 9 where 2 is usual")


def test_rows_that_were_left_out_and_spike_again_hold_the_run_instead_of_looping():
    engine = running()
    faults.spike(engine.world, (13, 15))
    engine.memory = replace(engine.memory, skip_data_windows=((12, 14), (14, 15)))
    decision = engine.run(300)
    assert (decision.status.phase, decision.status.reason) == (Phase.HELD, "SameDataWindow")
    assert engine.memory.restarts == {}


def test_spikes_without_end_use_the_budget_up_and_hold():
    engine = running()
    for first in (6, 9, 12, 16):
        faults.spike(engine.world, (first, first + 2))
    decision = engine.run(600)
    assert (decision.status.phase, decision.status.reason) == (Phase.HELD, "BudgetExhausted")
    assert decision.status.restarts == {"numeric": 2}
    assert "skipped" not in decision.status.message
    assert decision.status.skipped_data_windows == ((6, 8), (9, 11))


def test_a_spike_before_the_first_checkpoint_begins_anew_without_its_rows():
    engine = running(checkpoint_every=10)
    faults.spike(engine.world, (3, 5))
    engine.run_until(Phase.RECOVERING)
    engine.run_until(Phase.SUCCEEDED)
    assert [job.submit.resume for job in engine.world.jobs.values()] == ["none", "none", "latest"]


def listing(*steps: int, stage_index: int = 1, attempt: int = 2) -> tuple[CheckpointObserved, ...]:
    return tuple(CheckpointObserved(checkpoint_id=f"c{s}", step=s, stage_index=stage_index, attempt=attempt) for s in steps)


BACK = RollBack(stage_index=1, good_step=14, wanted_step=9, attempts_up_to=2, reason="spike")


@pytest.mark.parametrize(
    ("usable", "keep"),
    [
        (listing(5, 8, 12, 15), 8),
        (listing(12, 14, 15), 12),
        (listing(15, 16), None),
        ((*listing(7, stage_index=0), *listing(12, 15)), 7),
        ((*listing(14, stage_index=0), *listing(15)), 14),
        ((), None),
    ],
)
def test_the_checkpoint_is_as_old_as_asked_for_or_the_oldest_from_before_the_spike(usable, keep):
    assert last_step_to_keep(BACK, usable) == keep


def test_without_a_checkpoint_from_before_the_spike_a_person_is_asked_and_may_go_on():
    engine = running(checkpoint_every=5)
    engine.run(14)
    faults.spike(engine.world, (13, 16))
    engine.run_until(Phase.RECOVERING)
    for item in engine.world.checkpoints:
        if item.step < 13:
            item.verified = False
            engine.world.quarantined.append(item.checkpoint_id)
    decision = engine.run(60)
    assert (decision.status.phase, decision.status.reason) == (Phase.HELD, "NoCheckpoint")
    assert "step 13, the last good one" in decision.status.message
    engine.turn(replace(engine.look(), requests=(Request(request_id="go", kind=RequestKind.RESUME),)))
    assert engine.run(400).status.phase is Phase.SUCCEEDED


def test_withdrawing_is_asked_for_until_the_storage_shows_it():
    engine = running()
    engine.run(14)
    faults.spike(engine.world, (14, 17))
    engine.run_until(Phase.RECOVERING)
    asked = []
    for _ in range(30):
        engine.world.tick()
        seen = engine.look()
        stale = replace(seen, checkpoints=seen.checkpoints and CheckpointsObserved(recent=listing(10, 15, stage_index=0, attempt=1)))
        asked += [action for action in engine.turn(stale).actions if isinstance(action, QuarantineCheckpoints)]
    assert len(asked) > 3
    assert {(action.stage_index, action.attempts_up_to, action.after_step) for action in asked} == {(0, 1, 10)}
    assert len(engine.world.jobs) == 1, "nothing starts from a checkpoint that is to go"


@pytest.mark.parametrize(
    ("window", "skipped", "all_of_it"),
    [
        ((8, 16), (), False),
        ((8, 16), ((8, 16),), True),
        ((8, 16), ((0, 12), (12, 40)), True),
        ((8, 16), ((12, 40), (0, 12)), True),
        ((8, 16), ((8, 12), (13, 16)), False),
        ((8, 16), ((9, 16),), False),
    ],
)
def test_a_window_counts_as_left_out_only_with_its_last_row(window, skipped, all_of_it):
    assert covered(window, skipped) is all_of_it


def test_the_memory_of_a_roll_back_survives_storing():
    memory = Memory(roll_back=BACK, skip_data_windows=((8, 16),))
    assert Memory.from_json(memory.to_json()) == memory


def test_how_far_to_go_back_is_the_runs_answer_or_the_stages():
    states = ("weights", "optimizer", "lrSchedule", "stepCounter", "tokenCounter", "dataCursor", "routerBias")
    stage = {"kind": "Pretrain", "contextLength": 64, "batch": {"tokens": 64}, "budget": {"steps": 2}}
    stages = [{"name": "a", **stage}, {"name": "b", **stage, "numeric": {"rollBackSteps": 0}, "handover": dict.fromkeys(states, "Carry")}]
    document = {
        "apiVersion": "samite.dev/v1alpha1",
        "kind": "TrainingRun",
        "metadata": {"name": "x"},
        "spec": {"stages": stages, "detection": {"numeric": {"onSpike": "RollBack", "rollBackSteps": 40}}},
    }
    plan = RunPlan.from_run(TrainingRun.model_validate(document), uid="u")
    assert [(s.numeric.spike_pauses, s.numeric.roll_back_steps) for s in plan.stages] == [(False, 40), (False, 0)]
