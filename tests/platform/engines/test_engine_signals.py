"""The engine's metrics: changes once, standing values when due, and every name in the registry."""

from dataclasses import replace

from samite.engines.local.signals import points
from samite.lifecycle import Memory, Observed, Phase, RunPlan, Status
from samite.lifecycle.decide import decide
from samite.lifecycle.memory import RecoveryRecord
from samite.lifecycle.phases import FailureClass
from samite.spec import TrainingRun


def status() -> Status:
    stage = {
        "name": "a",
        "kind": "Pretrain",
        "contextLength": 64,
        "workers": {"min": 1, "max": 1},
        "batch": {"tokens": 64},
        "budget": {"steps": 2},
    }
    document = {"apiVersion": "samite.dev/v1alpha1", "kind": "TrainingRun", "metadata": {"name": "x"}, "spec": {"stages": [stage]}}
    plan = RunPlan.from_run(TrainingRun.model_validate(document), uid="u")
    return decide(plan, Observed(at_s=1.0), Memory(), 1.0).status


RECOVERY = RecoveryRecord(
    level=2,
    failure_class=FailureClass.INFRA,
    error_type="NodeLost",
    attempt=2,
    at_s=9.0,
    detect_s=1.0,
    restart_s=14.0,
    load_s=2.0,
    first_step_s=3.0,
)


def test_every_point_is_in_the_registry():
    before = status()
    now = replace(before, recoveries=(RECOVERY,), phase=Phase.RUNNING)
    assert [point.checked().name for point in points(before, now, due=True)]


def test_a_recovery_is_reported_once_and_not_again_by_the_next_supervisor():
    before, now = status(), replace(status(), recoveries=(RECOVERY,))
    assert sum(p.name == "samite.recovery.duration" for p in points(before, now, due=False)) == 4
    assert points(now, now, due=False) == []
    assert [p for p in points(None, now, due=False) if p.name == "samite.recovery.duration"] == []


def test_exactly_one_phase_is_the_present_one():
    sent = [p for p in points(None, status(), due=True) if p.name == "samite.run.status"]
    assert (len(sent), sum(p.value for p in sent)) == (len(Phase), 1.0)


def test_time_is_a_counter_of_what_was_added():
    before = status()
    now = replace(before, ettr=replace(before.ettr, productive_s=before.ettr.productive_s + 2.5))
    sent = [(p.value, p.attributes["samite.time.state"]) for p in points(before, now, due=False) if p.name == "samite.time"]
    assert sent == [(2.5, "productive")]
