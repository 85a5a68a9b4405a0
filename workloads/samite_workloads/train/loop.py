"""The training loop: one stage of a run on one rank, as one story.

    join the others ── model on meta ── shard ── restore or begin ── data from the cursor ──┐
    ┌───────────────────────────────────────────────────────────────────────────────────────┘
    └─> agree on the step ── forward, backward ── verdict on all ranks ── optimizer ── balance routers ── heartbeat ── checkpoint ─┐
        └────────────────────────────────────────── until the budget is used ───────────────────────────────────────────────────────┘
    ── final checkpoint committed and verified ── result

Called by `samite_workloads.entrypoint` and by the Ray worker (`ray_worker.py`) alike.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

from samite.spec.attempt import AttemptResult, AttemptSpec
from samite_workloads.data import Loader
from samite_workloads.train.control import Agreement, Requests, agree
from samite_workloads.train.learner import Learner, count_padded, count_supervised
from samite_workloads.train.observe import Observer, StepRecord
from samite_workloads.train.plan import TrainPlan, plan_of
from samite_workloads.train.ranks import RankFacts
from samite_workloads.train.resume import open_loader, restore_or_begin
from samite_workloads.train.saving import NothingSaved, Saver, open_saver
from samite_workloads.train.schedule import learning_rate, stage_curve
from samite_workloads.train.session import Session, open_session
from samite_workloads.train.state import TrainState


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """What the loop works with, all of one rank."""

    plan: TrainPlan
    state: TrainState
    session: Session
    learner: Learner
    loader: Loader
    saver: Saver | NothingSaved
    observer: Observer


def train_stage(attempt: AttemptSpec, facts: RankFacts) -> AttemptResult:
    """Train `attempt.stage_index` to the end of its budget, or until asked to stop. Every rank calls this and gets the same result.

    Raises whatever stops it: SpecError and HandoverMissingError (don't try again), NonFiniteError, CheckpointDamagedError, lost peers, ...
    """
    plan = plan_of(attempt)
    with ExitStack() as stack:
        session = stack.enter_context(open_session(attempt, plan, facts))
        session.heartbeat.enter("loading")
        with session.telemetry.span("load"):
            learner = Learner(plan, session.groups)
            saver = open_saver(attempt, plan, session)
            stack.enter_context(saver)
            state = restore_or_begin(attempt, plan, learner, saver, session)
            loader = stack.enter_context(open_loader(attempt, plan, state, session, learner.config))
            observer = Observer(plan, session, learner)

        session.heartbeat.enter("first_step")
        session.began_s = time.monotonic()  # loading is no training time
        parts = Parts(plan=plan, state=state, session=session, learner=learner, loader=loader, saver=saver, observer=observer)
        with session.telemetry.span("train"):
            stopped = run_steps(parts)

        session.heartbeat.enter("saving")
        with session.telemetry.span("stop"):
            observer.settle()
            checkpoint_id = saver.finish(state, learner)
        session.heartbeat.enter("finishing")
        return AttemptResult(
            outcome="stopped" if stopped else "stage_complete",
            submission_id=attempt.submission_id,
            step=state.step,
            tokens=state.tokens,
            checkpoint_id=checkpoint_id,
            recomputed_steps=observer.recomputed_steps,
            incarnations=session.incarnation + 1,
        )


def run_steps(parts: Parts) -> bool:
    """Optimizer steps until the stage's budget is used. True if somebody asked to stop before that."""
    plan, state, session, learner, loader = parts.plan, parts.state, parts.session, parts.learner, parts.loader
    curve = stage_curve(plan.stages, plan.stage.index)
    wall_before_s, busy_s = state.stage_wall_s, 0.0
    for step in _steps_left(plan, state):
        began_s = time.monotonic()
        session.faults.begin_step(step)
        first_row = loader.cursor().row
        batches = next(loader)
        supervised, padded = count_supervised(batches), count_padded(batches)
        data_s = time.monotonic() - began_s
        requests = _requests(session, parts.saver)
        agreed = agree(
            supervised=supervised, padded=padded, requests=requests, elapsed_s=session.elapsed_s, busy_s=busy_s, group=session.groups.host
        )
        agreed_s = time.monotonic()

        rate = curve.factor * learning_rate(plan.optimizer, curve.progress(_share_done(plan, state, agreed, wall_before_s)))
        sampled, verdict, judged_s = parts.observer.samples(step), None, agreed_s
        if any(agreed.supervised):
            losses = learner.forward_backward(batches, supervised=agreed.supervised, sample=sampled)
            if session.faults.poisons_gradient(step):
                learner.poison()
            learner.swell(session.faults.swells_gradient(step))
            session.faults.drag(step, time.monotonic() - agreed_s)
            judged_s = time.monotonic()
            verdict = learner.judge(losses, supervised=agreed.supervised)
        rows = (first_row, loader.cursor().row)
        parts.observer.expect_finite(step, verdict, rows)
        decided_s = time.monotonic()
        balance = None if verdict is None else learner.update(verdict, learning_rate=rate)

        state.advance(tokens=plan.stage.tokens_per_step, cursor=loader.cursor().to_json(), empty=verdict is None)
        state.stage_wall_s = wall_before_s + agreed.elapsed_s
        ended_s = time.monotonic()
        # What this rank did itself: up to the agreement, from there to the verdict, and the update. Between them it waits for the others.
        busy_s = data_s + (judged_s - agreed_s) + (ended_s - decided_s)
        record = StepRecord(
            step=state.step,
            stage_step=state.stage_step,
            tokens=state.tokens,
            step_tokens=plan.stage.tokens_per_step,
            rows=rows,
            supervised=agreed.supervised,
            padded=agreed.padded,
            learning_rate=rate,
            total_s=ended_s - began_s,
            busy_s=busy_s,
            data_s=data_s,
            recomputed=state.step <= session.step_before,
            sampled=sampled,
            busy_of_ranks_s=agreed.busy_s,
        )
        parts.observer.finish_step(record, verdict, balance)
        parts.saver.after_step(state, learner, parts.observer, asked=agreed.checkpoint)
        if agreed.stop:
            return True
    return False


def _steps_left(plan: TrainPlan, state: TrainState) -> Iterator[int]:
    """Numbers of the run's optimizer steps, from 1, as long as the budget of the stage lasts."""
    while not _budget_used(plan, state):
        yield state.step + 1


def _budget_used(plan: TrainPlan, state: TrainState) -> bool:
    if plan.stage.num_steps is not None:
        return state.stage_step >= plan.stage.num_steps
    return plan.stage.wall_s is not None and state.stage_wall_s >= plan.stage.wall_s


def _share_done(plan: TrainPlan, state: TrainState, agreed: Agreement, wall_before_s: float) -> float:
    """Share of the stage that is done when the step at hand is: by steps, or by rank 0's clock for a budget in seconds."""
    if plan.stage.num_steps is not None:
        return (state.stage_step + 1) / plan.stage.num_steps
    assert plan.stage.wall_s is not None
    return (wall_before_s + agreed.elapsed_s) / plan.stage.wall_s


def _requests(session: Session, saver: Saver | NothingSaved) -> Requests:
    if not session.is_first:
        return Requests()
    asked = session.control.look()
    return Requests(checkpoint=asked.checkpoint or saver.clock_is_due(), stop=asked.stop)
