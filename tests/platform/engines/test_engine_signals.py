"""The engine's metrics: changes once, standing values when due, and every name in the registry."""

from dataclasses import replace

from samite.engines.local.signals import points
from samite.lifecycle import Memory, Observed, Phase, RunPlan, Status
from samite.lifecycle.decide import Decision, decide
from samite.lifecycle.doubts import BlameMemory
from samite.lifecycle.memory import RecoveryRecord
from samite.lifecycle.phases import FailureClass
from samite.spec import TrainingRun
from samite.telemetry.records import Point


def decision(memory: Memory = Memory()) -> tuple[RunPlan, Decision]:  # noqa: B008 - frozen
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
    return plan, decide(plan, Observed(at_s=1.0), memory, 1.0)


def status() -> Status:
    return decision()[1].status


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
    assert sum(p.name == "samite.recovery.duration" for p in points(before, now, due=False)) == 5
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


def values(found: list[Point], name: str) -> dict[str, float]:
    return {"/".join(point.attributes.values()): point.value for point in found if point.name == name}


def test_plan_and_memory_tell_budgets_nodes_and_how_long_nothing_was_committed():
    plan, now = decision()
    memory = replace(
        now.memory,
        started_at_s=10.0,
        now_s=250.0,
        cycles_without_commit=2,
        spent={FailureClass.INFRA: (100.0, 200.0)},
        blame=(BlameMemory(node="node-2", strikes=2.0, updated_s=250.0),),
    )
    running = replace(now.status, phase=Phase.RUNNING, progress=replace(now.status.progress, step_s=0.5), excluded_nodes=("node-7",))
    found = [point.checked() for point in points(None, running, due=True, plan=plan, memory=memory)]
    assert values(found, "samite.restart.budget.usage")["infra"] == 2.0
    assert values(found, "samite.restart.budget.limit")["infra"] == 20.0
    assert values(found, "samite.attempts.without_commit") == {"": 2.0}
    assert values(found, "samite.checkpoint.age") == {"": 240.0}
    assert values(found, "samite.checkpoint.interval") == {"": 50.0}
    assert values(found, "samite.node.strike.count") == {"node-2": 2.0}
    assert values(found, "samite.node.excluded.count") == {"": 1.0}
    assert values(found, "samite.queue.wait.age") == {"": 0.0}


def test_the_age_of_a_checkpoint_counts_from_its_commit_and_only_while_training():
    plan, now = decision()
    memory = replace(now.memory, started_at_s=10.0, now_s=250.0, newest_commit_at_s=245.0, cycles_without_commit=1)
    running = replace(now.status, phase=Phase.RUNNING)
    assert values(points(None, running, due=True, plan=plan, memory=memory), "samite.checkpoint.age") == {"": 5.0}
    held = points(None, replace(running, phase=Phase.HELD), due=True, plan=plan, memory=memory)
    assert values(held, "samite.checkpoint.age") == {}
    assert values(held, "samite.attempts.without_commit") == {"": 0.0}


def test_a_silent_source_of_evidence_is_a_degraded_detector():
    now = status()
    blind = replace(
        now,
        phase=Phase.RUNNING,
        conditions=tuple(replace(c, reason="HeartbeatOnly") if c.type == "Progressing" else c for c in now.conditions),
    )
    found = values(points(None, blind, due=True), "samite.detector.status")
    assert found["ray/degraded"] == 1.0
    assert found["ray/active"] == 0.0
    assert found["heartbeat/active"] == 1.0
    asleep = values(points(None, replace(blind, phase=Phase.SUSPENDED), due=True), "samite.detector.status")
    assert {key for key, value in asleep.items() if value} == {"heartbeat/off", "ray/off", "storage/off"}


def test_a_heartbeat_that_nobody_expects_yet_is_no_degraded_detector():
    found = values(points(None, replace(status(), phase=Phase.STARTING), due=True), "samite.detector.status")
    assert (found["heartbeat/off"], found["heartbeat/degraded"], found["storage/off"]) == (1.0, 0.0, 0.0)


def test_each_stage_that_began_is_current_or_finished():
    now = replace(status(), started_stages=("a", "b"), current_stage="b", phase=Phase.RUNNING)
    found = values(points(None, now, due=True), "samite.stage.status")
    assert found == {"a/current": 0.0, "a/finished": 1.0, "b/current": 1.0, "b/finished": 0.0}


def test_the_engine_makes_at_most_two_hundred_series_for_a_run():
    plan, now = decision()
    memory = replace(now.memory, started_at_s=0.0, blame=tuple(BlameMemory(node=f"node-{n}", strikes=1.0) for n in range(20)))
    running = replace(now.status, phase=Phase.RUNNING, started_stages=tuple("abcdefgh"))
    found = points(None, running, due=True, plan=plan, memory=memory)
    assert len({(point.name, tuple(sorted(point.attributes.items()))) for point in found}) < 200
