"""Suspend, resume, cancel, restart, skip, approve, exclude: answered once, in every phase, without losing work."""

from dataclasses import replace

import pytest

from samite.lifecycle import Phase, ReleaseCluster, Request, RequestCheckpoint, RequestKind, StopSubmission
from samite.lifecycle.plan import RestartPolicy
from samite.lifecycle.simulation import Engine, faults, impatient, small_plan, small_run


def running(**more) -> Engine:
    engine = small_run(replace(small_plan(detection=impatient()), **more))
    engine.run_until(Phase.RUNNING)
    engine.run(8)
    return engine


def ask(engine: Engine, kind: RequestKind, **more):
    return engine.turn(replace(engine.look(), requests=(Request(request_id=f"{kind}-1", kind=kind, by="ada", **more),)))


def test_suspending_takes_a_checkpoint_first_and_resuming_loses_no_step():
    engine = running()
    engine.world.suspend = True
    decision = engine.turn()
    (request,) = [action for action in decision.actions if isinstance(action, RequestCheckpoint)]
    assert request.stop_after
    engine.run_until(Phase.SUSPENDED)
    assert all(cluster.gone for cluster in engine.world.clusters.values())
    step = engine.world.checkpoints[-1].step
    assert engine.turn().settled
    engine.world.suspend = False
    decision = engine.run(600)
    assert decision.status.phase is Phase.SUCCEEDED
    assert decision.status.recomputed_steps == 0
    assert step >= engine.memory.stages[0].final_step - 20
    assert decision.status.restarts == {}


def test_suspending_without_a_checkpoint_stops_at_once():
    engine = running(suspend_checkpoint=False)
    engine.world.suspend = True
    decision = engine.turn()
    assert [type(action) for action in decision.actions] == [StopSubmission]
    assert decision.actions[0].by_request
    engine.run_until(Phase.SUSPENDED)


def test_a_checkpoint_that_never_comes_delays_suspension_by_no_more_than_its_grace():
    engine = running(suspend_grace_s=30.0)
    faults.put_rank_to_sleep(engine.world, 0)
    engine.world.suspend = True
    began = engine.world.now
    engine.run_until(Phase.SUSPENDED)
    assert 30.0 <= engine.world.now - began < 45.0


def test_suspension_does_not_need_an_answering_dashboard():
    engine = running(suspend_grace_s=10.0)
    faults.put_rank_to_sleep(engine.world, 0)
    faults.silence_dashboard(engine.world, 10_000.0)
    engine.world.suspend = True
    engine.run_until(Phase.SUSPENDED)
    assert all(cluster.gone for cluster in engine.world.clusters.values())


def test_suspend_and_resume_within_a_second_goes_on():
    engine = running()
    engine.world.suspend = True
    engine.turn()
    engine.world.suspend = False
    assert engine.run(600).status.phase is Phase.SUCCEEDED


@pytest.mark.parametrize("turns", range(42))
def test_suspend_works_at_every_moment_and_the_run_still_ends_well(turns: int):
    engine = small_run(small_plan(detection=impatient()))
    for turn in range(turns):
        engine.turn()
        engine.world.tick()
        if turn == 15:
            faults.kill_node(engine.world, 0)
    engine.world.suspend = True
    engine.run_until(Phase.SUSPENDED)
    engine.world.suspend = False
    assert engine.run(800).status.phase is Phase.SUCCEEDED


@pytest.mark.parametrize(
    "fault", [None, faults.kill_head, lambda world: faults.silence_dashboard(world, 1e9), lambda world: faults.silence_storage(world, 1e9)]
)
def test_cancel_ends_everything_whatever_is_broken(fault):
    engine = running()
    if fault is not None:
        fault(engine.world)
    engine.world.cancel = True
    decision = engine.run(400)
    assert decision.status.phase is Phase.CANCELLED
    assert engine.world.finished == "Cancelled"
    assert not engine.world.live_jobs()
    assert all(cluster.gone for cluster in engine.world.clusters.values())


def test_cancel_is_over_after_its_cap_even_if_the_cluster_stays():
    engine = running(cancel_cap_s=50.0)
    engine.world.down_s = 1e9
    engine.world.cancel = True
    began = engine.world.now
    decision = engine.run_until(Phase.CANCELLED)
    assert engine.world.now - began <= 55.0
    assert "look for leftovers" in decision.status.message


def test_a_restart_that_somebody_asks_for_costs_nothing_and_happens_once():
    engine = running()
    ask(engine, RequestKind.RESTART)
    ask(engine, RequestKind.RESTART)
    decision = engine.run(600)
    assert decision.status.phase is Phase.SUCCEEDED
    assert engine.world.attempts_seen == [1, 2, 3]
    assert decision.status.restarts == {}
    assert [record.level for record in decision.status.recoveries] == [2]


def test_a_restart_at_l3_brings_a_new_cluster():
    engine = running()
    ask(engine, RequestKind.RESTART, argument="L3")
    assert engine.run(600).status.phase is Phase.SUCCEEDED
    assert len(engine.world.clusters) == 2


def test_a_data_window_left_out_by_hand_is_left_out_of_every_later_attempt_of_its_stage():
    engine = running()
    ask(engine, RequestKind.SKIP, windows=((3, 4), (9, 10)))
    engine.run(600)
    assert [job.submit.skip_data_windows for job in engine.world.jobs.values()] == [
        (),
        ((3, 4), (9, 10)),
        (),  # the second stage counts its rows from zero
    ]


def test_a_held_run_keeps_its_cluster_for_a_while_and_then_releases_it():
    engine = running(restart=RestartPolicy(no_progress_cycles=1, hold_release_s=100.0))
    faults.kill_rank(engine.world, 0)
    engine.run_until(Phase.HELD)
    began = engine.world.now
    for _ in range(300):
        engine.world.tick()
        decision = engine.turn()
        if any(isinstance(action, ReleaseCluster) for action in decision.actions):
            break
    assert engine.world.now - began == pytest.approx(100.0, abs=2.0)
    engine.run(20)
    assert engine.turn().settled


def test_resume_of_a_held_run_gives_fresh_trust_and_keeps_the_record():
    engine = running(restart=RestartPolicy(no_progress_cycles=1))
    faults.kill_rank(engine.world, 0)
    engine.run_until(Phase.HELD)
    failed = engine.memory.last_failure
    ask(engine, RequestKind.RESUME)
    decision = engine.run(600)
    assert decision.status.phase is Phase.SUCCEEDED
    assert decision.status.last_failure == failed


def test_a_request_that_is_seen_for_ever_is_answered_once():
    engine = running()
    request = Request(request_id="same", kind=RequestKind.RESTART)
    for _ in range(100):
        engine.turn(replace(engine.look(), requests=(request,)))
        engine.world.tick()
    assert engine.world.attempts_seen[:2] == [1, 2]
    assert len([event for event in engine.events if event.name == "samite.restart.decided"]) == 1


def test_an_excluded_node_is_not_used_again_until_it_is_released():
    engine = running()
    ask(engine, RequestKind.EXCLUDE, argument="n1")
    assert engine.turn().status.excluded_nodes == ("n1",)
    assert engine.turn().status.condition("Quarantining").status == "True"
    ask(engine, RequestKind.UNCORDON, argument="n1")
    assert engine.turn().status.excluded_nodes == ()


@pytest.mark.parametrize("wish", ["suspend", "cancel"])
def test_nothing_is_released_under_a_submission_that_still_stops_within_its_patience(wish: str):
    engine = running(suspend_checkpoint=False)
    engine.world.stop_s = 40.0
    faults.put_rank_to_sleep(engine.world, 0)
    setattr(engine.world, wish, True)
    for _ in range(38):
        decision = engine.turn()
        assert not any(isinstance(action, ReleaseCluster) for action in decision.actions)
        assert engine.memory.live is not None
        engine.world.tick()
    assert engine.run(100).status.phase in (Phase.SUSPENDED, Phase.CANCELLED)
