"""What a stage does when numbers leave their range: tell, or pause at a checkpoint; the run's answer where the stage gives none."""

from dataclasses import replace

import pytest

from samite.lifecycle import NumericAlarm, Phase, Request, RequestCheckpoint, RequestKind, RunPlan, StopSubmission
from samite.lifecycle.plan import NumericPolicy
from samite.lifecycle.simulation import Engine, impatient, small_plan, small_run
from samite.spec import TrainingRun


def running(plan: RunPlan | None = None) -> Engine:
    engine = small_run(plan or small_plan(detection=impatient()), checkpoint_every=5)
    engine.run_until(Phase.RUNNING)
    engine.run(12)
    return engine


SPIKE = NumericAlarm(kind="LossSpike", step=9, message="loss 9 where 2 is usual")
COLLAPSE = NumericAlarm(kind="ExpertCollapse", step=9, message="the router of layer 1 collapsed")


def with_numeric(**changes) -> RunPlan:
    plan = small_plan(detection=impatient())
    first = replace(plan.stages[0], numeric=NumericPolicy(**changes))
    return replace(plan, stages=(first, *plan.stages[1:]))


@pytest.mark.parametrize(("alarm", "policy"), [(SPIKE, "spike_pauses"), (COLLAPSE, "collapse_pauses")])
def test_a_spike_or_a_collapse_pauses_at_a_checkpoint_where_the_stage_says_so(alarm: NumericAlarm, policy: str):
    engine, asked = running(with_numeric(**{policy: True})), []
    for _ in range(60):
        engine.world.tick()
        decision = engine.turn(replace(engine.look(), alarm=alarm))
        asked += [action for action in decision.actions if isinstance(action, RequestCheckpoint)]
        assert not any(isinstance(action, StopSubmission) for action in decision.actions)
    assert (decision.status.phase, decision.status.reason) == (Phase.HELD, alarm.kind)
    assert alarm.message in decision.status.message
    assert {action.request_id for action in asked} == {asked[0].request_id}
    assert "samite.failure.detected" not in {event.name for event in engine.events}
    engine.turn(replace(engine.look(), alarm=alarm, requests=(Request(request_id="go", kind=RequestKind.RESUME),)))
    for _ in range(300):
        engine.world.tick()
        decision = engine.turn(replace(engine.look(), alarm=alarm))
    assert decision.status.phase is Phase.SUCCEEDED, "the same old event pauses once"


@pytest.mark.parametrize("alarm", [SPIKE, COLLAPSE])
def test_a_spike_or_a_collapse_is_only_told_by_default(alarm: NumericAlarm):
    engine = running()
    assert engine.turn(replace(engine.look(), alarm=alarm)).actions == ()


def test_a_new_spike_pauses_again_and_a_new_collapse_of_an_accepted_stage_does_not():
    engine = running(with_numeric(spike_pauses=True, collapse_pauses=True))
    engine.memory = replace(engine.memory, alarm_paused_step=9, collapse_accepted_stage=0)
    engine.turn(replace(engine.look(), alarm=replace(COLLAPSE, step=12)))
    assert engine.memory.pause is None
    engine.turn(replace(engine.look(), alarm=replace(SPIKE, step=12)))
    assert engine.memory.pause is not None


def test_an_alarm_is_read_from_the_trainers_events_and_from_no_others():
    attributes = {"samite.value": 9.0, "samite.median": 2.0, "samite.step.index": 7, "samite.data.window": [56, 64]}
    alarm = NumericAlarm.from_event("samite.loss.spike", attributes)
    assert (alarm.kind, alarm.step, alarm.message) == ("LossSpike", 7, "loss 9 where 2 is usual; data rows [56, 64]")
    assert NumericAlarm.from_event("samite.grad.norm.spike", attributes).kind == "GradNormSpike"
    collapse = {"samite.layer.block": "3", "samite.experts.idle": 5, "samite.experts.cv": 2.5, "samite.step.index": 8}
    assert "layer 3" in NumericAlarm.from_event("samite.moe.expert.collapse", collapse).message
    assert NumericAlarm.from_event("samite.decay.underflow", attributes) is None
    assert NumericAlarm.from_event("samite.loss.spike", {}).step == 0


def plan_with(detection: dict, **stage: dict) -> RunPlan:
    stages = [
        {
            "name": name,
            "kind": "Pretrain" if name == "a" else "Anneal",
            "contextLength": 64,
            "batch": {"tokens": 64},
            "budget": {"steps": 2},
            **({"numeric": stage[name]} if name in stage else {}),
        }
        for name in ("a", "b")
    ]
    states = ("weights", "optimizer", "lrSchedule", "stepCounter", "tokenCounter", "dataCursor", "routerBias")
    stages[1]["handover"] = dict.fromkeys(states, "Carry")
    document = {"apiVersion": "samite.dev/v1alpha1", "kind": "TrainingRun", "metadata": {"name": "x"}}
    return RunPlan.from_run(
        TrainingRun.model_validate({**document, "spec": {"stages": stages, "detection": {"numeric": detection}}}), uid="u"
    )


def test_a_stage_takes_the_runs_answers_but_for_its_own():
    plan = plan_with({"onNonfinite": "Hold", "onSpike": "Pause"}, b={"onSpike": "Observe", "onCollapse": "Pause"})
    assert [stage.numeric for stage in plan.stages] == [
        NumericPolicy(on_nonfinite="Hold", spike_pauses=True, collapse_pauses=False),
        NumericPolicy(on_nonfinite="Hold", spike_pauses=False, collapse_pauses=True),
    ]


def test_nothing_said_means_roll_back_and_tell():
    assert {stage.numeric for stage in plan_with({}).stages} == {NumericPolicy()}
