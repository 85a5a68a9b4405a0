"""What Ray does by itself inside a submission (L1): it is counted though nobody saw it, and ended where it cannot help."""

from dataclasses import replace

import pytest

from samite.lifecycle import FailureClass, JobStatus, Phase, ProcessState, Source, StopSubmission
from samite.lifecycle.plan import ExitCodeRule, RestartPolicy
from samite.lifecycle.simulation import Engine, faults, impatient, small_plan, small_run


def running(*, checkpoint_every: int = 5, **restart) -> Engine:
    engine = small_run(small_plan(detection=impatient(), restart=RestartPolicy(**restart)), checkpoint_every=checkpoint_every)
    engine.run_until(Phase.RUNNING)
    engine.run(12)
    return engine


def while_nobody_looks(engine: Engine, seconds: int) -> None:
    for _ in range(seconds):
        engine.world.tick()


def test_a_restart_that_nobody_saw_is_counted_and_recorded_when_it_is_found():
    engine = running()
    faults.kill_rank(engine.world, 1)
    while_nobody_looks(engine, 6)
    decision = engine.run(8)
    assert decision.status.phase is Phase.RUNNING
    assert decision.status.restarts == {"infra": 1}
    assert decision.status.last_failure.error_type == "WorkerLost"
    assert [record.level for record in decision.status.recoveries] == [1]
    assert engine.memory.live.incarnation == 1
    assert engine.world.attempts_seen == [1]


def test_the_time_of_a_restart_that_nobody_saw_is_lost_time_and_part_of_its_recovery():
    engine = running()
    faults.kill_rank(engine.world, 1)
    while_nobody_looks(engine, 6)
    ettr = engine.run(8).status.ettr
    (record,) = engine.memory.recoveries
    assert 5.0 <= record.detect_s <= 9.0
    assert record.total_s >= record.detect_s
    assert ettr.lost.detect == pytest.approx(record.detect_s)


def test_a_restart_that_nobody_saw_is_classed_by_the_report_it_left():
    engine = running()
    faults.raise_at(engine.world, engine.world.running().step, "application")
    while_nobody_looks(engine, 7)
    decision = engine.run(20)
    assert decision.status.restarts == {"application": 1}
    assert decision.status.last_failure.traceback == "Traceback: boom"


def test_a_restart_is_counted_once_however_often_it_is_looked_at():
    engine = running()
    faults.kill_rank(engine.world, 1)
    for _ in range(30):
        engine.world.tick()
        for _ in range(3):
            engine.turn()
    assert engine.memory.restarts == {FailureClass.INFRA: 1}
    assert len(engine.memory.recoveries) == 1


def test_two_restarts_in_one_submission_count_twice():
    engine = running(checkpoint_every=2)
    for _ in range(2):
        faults.kill_rank(engine.world, 0)
        engine.run_until(Phase.RECOVERING)
        engine.run_until(Phase.RUNNING)
        engine.run(3)
    assert engine.memory.restarts == {FailureClass.INFRA: 2}
    assert engine.memory.live.incarnation == 2
    faults.kill_rank(engine.world, 0)
    engine.run_until(Phase.RECOVERING)
    assert engine.memory.recovery.level == 2  # Ray was given two


@pytest.mark.parametrize("looks", [True, False])
def test_a_nan_that_ray_restarts_by_itself_is_stopped_and_rolled_back_without_its_window(looks: bool):
    engine = running()
    step = engine.world.running().step
    faults.poison(engine.world, (step, step + 1))
    if not looks:
        while_nobody_looks(engine, 7)
    decision = engine.run(400)
    assert decision.status.phase is Phase.SUCCEEDED
    assert [job.submit.skip_data_windows for job in engine.world.jobs.values()][1] == ((step, step + 1),)
    assert decision.status.restarts == {"numeric": 1}


def test_a_program_that_asks_not_to_be_restarted_is_stopped_though_ray_would_try_again():
    engine = running()
    for _ in range(40):
        engine.world.tick()
        seen = engine.look()
        gone = tuple(replace(rank, exit_code=93, process=None) if rank.rank == 0 else rank for rank in seen.ranks)
        quiet = tuple(replace(rank, progress_age_s=30.0) for rank in gone)
        decision = engine.turn(replace(seen, ranks=quiet))
        if decision.destructive:
            break
    (stop,) = decision.destructive
    assert isinstance(stop, StopSubmission)
    assert {item.source for item in stop.evidence} >= {Source.RANK_EXIT, Source.HEARTBEAT}
    decision = engine.run(50)
    assert (decision.status.phase, decision.status.reason) == (Phase.HELD, "NoRestart")


def test_training_that_came_back_by_itself_before_it_was_stopped_is_left_alone():
    engine = running(level_timeouts_s=(5.0, 300.0, 900.0))
    engine.world.ray_reacts_s = 8.0
    faults.kill_rank(engine.world, 1)
    for _ in range(40):
        engine.world.tick()
        decision = engine.turn(apply=0)  # what is asked for never arrives
        if engine.memory.phase is Phase.RUNNING:
            break
    assert decision.status.phase is Phase.RUNNING
    assert engine.world.attempts_seen == [1]


def test_a_level_that_takes_too_long_is_followed_by_the_next_without_a_new_charge():
    engine = running(level_timeouts_s=(5.0, 20.0, 60.0))
    engine.world.ray_reacts_s = 1e9
    faults.kill_rank(engine.world, 1)
    engine.run_until(Phase.RECOVERING)
    engine.world.ray_reacts_s = 1e9
    levels = set()
    for _ in range(60):
        engine.world.tick()
        engine.turn()
        if engine.memory.recovery is not None:
            levels.add(int(engine.memory.recovery.level))
    assert {1, 2} <= levels
    assert engine.memory.restarts == {FailureClass.INFRA: 1}
    assert engine.run(600).status.phase is Phase.SUCCEEDED


def test_a_lost_process_that_turns_out_to_be_a_lost_node_is_paid_for_once():
    engine = running()
    seen = engine.look()
    gone = tuple(replace(rank, process=ProcessState.GONE) if rank.node == "n1" else rank for rank in seen.ranks)
    engine.turn(replace(seen, ranks=gone))
    assert engine.memory.recovery.level == 1
    faults.kill_node(engine.world, 1)
    decision = engine.run(600)
    assert decision.status.phase is Phase.SUCCEEDED
    assert decision.status.restarts == {"infra": 1}
    assert decision.status.last_failure.error_type == "NodeLost"
    assert [record.level for record in decision.status.recoveries] == [2]


def test_with_l1_switched_off_ray_is_given_no_restarts():
    engine = running(start_level=2)
    assert engine.memory.live.worker_group_restarts == 0
    faults.kill_rank(engine.world, 1)
    assert engine.run(600).status.phase is Phase.SUCCEEDED
    assert [record.level for record in engine.memory.recoveries] == [2]


@pytest.mark.parametrize(("action", "wanted"), [("Hold", Phase.HELD), ("Fail", Phase.FAILED)])
def test_an_exit_code_that_the_run_has_a_rule_for_is_answered_as_the_rule_says(action: str, wanted: Phase):
    engine = running(exit_codes=(ExitCodeRule(codes=frozenset({41}), action=action),))
    for _ in range(20):
        engine.world.tick()
        seen = engine.look()
        quiet = tuple(replace(rank, exit_code=41, process=None, progress_age_s=30.0) for rank in seen.ranks)
        decision = engine.turn(replace(seen, ranks=quiet))
        if decision.status.phase is wanted:
            break
    assert (decision.status.phase, decision.status.reason) == (wanted, "ExitCodeRule")


def test_a_result_that_arrives_after_its_ranks_left_completes_the_stage_and_starts_no_attempt():
    engine = running()
    while engine.world.running() is not None:
        engine.world.tick()
        if engine.world.running() is not None:
            engine.turn()
    seen = engine.look()
    left = tuple(replace(rank, phase="saving") for rank in seen.ranks)
    hidden = tuple(replace(item, result=None, job_status=JobStatus.RUNNING) for item in seen.attempts)
    engine.turn(replace(seen, ranks=left, attempts=hidden))
    assert engine.memory.phase is Phase.RECOVERING
    engine.world.tick()
    assert engine.turn(replace(engine.look(), ranks=left)).memory.stages[0].final_step == 20
    engine.run(100)
    assert engine.world.attempts_seen == [1, 2]


def test_a_job_that_somebody_else_stopped_gets_a_new_attempt_and_the_status_says_so():
    engine = running()
    engine.world.stopping[engine.memory.live.submission_id] = engine.world.now
    decision = engine.run(600)
    assert decision.status.phase is Phase.SUCCEEDED
    assert decision.status.last_failure.error_type == "StoppedOutside"
    assert decision.status.restarts == {"operator": 1}
