"""Status, conditions, progress, rates and the ledger."""

from dataclasses import replace

import pytest

from samite.lifecycle import Phase, RankObserved, RunPlan
from samite.lifecycle.decide import decide
from samite.lifecycle.ledger import Account, Ledger
from samite.lifecycle.plan import CheckpointPolicy, StagePlan
from samite.lifecycle.simulation import Engine, faults, impatient, small_plan, small_run
from samite.lifecycle.status import CONDITIONS


def long_run(steps: int = 600) -> Engine:
    stage = StagePlan(name="only", steps=steps, batch_tokens=10, min_workers=2, max_workers=2)
    return small_run(RunPlan(name="demo", uid="u1", stages=(stage,), detection=impatient()), checkpoint_every=50)


def after_steps(engine: Engine, step: int):
    for _ in range(5000):
        decision = engine.turn()
        if engine.memory.phase is Phase.RUNNING and decision.status.progress.step >= step and engine.ranks_step() >= step:
            return decision
        engine.world.tick()
    raise AssertionError(decision.status)


def _ranks_step(self: Engine) -> int:
    job = self.world.running()
    return job.step if job else -1


Engine.ranks_step = _ranks_step  # type: ignore[attr-defined]


@pytest.mark.parametrize("kill", [faults.kill_driver, faults.kill_head, lambda world: faults.kill_rank(world, 1)])
def test_the_eta_is_right_in_the_first_ten_seconds_after_a_restart(kill):
    engine = long_run()
    after_steps(engine, 360)
    kill(engine.world)
    engine.run_until(Phase.RECOVERING)
    engine.run_until(Phase.RUNNING)
    for _ in range(10):
        engine.world.tick()
        decision = engine.turn()
        progress = decision.status.progress
        truth = float(600 - progress.step)
        assert truth / 2.0 <= progress.eta_s <= truth * 2.0
        assert 5.0 <= progress.tokens_per_s <= 20.0  # ten tokens a second, whatever was trained before


def test_a_night_in_suspension_counts_neither_for_the_rate_nor_for_the_effective_time():
    engine = long_run()
    after_steps(engine, 200)
    before = engine.turn().status.ettr
    engine.world.suspend = True
    engine.run_until(Phase.SUSPENDED)
    engine.world.tick(40_000.0)
    engine.world.suspend = False
    engine.run_until(Phase.RUNNING)
    engine.run(12)
    status = engine.turn().status
    assert status.ettr.suspended_s > 39_000.0
    assert status.ettr.wall_s < before.wall_s + 100.0
    assert 8.0 <= status.progress.tokens_per_s <= 12.0
    assert status.progress.eta_s < 800.0


def test_a_stage_change_begins_a_new_rate():
    engine = small_run(small_plan(detection=impatient()))
    engine.run_until(Phase.HANDING_OVER)
    engine.world.step_s = 1.0
    engine.world.tick()
    engine.run_until(Phase.RUNNING)
    status = engine.turn().status
    assert status.progress.eta_s is None
    assert status.progress.percent == pytest.approx(100.0 * 20 / 32)
    assert status.current_stage == "long"


def test_without_a_measured_step_there_is_no_eta():
    engine = long_run()
    engine.run_until(Phase.STARTING)
    assert engine.turn().status.progress.eta_s is None


def test_progress_reaches_one_hundred_percent_and_no_more():
    engine = small_run(small_plan(detection=impatient()))
    seen = [0.0]
    for _ in range(200):
        decision = engine.turn()
        percent = decision.status.progress.percent
        assert 0.0 <= percent <= 100.0
        seen.append(percent)
        if engine.world.finished:
            break
        engine.world.tick()
    assert seen[-1] == 100.0
    assert decision.status.progress.eta_s == 0.0


@pytest.mark.parametrize("kill", [None, faults.kill_driver, faults.kill_head, lambda world: faults.stop_rank(world, 0)])
def test_the_accounts_add_up_to_the_wall_time(kill):
    engine = small_run(small_plan(detection=impatient()))
    engine.run_until(Phase.RUNNING)
    engine.run(12)
    if kill is not None:
        kill(engine.world)
    decision = engine.run(600)
    assert decision.status.phase is Phase.SUCCEEDED
    ettr = decision.status.ettr
    ended = next(event for event in engine.events if event.attributes.get("phase_to") == "Succeeded")
    assert ended is not None
    assert ettr.productive_s + ettr.lost.total == pytest.approx(ettr.wall_s)
    assert ettr.wall_s == pytest.approx(engine.memory.phase_since_s - 1000.0)
    assert 0.0 < ettr.percent < 100.0
    if kill is not None:
        assert ettr.lost.restart > 0.0
        assert ettr.lost.recompute > 0.0
        (recovery,) = decision.status.recoveries
        assert recovery.total_s == pytest.approx(recovery.detect_s + recovery.restart_s + recovery.load_s + recovery.first_step_s)
        assert recovery.recomputed_steps == decision.status.recomputed_steps > 0


def test_time_before_a_failure_was_noticed_is_moved_to_detection():
    ledger = Ledger(productive=100.0).noticed(30.0)
    assert (ledger.productive, ledger.lost.detect) == (70.0, 30.0)
    assert Ledger(productive=10.0).noticed(30.0).productive == 0.0


@pytest.mark.parametrize("account", list(Account))
def test_every_second_is_booked_once(account: Account):
    ledger = Ledger().opened(account).booked(5.0)
    assert ledger.productive + ledger.suspended + ledger.lost.total == (0.0 if account is Account.CLOSED else 5.0)


def test_conditions_are_unknown_while_their_source_is_silent():
    engine = small_run(small_plan(detection=impatient()))
    engine.run_until(Phase.RUNNING)
    decision = engine.turn(replace(engine.look(), ranks=(), cluster=(), checkpoints=None, storage=None))
    for name in ("Progressing", "CapacityReady", "CheckpointHealthy", "Hung"):
        assert decision.status.condition(name).status == "Unknown"


@pytest.mark.parametrize("phase", [Phase.RUNNING, Phase.SUCCEEDED])
def test_every_status_has_every_condition_and_is_plain_data(phase: Phase):
    engine = small_run(small_plan(detection=impatient()))
    document = engine.run_until(phase).status.to_document()
    assert [condition["type"] for condition in document["conditions"]] == list(CONDITIONS)
    assert document["phase"] == phase.value
    assert document["ettr"]["lost"].keys() == {"queue", "start", "detect", "restart", "load", "recompute", "checkpointStall", "hold"}
    assert document["budgetsLeft"]["infra"] == 20


def test_a_late_commit_shows_in_the_checkpoint_condition():
    plan = replace(small_plan(detection=impatient()), checkpoint=CheckpointPolicy(interval_s=5.0, interval_steps=None, stall_s=1.0))
    engine = small_run(plan)
    engine.run_until(Phase.RUNNING)
    engine.run(11)
    decision = engine.turn()
    assert decision.status.condition("CheckpointHealthy").status == "True"
    engine.world.tick()
    late = replace(engine.look(), checkpoints=replace(engine.look().checkpoints, recent=()))
    memory = replace(engine.memory, newest_commit_at_s=engine.world.now - 12.0)
    engine.memory = memory
    assert engine.turn(late).status.condition("CheckpointHealthy").reason == "Late"


def test_the_next_retry_is_told_while_back_off_waits():
    engine = small_run(small_plan(detection=impatient()))
    engine.run_until(Phase.RUNNING)
    engine.run(12)
    faults.raise_at(engine.world, engine.world.running().step, "oom")
    engine.run_until(Phase.RECOVERING)
    status = engine.turn().status
    assert status.next_retry_at_s is not None
    assert 0.0 < status.next_retry_at_s - engine.world.now <= 10.0


def test_a_heartbeat_of_a_dead_submission_is_not_progress():
    engine = small_run(small_plan(detection=impatient()))
    engine.run_until(Phase.RUNNING)
    seen = engine.look()
    old = RankObserved(rank=0, submission_id="demo-s00-a0", phase="training", progress_age_s=0.1, step=10_000, tokens=99)
    decision = engine.turn(replace(seen, ranks=(*seen.ranks, old)))
    assert decision.status.progress.step < 100


def test_a_wall_time_budget_has_an_eta_and_a_percentage_too():
    stage = StagePlan(name="only", wall_s=300.0, batch_tokens=10, min_workers=2, max_workers=2)
    engine = Engine(RunPlan(name="demo", uid="u1", stages=(stage,)), long_run().world)
    engine.run_until(Phase.RUNNING)
    engine.run(55)
    progress = engine.turn().status.progress
    assert 10.0 < progress.percent < 20.0
    assert 240.0 < progress.eta_s < 280.0


@pytest.mark.parametrize("phase", ["", "starting", "loading"])
def test_progress_does_not_go_back_while_ranks_have_not_loaded_their_state(phase: str):
    engine = long_run()
    before = after_steps(engine, 300).status.progress
    live = engine.memory.live
    assert live is not None
    fresh = RankObserved(rank=0, submission_id=live.submission_id, incarnation=live.incarnation, phase=phase, progress_age_s=0.1, step=0)
    observed = replace(engine.look(), ranks=(fresh,))
    progress = decide(engine.plan, observed, engine.memory, observed.at_s).status.progress
    assert (progress.step, progress.percent) == (before.step, before.percent)
    assert progress.tokens > 0
