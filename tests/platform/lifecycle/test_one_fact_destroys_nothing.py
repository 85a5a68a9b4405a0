"""One bad fact, however long it stands, among signs of healthy training: nothing is stopped, killed, replaced or destroyed."""

from dataclasses import replace

import pytest

from samite.lifecycle import (
    AttemptObserved,
    ClusterObserved,
    ClusterState,
    JobStatus,
    NodeFact,
    NodeSays,
    Observed,
    Phase,
    ProcessState,
    Source,
)
from samite.lifecycle.evidence import CLASS_OF
from samite.lifecycle.plan import RunPlan, StagePlan
from samite.lifecycle.simulation import Engine, World, impatient
from samite.spec.attempt import FailureReport

STAGE = StagePlan(name="only", steps=100_000, batch_tokens=10, min_workers=2, max_workers=2)
PLAN = RunPlan(name="demo", uid="u1", stages=(STAGE,), detection=impatient())
SUBMISSION = "demo-s00-a1"


def job(status: JobStatus):
    return lambda seen: replace(seen, attempts=(AttemptObserved(submission_id=SUBMISSION, job_status=status),))


def node_fact(name_ends: str, source: Source, says: NodeSays, *, final: bool = False):
    def change(seen: Observed) -> Observed:
        cluster = seen.cluster[0]
        fact = NodeFact(source=source, says=says, detail="bad", final=final)
        nodes = tuple(replace(node, facts=(fact,)) if node.name.endswith(name_ends) else node for node in cluster.nodes)
        return replace(seen, cluster=(replace(cluster, nodes=nodes),))

    return change


def all_ranks(**changes):
    return lambda seen: replace(seen, ranks=tuple(replace(rank, **changes) for rank in seen.ranks))


def one_rank(**changes):
    return lambda seen: replace(seen, ranks=tuple(replace(rank, **changes) if rank.rank == 1 else rank for rank in seen.ranks))


def report(failure_class: str):
    said = FailureReport(failure_class=failure_class, error_type="RuntimeError", message="boom", rank=1, node="n1", data_window=(1, 2))
    return lambda seen: replace(seen, attempts=tuple(replace(item, reports=(said,)) for item in seen.attempts))


FACTS = {
    "ray says failed": job(JobStatus.FAILED),
    "ray says stopped": job(JobStatus.STOPPED),
    "ray says succeeded": job(JobStatus.SUCCEEDED),
    "ray says pending": job(JobStatus.PENDING),
    "ray does not know it": job(JobStatus.NOT_FOUND),
    "the cluster is absent": lambda seen: replace(
        seen, cluster=(ClusterObserved(cluster_id=seen.cluster[0].cluster_id, state=ClusterState.ABSENT),)
    ),
    "the cluster is stopping": lambda seen: replace(seen, cluster=(replace(seen.cluster[0], state=ClusterState.STOPPING),)),
    "every heartbeat is old": all_ranks(progress_age_s=5000.0, cpu_share=0.9),
    "one heartbeat is old": one_rank(progress_age_s=5000.0),
    "one process is gone": one_rank(process=ProcessState.GONE),
    "one process is stopped": one_rank(process=ProcessState.STOPPED),
    "every process is idle": all_ranks(cpu_share=0.0),
    "every device is at rest": all_ranks(device_share=0.0),
    "one rank exited": one_rank(exit_code=1),
    "one rank was killed": one_rank(exit_signal=9),
    "one rank asks not to be restarted": one_rank(exit_code=93),
    "one stack differs": one_rank(stack_group="elsewhere"),
    "everything is silent": lambda seen: Observed(at_s=seen.at_s, admitted=None, suspend=None),
    **{f"a report of class {name}": report(name) for name in ("application", "oom", "numeric", "infra", "hang", "preemption")},
    **{f"{source} calls the head dead": node_fact("-head", source, NodeSays.DEAD) for source in CLASS_OF},
    **{f"{source} calls a worker dead": node_fact("n1", source, NodeSays.DEAD) for source in CLASS_OF},
    "the supervisor saw the head end": node_fact("-head", Source.NODE_SUPERVISOR, NodeSays.DEAD, final=True),
    "the supervisor saw a worker end": node_fact("n1", Source.NODE_SUPERVISOR, NodeSays.DEAD, final=True),
    "a device of a worker is broken": node_fact("n1", Source.DEVICE, NodeSays.HARDWARE_FAULT),
    "a worker will be taken away": node_fact("n1", Source.KUBERNETES, NodeSays.PREEMPTION_NOTICE),
}


def healthy() -> Engine:
    engine = Engine(PLAN, World(uid="u1", stage_steps=(100_000,)))
    engine.run(60)
    return engine


@pytest.mark.parametrize("name", list(FACTS))
def test_one_fact_destroys_nothing_however_long_it_stands(name: str):
    engine = healthy()
    for _ in range(250):
        engine.world.tick(2.0)
        decision = engine.turn(FACTS[name](engine.look()))
        assert decision.destructive == (), (decision.status.phase, decision.status.message)
    assert engine.world.attempts_seen == [1]
    engine.run(60, seconds=1.0)
    assert engine.world.running() is not None
    assert engine.world.attempts_seen == [1]


PAIRS = [
    ("the supervisor saw the head end", "every heartbeat is old"),
    ("ray says failed", "every heartbeat is old"),
    ("a report of class numeric", "every heartbeat is old"),
    ("one rank was killed", "every heartbeat is old"),
    ("the cluster is absent", "every heartbeat is old"),
]


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_two_independent_facts_are_acted_on(first: str, second: str):
    engine = healthy()
    for _ in range(120):
        engine.world.tick(2.0)
        decision = engine.turn(FACTS[first](FACTS[second](all_ranks(process=None)(engine.look()))), apply=0)
        if decision.destructive or engine.memory.attempt > 1:
            return
    raise AssertionError((decision.status.phase, decision.status.message))


@pytest.mark.parametrize(
    "name", ["every heartbeat is old", "every process is idle", "one stack differs", "ray says failed", "ray does not know it"]
)
def test_a_suspicion_on_one_fact_is_no_failure_and_costs_nothing(name: str):
    engine = healthy()
    for _ in range(100):
        engine.world.tick(2.0)
        decision = engine.turn(FACTS[name](engine.look()))
    assert decision.status.phase is Phase.RUNNING
    assert decision.status.restarts == {}
    assert decision.status.last_failure is None
    assert "samite.failure.detected" not in [event.name for event in engine.events]
