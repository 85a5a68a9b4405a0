"""From a judged failure to a recovery: pays the budget, remembers what was decided and why, and enters Recovering.

A failure is answered exactly once. What comes after (ending the old submission, new nodes, the next attempt) is the work of `recovering`.
"""

from dataclasses import replace

from samite.lifecycle import budgets
from samite.lifecycle.blame import Weak
from samite.lifecycle.evidence import Evidence, Source
from samite.lifecycle.ladder import UNCOUNTED, Restart, Stop, next_step
from samite.lifecycle.memory import HISTORY, FailureRecord, RecoveryMemory
from samite.lifecycle.observed import ENDED
from samite.lifecycle.phases import FailureClass, Level, Phase
from samite.lifecycle.rollback import RollBack
from samite.lifecycle.signatures import WITNESSES
from samite.lifecycle.trust import strike
from samite.lifecycle.turn import Turn


def respond(
    turn: Turn,
    failure: FailureRecord,
    *,
    over: bool,
    kill_ranks: tuple[int, ...] = (),
    at_least: Level | None = None,
    already_in_place: bool = False,
) -> None:
    """Answer `failure`. `over`: the submission has ended. `already_in_place`: Ray has restarted the worker group by itself."""
    memory, plan = turn.memory, turn.plan
    live = memory.live
    in_place = already_in_place or (
        live is not None and not over and turn.live_seen.job_status not in ENDED and live.worker_group_restarts - failure.incarnation > 0
    )
    _announce(turn, failure)
    if already_in_place and not failure.restartable:
        in_place = False
    step = next_step(plan, memory, failure, now_s=turn.now_s, in_place=in_place)
    if isinstance(step, Restart) and at_least is not None and step.level < at_least:
        step = replace(step, level=at_least)
    level = step.level if isinstance(step, Restart) else Level.L5_HOLD
    evicted = isinstance(step, Restart) and (bool(step.evict) or failure.lost_nodes or failure.lost_head)
    record = replace(failure, level=int(level), evicted=evicted, at_s=turn.now_s, commits=memory.commits)
    _remember_failure(turn, record)
    if isinstance(step, Restart):
        _pay(turn, record)
        _restart(turn, record, step, over=over, kill_ranks=kill_ranks)
    else:
        _stop(turn, record, step, over=over)
    if level is Level.L1_WORKER_GROUP and live is not None:
        turn.remember_live(handled=max(live.handled, failure.incarnation))


def request_restart(turn: Turn, *, level: Level, reason: str, error_type: str = "Request") -> None:
    """The next attempt without a failure: a person or a gate wants it. Nobody pays."""
    live = turn.memory.live
    failure = FailureRecord(
        failure_class=FailureClass.USER,
        error_type=error_type,
        message=reason,
        submission_id=live.submission_id if live else "",
        attempt=turn.memory.attempt,
        incarnation=turn.ranks.incarnation,
        at_s=turn.now_s,
        commits=turn.memory.commits,
        level=int(level),
    )
    step = Restart(level=level, not_before_s=turn.now_s)
    _restart(turn, failure, step, over=live is None, kill_ranks=(), by_request=True)


def level_timeout_s(turn: Turn, level: Level) -> float:
    """How long a level may take."""
    timeouts = turn.plan.restart.level_timeouts_s
    return timeouts[min(max(int(level), 1), 3) - 1]


def _announce(turn: Turn, failure: FailureRecord) -> None:
    turn.emit(
        "samite.failure.detected",
        failure_class=failure.failure_class.value,
        error_type=failure.error_type,
        message=failure.message,
        ranks=list(failure.ranks),
        nodes=list(failure.nodes),
        step_last=failure.step,
        attempt_submission=failure.submission_id,
        attempt_incarnation=failure.incarnation,
        duration_detect=failure.detect_s,
        evidence=[describe(item) for item in failure.evidence],
    )


def describe(item: Evidence) -> str:
    """One fact in one line."""
    age = "" if item.final else f" ({item.age_s:.1f} s ago)"
    return f"{item.source}: {item.subject}: {item.says}{age}"


def _remember_failure(turn: Turn, record: FailureRecord) -> None:
    memory = turn.memory
    counted = record.failure_class not in UNCOUNTED
    turn.remember(
        last_failure=record,
        # Texts are kept of the newest failure only; the older ones serve to recognise repetitions.
        failures=(*(replace(old, traceback="", evidence=()) for old in memory.failures), record)[-HISTORY:],
        cycles_without_commit=memory.cycles_without_commit + int(counted),
        backoff_exponent=memory.backoff_exponent + int(counted),
        commits_at_failure=memory.commits,
        suspicion=None,
        ledger=memory.ledger.noticed(record.detect_s) if memory.phase is Phase.RUNNING else memory.ledger,
    )
    if record.nodes and not record.lost_nodes:
        _strike_first_to_fail(turn, record)


def _strike_first_to_fail(turn: Turn, record: FailureRecord) -> None:
    if record.failure_class not in (FailureClass.INFRA, FailureClass.HANG) or record.error_type in WITNESSES:
        return
    stacks = any(item.source is Source.STACKS for item in record.evidence)
    weak = Weak.MINORITY_STACK if stacks else Weak.FIRST_TO_FAIL
    strike(turn, (record.machines or record.nodes)[0], weak, f"{record.submission_id}/{record.incarnation} {record.error_type}")


def _pay(turn: Turn, record: FailureRecord) -> None:
    memory, failure_class = turn.memory, record.failure_class
    turn.remember(
        spent=budgets.spend(turn.plan.restart, memory.spent, failure_class, turn.now_s),
        restarts={**memory.restarts, failure_class: memory.restarts.get(failure_class, 0) + 1},
    )


def _restart(
    turn: Turn, record: FailureRecord, step: Restart, *, over: bool, kill_ranks: tuple[int, ...], by_request: bool = False
) -> None:
    memory = turn.memory
    live, cluster = memory.live, memory.cluster
    turn.emit(
        "samite.restart.decided",
        restart_level=f"L{int(step.level)}",
        failure_class=record.failure_class.value,
        restart_backoff=max(0.0, step.not_before_s - turn.now_s),
        restart_budget_left=budgets.left(turn.plan.restart, memory.spent, record.failure_class, turn.now_s),
        evidence=[describe(item) for item in record.evidence],
    )
    if step.skip_window is not None and step.skip_window not in memory.skip_data_windows:
        turn.remember(skip_data_windows=(*memory.skip_data_windows, step.skip_window))
        turn.emit("samite.numeric.window.skipped", data_window=list(step.skip_window), step_index=record.step, message=record.message)
    if step.good_step >= 0:
        turn.remember(
            roll_back=RollBack(
                stage_index=memory.stage_index,
                good_step=step.good_step,
                wanted_step=max(0, step.good_step - step.roll_back_steps),
                attempts_up_to=memory.attempt,
                reason=record.message[:300],
            )
        )
    recovery = RecoveryMemory(
        failure=record,
        level=step.level,
        reason=record.failure_class.value,
        message=record.message,
        decided_at_s=turn.now_s,
        deadline_watched_s=turn.watched_s + level_timeout_s(turn, step.level) + max(0.0, step.not_before_s - turn.now_s),
        not_before_s=step.not_before_s,
        old_submission=live.submission_id if live else "",
        old_incarnation=record.incarnation,
        old_cluster=cluster.cluster_id if cluster else "",
        ended=live is None,
        replace_nodes=step.evict,
        kill_ranks=kill_ranks,
        by_request=by_request,
    )
    turn.remember(recovery=recovery)
    _end_if_over(turn, over=over)
    turn.goto(Phase.RECOVERING, _camel(record.failure_class), f"L{int(step.level)}: {record.message}")


def _stop(turn: Turn, record: FailureRecord, step: Stop, *, over: bool) -> None:
    live = turn.memory.live
    if step.reason == "BudgetExhausted":
        limit = budgets.budget_of(turn.plan.restart, record.failure_class).limit
        turn.emit("samite.budget.exhausted", failure_class=record.failure_class.value, count=limit, limit=limit)
    recovery = RecoveryMemory(
        failure=record,
        level=Level.L2_ATTEMPT,
        outcome=step.outcome,
        reason=step.reason,
        message=step.message,
        decided_at_s=turn.now_s,
        deadline_watched_s=turn.watched_s + level_timeout_s(turn, Level.L2_ATTEMPT),
        old_submission=live.submission_id if live else "",
        old_incarnation=record.incarnation,
        old_cluster=turn.memory.cluster.cluster_id if turn.memory.cluster else "",
        ended=live is None,
    )
    turn.remember(recovery=recovery)
    _end_if_over(turn, over=over)
    turn.goto(Phase.RECOVERING, step.reason, step.message)


def _end_if_over(turn: Turn, *, over: bool) -> None:
    if over and turn.memory.live is not None:
        end_attempt(turn, outcome="failed")


def end_attempt(turn: Turn, *, outcome: str) -> None:
    """The live submission has ended: forget it, keep its number."""
    live = turn.memory.live
    assert live is not None
    turn.emit(
        "samite.attempt.ended",
        attempt_number=live.attempt,
        attempt_submission=live.submission_id,
        attempt_outcome=outcome,
        step_last=live.last_step,
    )
    turn.remember(live=None, attempt_ended_at_s=turn.now_s, suspicion=None)
    if turn.memory.recovery is not None:
        turn.remember_recovery(ended=True)


def _camel(failure_class: FailureClass) -> str:
    return {FailureClass.OOM: "OutOfMemory", FailureClass.INFRA: "Infrastructure"}.get(failure_class, failure_class.value.capitalize())
