"""One recovery: its record, its levels, its milestones, its end. Used by `recovering` and `ending`."""

from dataclasses import replace

from samite.lifecycle.actions import CollectDiagnostics
from samite.lifecycle.memory import HISTORY, FailureRecord, RecoveryMemory, RecoveryRecord
from samite.lifecycle.phases import FailureClass, Level, Phase
from samite.lifecycle.ranks import LOADED
from samite.lifecycle.respond import level_timeout_s
from samite.lifecycle.turn import Turn, live_of


def recovery_of(turn: Turn) -> RecoveryMemory:
    """The recovery in progress; only to be called where there is one."""
    recovery = turn.memory.recovery
    assert recovery is not None
    return recovery


def escalate(turn: Turn, level: Level, why: str) -> None:
    """The same failure, one level higher: no new charge, a new deadline."""
    recovery = recovery_of(turn)
    if level > turn.plan.restart.max_level:
        turn.remember_recovery(
            outcome=turn.plan.restart.on_exhausted,
            reason="MaxLevel",
            message=f"{recovery.message}; {why}; L{int(level)} is above restart.maxLevel {turn.plan.restart.max_level}",
        )
        return
    cluster = turn.memory.cluster
    turn.remember_recovery(
        level=level,
        deadline_watched_s=turn.watched_s + level_timeout_s(turn, level),
        old_cluster=cluster.cluster_id if cluster is not None else recovery.old_cluster,
        kill_ranks=(),
    )
    last = turn.memory.last_failure
    if last is not None and last.at_s == recovery.failure.at_s:
        turn.remember(last_failure=replace(last, level=int(level)))
    turn.emit(
        "samite.restart.decided",
        restart_level=f"L{int(level)}",
        failure_class=recovery.failure.failure_class.value,
        reason=why,
    )
    turn.goto(Phase.RECOVERING, turn.memory.reason, f"L{int(level)}: {recovery.message}; {why}")


def refine(turn: Turn, found: FailureRecord) -> None:
    """The same failure is understood better now: what was a lost process turns out to be a lost node. It was paid for already."""
    recovery = recovery_of(turn)
    known = recovery.failure
    better = replace(found, at_s=known.at_s, detect_s=known.detect_s, level=known.level, evicted=True)
    failures = turn.memory.failures
    if failures and failures[-1].at_s == known.at_s:
        failures = (*failures[:-1], replace(better, traceback="", evidence=()))
    turn.remember(last_failure=better, failures=failures)
    turn.remember_recovery(failure=better, message=better.message)


def diagnosed(turn: Turn) -> bool:
    """Before anything that hangs is killed its stacks are taken, but not for longer than the limit."""
    recovery = recovery_of(turn)
    if recovery.failure.failure_class is not FailureClass.HANG:
        return True
    wanted = f"{recovery.failure.submission_id}-i{recovery.old_incarnation}-s{max(recovery.failure.step, 0)}"
    if wanted in turn.observed.diagnostics:
        return True
    turn.act(CollectDiagnostics(diagnostics_id=wanted, submission_id=recovery.failure.submission_id, reason="hang"))
    return turn.now_s - recovery.decided_at_s >= turn.plan.detection.diagnostics_s


def mark(turn: Turn, *, newer: bool) -> None:
    """Note when the new ranks appeared and when they had loaded."""
    recovery, lead = recovery_of(turn), turn.ranks.lead
    if not newer or lead is None:
        return
    if recovery.alive_at_s is None:
        turn.remember_recovery(alive_at_s=turn.now_s)
    if recovery.loaded_at_s is None and lead.phase in LOADED:
        turn.remember_recovery(loaded_at_s=turn.now_s)


def finish(turn: Turn) -> None:
    """A step of the new ranks is finished: back to Running, with the durations on record."""
    mark(turn, newer=True)
    recovery, live, memory = recovery_of(turn), live_of(turn), turn.memory
    failure = recovery.failure
    alive = recovery.alive_at_s if recovery.alive_at_s is not None else turn.now_s
    loaded = recovery.loaded_at_s if recovery.loaded_at_s is not None else turn.now_s
    record = RecoveryRecord(
        level=int(recovery.level),
        failure_class=failure.failure_class,
        error_type=failure.error_type,
        attempt=live.attempt,
        at_s=turn.now_s,
        detect_s=failure.detect_s,
        restart_s=max(0.0, alive - recovery.decided_at_s),
        load_s=max(0.0, loaded - alive),
        first_step_s=max(0.0, turn.now_s - loaded),
        recomputed_steps=max(0, live.recompute_until - live.start_step) if live.start_step >= 0 else 0,
    )
    turn.emit(
        "samite.recovery.finished",
        restart_level=f"L{record.level}",
        failure_class=failure.failure_class.value,
        duration=record.total_s,
        duration_detect=record.detect_s,
        duration_restart=record.restart_s,
        duration_load=record.load_s,
        duration_first_step=record.first_step_s,
        step_recomputed=record.recomputed_steps,
        attempt_number=record.attempt,
    )
    turn.remember(recovery=None, recoveries=(*memory.recoveries, record)[-HISTORY:])
    turn.goto(Phase.RUNNING, "Recovered", f"after {record.total_s:.1f} s at L{record.level}")
