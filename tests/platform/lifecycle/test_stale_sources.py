"""Parts of an observation that are older than the question they seem to answer are not believed."""

from dataclasses import replace

import pytest

from samite.lifecycle import (
    AttemptObserved,
    ClusterObserved,
    ClusterState,
    JobStatus,
    Phase,
    Request,
    RequestKind,
    Submit,
)
from samite.lifecycle.facts import SUBMIT_GRACE_S
from samite.lifecycle.simulation import Engine, faults, impatient, small_plan, small_run


def running() -> Engine:
    engine = small_run(small_plan(detection=impatient()))
    engine.run_until(Phase.RUNNING)
    engine.run(8)
    return engine


def absent(engine: Engine, age_s: float) -> tuple[ClusterObserved, ...]:
    return (ClusterObserved(cluster_id=engine.memory.cluster.cluster_id, state=ClusterState.ABSENT, age_s=age_s),)


@pytest.mark.parametrize(("age_s", "believed"), [(500.0, False), (3.0, False), (0.0, True)])
def test_a_submission_ended_with_its_cluster_only_if_that_was_seen_after_the_cluster_was_to_go(age_s: float, believed: bool):
    engine = running()
    faults.silence_dashboard(engine.world, 1e6)
    faults.put_rank_to_sleep(engine.world, 0)
    restart = Request(request_id="r", kind=RequestKind.RESTART)
    engine.turn(replace(engine.look(), requests=(restart,)), apply=0)
    while not engine.memory.cluster.leaving:
        engine.world.tick()
        engine.turn(apply=0)
    engine.world.now = engine.memory.cluster.leaving_since_s + 2.0
    assert engine.memory.live is not None
    engine.turn(replace(engine.look(), cluster=absent(engine, age_s)), apply=0)
    assert (engine.memory.live is None) is believed


@pytest.mark.parametrize(("age_s", "believed"), [(50.0, False), (0.0, True)])
def test_a_released_cluster_is_gone_only_if_that_was_seen_after_it_was_released(age_s: float, believed: bool):
    engine = running()
    engine.world.suspend = True
    for _ in range(60):
        engine.turn()
        if engine.memory.cluster is not None and engine.memory.cluster.leaving:
            break
        engine.world.tick()
    engine.world.now += 1.0
    engine.turn(replace(engine.look(), cluster=absent(engine, age_s)))
    assert (engine.memory.phase is Phase.SUSPENDED) is believed


def test_a_young_cluster_is_not_lost_because_an_older_look_did_not_find_it():
    engine = running()
    engine.world.tick()
    decision = engine.turn(replace(engine.look(), cluster=absent(engine, 500.0)))
    assert decision.destructive == ()
    assert decision.status.phase is Phase.RUNNING


@pytest.mark.parametrize(("waited", "age_s", "ended"), [(2.0, 0.0, False), (30.0, 29.0, False), (30.0, 0.0, True), (30.0, 15.0, True)])
def test_a_submission_never_arrived_only_if_ray_says_so_long_after_it_was_sent(waited: float, age_s: float, ended: bool):
    engine = small_run(small_plan(detection=impatient()))
    engine.world.submit_takes_s = 1e9
    engine.run_until(Phase.STARTING)
    restart = Request(request_id="r", kind=RequestKind.RESTART)
    engine.turn(replace(engine.look(), requests=(restart,)))
    asked = engine.memory.live.asked_at_s
    engine.world.now = asked + waited
    live = engine.memory.live.submission_id
    told = AttemptObserved(submission_id=live, job_status=JobStatus.NOT_FOUND, job_age_s=age_s)
    decision = engine.turn(replace(engine.look(), attempts=(told,)), apply=0)
    assert (decision.memory.live is None or decision.memory.live.submission_id != live) is ended
    assert SUBMIT_GRACE_S == 10.0


@pytest.mark.parametrize(("age_s", "submits"), [(100.0, False), (0.0, True)])
def test_a_listing_from_before_the_end_of_an_attempt_does_not_say_where_to_resume(age_s: float, submits: bool):
    engine = running()
    faults.kill_driver(engine.world)
    found = []
    for _ in range(20):
        engine.world.tick()
        seen = engine.look()
        decision = engine.turn(replace(seen, checkpoints=replace(seen.checkpoints, age_s=age_s)))
        found += [action for action in decision.actions if isinstance(action, Submit)]
    assert bool(found) is submits


def test_the_end_of_a_job_is_believed_at_any_age_because_it_cannot_become_untrue():
    engine = running()
    faults.kill_driver(engine.world)
    for _ in range(6):
        engine.world.tick()
        seen = engine.look()
        engine.turn(replace(seen, attempts=tuple(replace(item, job_age_s=400.0) for item in seen.attempts)))
    assert engine.memory.attempt == 2


def test_ranks_that_nobody_can_see_are_not_dead():
    engine = running()
    faults.kill_driver(engine.world, leaving_orphans=True)
    for _ in range(60):
        engine.world.tick()
        engine.turn(replace(engine.look(), ranks=()))
    assert engine.memory.live is not None
    assert engine.world.attempts_seen == [1]
    assert engine.run(600).status.phase is Phase.SUCCEEDED


@pytest.mark.parametrize("lost", ["StartCluster", "Submit", "CommitHandover", "ProbeStorage"])
def test_an_action_that_was_lost_in_a_crash_is_given_again_in_the_next_turn(lost: str):
    engine = small_run(small_plan(detection=impatient()))
    for _ in range(100):
        decision = engine.turn(apply=0)
        if lost in [type(action).__name__ for action in decision.actions]:
            break
        for action in decision.actions:
            engine.world.apply(action)
        engine.world.tick()
    engine.restart()
    engine.world.tick()
    again = engine.turn()
    assert [action for action in again.actions if type(action).__name__ == lost] == [
        action for action in decision.actions if type(action).__name__ == lost
    ]
    decision = engine.run(100)
    assert decision.status.phase is Phase.SUCCEEDED
    assert decision.status.restarts == {}
    assert engine.memory.generation == 1


def test_a_node_that_disappeared_while_the_cluster_came_up_is_started_again():
    engine = small_run(small_plan(detection=impatient()))
    engine.run_until(Phase.PROVISIONING)
    engine.run(3)
    (cluster,) = engine.world.clusters.values()
    del cluster.nodes["n1"]
    assert engine.run(100).status.phase is Phase.SUCCEEDED
    assert engine.memory.generation == 1
    assert engine.memory.restarts == {}
