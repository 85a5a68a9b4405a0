"""Recovering: the old submission ends, bad nodes go, the next attempt starts, and the first new step closes the case.

    L1  wait for the next incarnation of the same submission      deadline -> L2
    L2  stop the submission, exchange nodes, submit the next      deadline -> L3
    L3  destroy the cluster, start another, submit the next       deadline -> hold

A recovery whose outcome is Hold or Fail walks the same way as far as "the old submission has ended".
"""

from dataclasses import replace

from samite.lifecycle.actions import KillRanks
from samite.lifecycle.capacity import ensure_cluster, evict
from samite.lifecycle.ending import end_old
from samite.lifecycle.evidence import sufficient
from samite.lifecycle.judge import judge
from samite.lifecycle.nodes import head_evidence
from samite.lifecycle.observed import ENDED, ProcessState
from samite.lifecycle.phases import Level, Phase
from samite.lifecycle.recovery import diagnosed, escalate, finish, mark, recovery_of, refine
from samite.lifecycle.respond import level_timeout_s
from samite.lifecycle.submitting import give_submit, next_attempt
from samite.lifecycle.turn import Turn, live_of
from samite.lifecycle.watching import watch


def recovering(turn: Turn) -> None:
    """One turn in Recovering."""
    recovery = recovery_of(turn)
    live = turn.memory.live
    if live is not None and live.submission_id != recovery.old_submission:
        _watch_new(turn)
        return
    if live is not None and recovery.level is Level.L1_WORKER_GROUP and recovery.outcome == "Restart":
        _in_place(turn)
    elif live is not None:
        end_old(turn)
    if turn.memory.phase is Phase.RECOVERING and turn.memory.live is None:
        _go_on(turn)


def _go_on(turn: Turn) -> None:
    """The old submission has ended."""
    recovery = recovery_of(turn)
    if recovery.outcome == "Restart":
        _prepare(turn)
    else:
        _give_up(turn, recovery.outcome, recovery.reason, recovery.message)


def _in_place(turn: Turn) -> None:
    recovery, live = recovery_of(turn), live_of(turn)
    newer = turn.ranks.incarnation > recovery.old_incarnation
    mark(turn, newer=newer)
    if newer:
        if not watch(turn) and turn.ranks.stepping:
            finish(turn)
        return
    if turn.live_seen.result is not None and turn.live_seen.result.outcome == "stage_complete":
        watch(turn)
        return
    higher = _higher_level(turn)
    if higher is not None:
        escalate(turn, *higher)
        if recovery_of(turn).level > Level.L1_WORKER_GROUP:
            end_old(turn)
        return
    _kill(turn)
    turn.wait_for(f"incarnation {recovery.old_incarnation + 1} of {live.submission_id}")


def _higher_level(turn: Turn) -> tuple[Level, str] | None:
    """Why waiting for Ray's own restart is not enough: the node or the head is lost, Ray gave up, or it takes too long."""
    recovery = recovery_of(turn)
    found = judge(turn, since_incarnation=recovery.old_incarnation).failure
    if found is not None and (found.lost_head or found.lost_nodes):
        refine(turn, found)
        return (Level.L3_CLUSTER if found.lost_head else Level.L2_ATTEMPT), found.message
    if turn.live_seen.job_status in ENDED or turn.live_seen.result is not None:
        return Level.L2_ATTEMPT, "the submission ended instead of restarting its workers"
    if turn.watched_s > recovery.deadline_watched_s:
        seconds = level_timeout_s(turn, Level.L1_WORKER_GROUP)
        return Level.L2_ATTEMPT, f"no new worker group within {seconds:.0f} s"
    return None


def _kill(turn: Turn) -> None:
    """Ranks that must die so that Ray can restart the group; given until the process table says that they are gone."""
    recovery, live = recovery_of(turn), live_of(turn)
    if not recovery.kill_ranks or live.worker_group_restarts <= recovery.old_incarnation:
        return
    alive = tuple(
        rank.rank
        for rank in turn.ranks.current
        if rank.rank in recovery.kill_ranks and rank.process is not ProcessState.GONE and rank.exit_signal is None
    )
    evidence = judge(turn, since_incarnation=recovery.old_incarnation).evidence
    if alive and sufficient(evidence) and diagnosed(turn):
        turn.act(
            KillRanks(
                submission_id=live.submission_id,
                incarnation=recovery.old_incarnation,
                ranks=alive,
                reason=recovery.message,
                evidence=evidence,
            )
        )


def _prepare(turn: Turn) -> None:
    """No submission is alive: nodes, back-off, next attempt."""
    recovery, cluster = recovery_of(turn), turn.memory.cluster
    fresh = recovery.level >= Level.L3_CLUSTER and cluster is not None and cluster.cluster_id == recovery.old_cluster
    if not fresh and recovery.replace_nodes:
        evict(turn, recovery.replace_nodes)
    known = recovery.failure.evidence if recovery.failure.lost_head else ()
    capacity = ensure_cluster(turn, fresh=fresh, evidence=(*head_evidence(turn), *known))
    if capacity.cannot_start and not capacity.possible:
        _give_up(turn, "Hold", "CannotStart", capacity.cannot_start)
        return
    if capacity.queued:
        turn.remember_recovery(deadline_watched_s=max(recovery.deadline_watched_s, turn.watched_s + level_timeout_s(turn, recovery.level)))
        turn.wait_for(capacity.waiting_for)
        return
    # What will not come by waiting (a quota that shrank) is not waited for if the stage may go on without it.
    late = turn.watched_s > recovery.deadline_watched_s or bool(capacity.cannot_start)
    # Ray's driver takes seconds to start; it waits for a node that is about to join, and finds it there when it needs it. Trusted once: an attempt
    # that waited in vain is a failure, and the next one starts when its nodes are there.
    coming = capacity.coming and recovery.level is Level.L2_ATTEMPT and turn.memory.cycles_without_commit <= 1
    if not (capacity.complete or coming or (late and capacity.possible)):
        turn.wait_for(capacity.waiting_for)
        if late or _head_is_dead(turn):
            _next_level(turn, capacity.waiting_for)
        return
    if turn.now_s < recovery.not_before_s:
        turn.wait_for(f"back-off, {recovery.not_before_s - turn.now_s:.0f} s")
        return
    next_attempt(turn, num_nodes=turn.stage.max_workers if coming else capacity.nodes)


def _head_is_dead(turn: Turn) -> bool:
    """A head that is seen dead while nothing trains needs no second fact: an idle cluster is lost at most."""
    recovery, cluster = recovery_of(turn), turn.memory.cluster
    if cluster is None or recovery.level >= Level.L3_CLUSTER:
        return False
    return any(node.head and any(fact.final for fact in node.facts) for node in turn.cluster_seen().nodes)


def _next_level(turn: Turn, why: str) -> None:
    recovery = recovery_of(turn)
    if recovery.level < Level.L3_CLUSTER:
        escalate(turn, Level.L3_CLUSTER, why)
        return
    seconds = level_timeout_s(turn, Level.L3_CLUSTER)
    _give_up(turn, "Hold", "NoCapacity", f"a new cluster did not come up within {seconds:.0f} s: {why}; last failure: {recovery.message}")


def _watch_new(turn: Turn) -> None:
    mark(turn, newer=bool(turn.ranks.current))
    if watch(turn):
        return
    if turn.ranks.stepping:
        finish(turn)
        return
    give_submit(turn)
    turn.wait_for(f"the first step of {live_of(turn).submission_id}")


def _give_up(turn: Turn, outcome: str, reason: str, message: str) -> None:
    turn.remember(recovery=None)
    if turn.memory.last_failure is not None:
        turn.remember(last_failure=replace(turn.memory.last_failure, level=int(Level.L5_HOLD)))
    if outcome == "Fail":
        turn.goto(Phase.FAILED, reason, message)
        return
    turn.goto(Phase.HELD, reason, message)
    turn.emit("samite.run.held", reason=reason, message=message)
