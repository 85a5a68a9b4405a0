"""Recovering: the old submission ends, bad nodes go, the next attempt starts, and the first new step closes the case.

    L1  wait for the next incarnation of the same submission      deadline -> L2
    L2  stop the submission, exchange nodes, submit the next      deadline -> L3
    L3  destroy the cluster, start another, submit the next       deadline -> hold

A recovery whose outcome is Hold or Fail walks the same way as far as "the old submission has ended".
"""

from dataclasses import replace

from samite.lifecycle.actions import CollectDiagnostics, KillRanks, ReleaseCluster, StopCluster, StopSubmission
from samite.lifecycle.capacity import ensure_cluster, evict, replace_lost_nodes
from samite.lifecycle.evidence import Evidence, Source, missing, sufficient
from samite.lifecycle.facts import submission_ended
from samite.lifecycle.judge import judge
from samite.lifecycle.memory import HISTORY, FailureRecord, RecoveryMemory, RecoveryRecord
from samite.lifecycle.observed import ENDED, ProcessState
from samite.lifecycle.phases import FailureClass, Level, Phase
from samite.lifecycle.ranks import LOADED
from samite.lifecycle.respond import end_attempt, level_timeout_s
from samite.lifecycle.submitting import give_submit, next_attempt
from samite.lifecycle.turn import Turn, live_of
from samite.lifecycle.watching import begin_incarnation, kill_orphans, watch

STUBBORN = frozenset({FailureClass.NUMERIC, FailureClass.OOM, FailureClass.USER})
"""Classes that Ray's own restart of the worker group cannot answer."""


def recovering(turn: Turn) -> None:
    """One turn in Recovering."""
    recovery = _recovery(turn)
    live = turn.memory.live
    if live is not None and live.submission_id != recovery.old_submission:
        _watch_new(turn)
    elif live is not None and recovery.level is Level.L1_WORKER_GROUP and recovery.outcome == "Restart":
        _in_place(turn)
    elif live is not None:
        _end_old(turn)
    elif recovery.outcome == "Restart":
        _prepare(turn)
    else:
        _give_up(turn, recovery.outcome, recovery.reason, recovery.message)


def _recovery(turn: Turn) -> RecoveryMemory:
    recovery = turn.memory.recovery
    assert recovery is not None
    return recovery


def _in_place(turn: Turn) -> None:
    recovery, live = _recovery(turn), live_of(turn)
    newer = turn.ranks.incarnation > recovery.old_incarnation
    _mark(turn, newer=newer)
    if newer:
        if not watch(turn) and turn.ranks.stepping:
            _finish(turn)
        return
    higher = _higher_level(turn)
    if higher is not None:
        _escalate(turn, *higher)
        if _recovery(turn).level > Level.L1_WORKER_GROUP:
            _end_old(turn)
        return
    _kill(turn)
    turn.wait_for(f"incarnation {recovery.old_incarnation + 1} of {live.submission_id}")


def _higher_level(turn: Turn) -> tuple[Level, str] | None:
    """Why waiting for Ray's own restart is not enough: the node or the head is lost, Ray gave up, or it takes too long."""
    recovery = _recovery(turn)
    found = judge(turn, since_incarnation=recovery.old_incarnation).failure
    if found is not None and (found.lost_head or found.lost_nodes):
        _refine(turn, found)
        return (Level.L3_CLUSTER if found.lost_head else Level.L2_ATTEMPT), found.message
    if turn.live_seen.job_status in ENDED or turn.live_seen.result is not None:
        return Level.L2_ATTEMPT, "the submission ended instead of restarting its workers"
    if turn.watched_s > recovery.deadline_watched_s:
        seconds = level_timeout_s(turn, Level.L1_WORKER_GROUP)
        return Level.L2_ATTEMPT, f"no new worker group within {seconds:.0f} s"
    return None


def _refine(turn: Turn, found: FailureRecord) -> None:
    """The same failure is understood better now: what was a lost process turns out to be a lost node. It was paid for already."""
    recovery = _recovery(turn)
    known = recovery.failure
    better = replace(found, at_s=known.at_s, detect_s=known.detect_s, level=known.level, evicted=True)
    failures = turn.memory.failures
    if failures and failures[-1].at_s == known.at_s:
        failures = (*failures[:-1], replace(better, traceback="", evidence=()))
    turn.remember(last_failure=better, failures=failures)
    turn.remember_recovery(failure=better, message=better.message)


def _kill(turn: Turn) -> None:
    """Ranks that must die so that Ray can restart the group; given until the process table says that they are gone."""
    recovery, live = _recovery(turn), live_of(turn)
    if not recovery.kill_ranks or live.worker_group_restarts <= recovery.old_incarnation:
        return
    alive = tuple(
        rank.rank
        for rank in turn.ranks.current
        if rank.rank in recovery.kill_ranks and rank.process is not ProcessState.GONE and rank.exit_signal is None
    )
    evidence = judge(turn, since_incarnation=recovery.old_incarnation).evidence
    if alive and sufficient(evidence) and _diagnosed(turn):
        turn.act(
            KillRanks(
                submission_id=live.submission_id,
                incarnation=recovery.old_incarnation,
                ranks=alive,
                reason=recovery.message,
                evidence=evidence,
            )
        )


def _diagnosed(turn: Turn) -> bool:
    """Before anything that hangs is killed its stacks are taken, but not for longer than the limit."""
    recovery = _recovery(turn)
    if recovery.failure.failure_class is not FailureClass.HANG:
        return True
    wanted = f"{recovery.failure.submission_id}-i{recovery.old_incarnation}-s{max(recovery.failure.step, 0)}"
    if wanted in turn.observed.diagnostics:
        return True
    turn.act(CollectDiagnostics(diagnostics_id=wanted, submission_id=recovery.failure.submission_id, reason="hang"))
    return turn.now_s - recovery.decided_at_s >= turn.plan.detection.diagnostics_s


def _end_old(turn: Turn) -> None:
    """Stop the old submission, on evidence or request, and wait until nothing of it lives."""
    recovery, live = _recovery(turn), live_of(turn)
    job = turn.live_seen
    if live.ended_seen_at_s is None and job.job_status in ENDED:
        turn.remember_live(ended_seen_at_s=turn.now_s)
    if submission_ended(turn):
        end_attempt(turn, outcome="failed")
        return
    result = job.result
    if result is not None and result.outcome in ("stage_complete", "stopped") and recovery.outcome == "Restart":
        watch(turn)
        return
    verdict = judge(turn, since_incarnation=recovery.old_incarnation)
    facts = _facts(turn, verdict.evidence)
    newer = turn.ranks.incarnation > recovery.old_incarnation and turn.ranks.stepping
    if newer and _may_accept(recovery, enough=sufficient(facts)):
        begin_incarnation(turn, turn.ranks.incarnation)
        turn.remember_live(handled=max(live.handled, turn.ranks.incarnation - 1))
        _finish(turn)
        return
    if job.job_status in ENDED:
        kill_orphans(turn)
        turn.wait_for("the ranks of the ended job to leave")
        return
    replace_lost_nodes(turn)
    if verdict.failure is not None and verdict.failure.lost_head and recovery.level < Level.L3_CLUSTER:
        _refine(turn, verdict.failure)
        _escalate(turn, Level.L3_CLUSTER, verdict.failure.message)
        recovery = _recovery(turn)
    late = turn.watched_s > recovery.deadline_watched_s
    if recovery.by_request:
        _stop_by_request(turn, late=late)
    elif not sufficient(facts):
        _withhold(turn, missing(facts))
    elif not _diagnosed(turn):
        turn.wait_for("stacks of the ranks")
    elif recovery.level >= Level.L3_CLUSTER or late:
        if recovery.level < Level.L3_CLUSTER:
            _escalate(turn, Level.L3_CLUSTER, "the submission does not stop")
        _destroy(turn, facts)
    else:
        turn.act(StopSubmission(cluster_id=live.cluster_id, submission_id=live.submission_id, reason=recovery.message, evidence=facts))
        turn.wait_for(f"{live.submission_id} to stop")


def _facts(turn: Turn, current: tuple[Evidence, ...]) -> tuple[Evidence, ...]:
    """What is seen now, and of what was seen at the decision only that which cannot become untrue."""
    recovery = _recovery(turn)
    facts = [*current, *(item for item in recovery.failure.evidence if item.final and item not in current)]
    if turn.ranks.incarnation > recovery.old_incarnation:
        facts.append(
            Evidence(
                source=Source.HEARTBEAT,
                subject=f"job {recovery.old_submission}",
                says=f"the worker group was restarted: incarnation {turn.ranks.incarnation}",
            )
        )
    return tuple(facts)


def _may_accept(recovery: RecoveryMemory, *, enough: bool) -> bool:
    """Whether training that came back by itself is left alone instead of being stopped."""
    failure = recovery.failure
    if recovery.by_request or failure.failure_class in STUBBORN or not failure.restartable:
        return False
    return recovery.outcome == "Restart" or not enough


def _stop_by_request(turn: Turn, *, late: bool) -> None:
    recovery, live = _recovery(turn), live_of(turn)
    turn.act(StopSubmission(cluster_id=live.cluster_id, submission_id=live.submission_id, reason=recovery.message, by_request=True))
    cluster = turn.memory.cluster
    if late and cluster is not None:
        if not cluster.leaving:
            turn.remember_cluster(leaving=True, leaving_since_s=turn.now_s)
        turn.act(ReleaseCluster(cluster_id=cluster.cluster_id, reason="the submission does not stop", by_request=True))
    turn.wait_for(f"{live.submission_id} to stop")


def _destroy(turn: Turn, facts: tuple[Evidence, ...]) -> None:
    cluster = turn.memory.cluster
    if cluster is None:
        return
    if not cluster.leaving:
        turn.remember_cluster(leaving=True, leaving_since_s=turn.now_s)
    turn.act(StopCluster(cluster_id=cluster.cluster_id, reason=_recovery(turn).message, evidence=facts))
    turn.wait_for(f"cluster {cluster.cluster_id} to be gone")


def _withhold(turn: Turn, what: str) -> None:
    recovery = _recovery(turn)
    turn.wait_for(f"a second fact before anything is stopped: {what}")
    if recovery.withheld != what:
        turn.remember_recovery(withheld=what)
        turn.emit("samite.restart.withheld", evidence_missing=what)


def _prepare(turn: Turn) -> None:
    """No submission is alive: nodes, back-off, next attempt."""
    recovery, cluster = _recovery(turn), turn.memory.cluster
    fresh = recovery.level >= Level.L3_CLUSTER and cluster is not None and cluster.cluster_id == recovery.old_cluster
    if not fresh and recovery.replace_nodes:
        evict(turn, recovery.replace_nodes, recovery.failure.evidence)
    capacity = ensure_cluster(turn, fresh=fresh, evidence=recovery.failure.evidence if recovery.failure.lost_head else ())
    if capacity.cannot_start:
        _give_up(turn, "Hold", "CannotStart", capacity.cannot_start)
        return
    late = turn.watched_s > recovery.deadline_watched_s
    if not (capacity.complete or (late and capacity.possible)):
        turn.wait_for(capacity.waiting_for)
        if late or _head_is_dead(turn):
            _next_level(turn, capacity.waiting_for)
        return
    if turn.now_s < recovery.not_before_s:
        turn.wait_for(f"back-off, {recovery.not_before_s - turn.now_s:.0f} s")
        return
    next_attempt(turn, num_nodes=capacity.nodes)


def _head_is_dead(turn: Turn) -> bool:
    """A head that is seen dead while nothing trains needs no second fact: an idle cluster is lost at most."""
    recovery, cluster = _recovery(turn), turn.memory.cluster
    if cluster is None or recovery.level >= Level.L3_CLUSTER:
        return False
    return any(node.head and any(fact.final for fact in node.facts) for node in turn.cluster_seen().nodes)


def _next_level(turn: Turn, why: str) -> None:
    recovery = _recovery(turn)
    if recovery.level < Level.L3_CLUSTER:
        _escalate(turn, Level.L3_CLUSTER, why)
        return
    seconds = level_timeout_s(turn, Level.L3_CLUSTER)
    _give_up(turn, "Hold", "NoCapacity", f"a new cluster did not come up within {seconds:.0f} s: {why}; last failure: {recovery.message}")


def _escalate(turn: Turn, level: Level, why: str) -> None:
    """The same failure, one level higher: no new charge, a new deadline."""
    recovery = _recovery(turn)
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
    turn.emit(
        "samite.restart.decided",
        restart_level=f"L{int(level)}",
        failure_class=recovery.failure.failure_class.value,
        reason=why,
    )
    turn.goto(Phase.RECOVERING, turn.memory.reason, f"L{int(level)}: {recovery.message}; {why}")


def _watch_new(turn: Turn) -> None:
    _mark(turn, newer=bool(turn.ranks.current))
    if watch(turn):
        return
    if turn.ranks.stepping:
        _finish(turn)
        return
    give_submit(turn)
    turn.wait_for(f"the first step of {live_of(turn).submission_id}")


def _mark(turn: Turn, *, newer: bool) -> None:
    """Note when the new ranks appeared and when they had loaded."""
    recovery, lead = _recovery(turn), turn.ranks.lead
    if not newer or lead is None:
        return
    if recovery.alive_at_s is None:
        turn.remember_recovery(alive_at_s=turn.now_s)
    if recovery.loaded_at_s is None and lead.phase in LOADED:
        turn.remember_recovery(loaded_at_s=turn.now_s)


def _finish(turn: Turn) -> None:
    """A step of the new ranks is finished: back to Running, with the durations on record."""
    _mark(turn, newer=True)
    recovery, live, memory = _recovery(turn), live_of(turn), turn.memory
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


def _give_up(turn: Turn, outcome: str, reason: str, message: str) -> None:
    turn.remember(recovery=None)
    if turn.memory.last_failure is not None:
        turn.remember(last_failure=replace(turn.memory.last_failure, level=int(Level.L5_HOLD)))
    if outcome == "Fail":
        turn.goto(Phase.FAILED, reason, message)
        return
    turn.goto(Phase.HELD, reason, message)
    turn.emit("samite.run.held", reason=reason, message=message)
