"""The end of an old submission: stopped on evidence or request, and waited for until nothing of it lives."""

from dataclasses import replace

from samite.lifecycle.actions import ReleaseCluster, StopCluster, StopSubmission
from samite.lifecycle.capacity import replace_lost_nodes
from samite.lifecycle.evidence import Evidence, Source, missing, sufficient
from samite.lifecycle.facts import submission_ended
from samite.lifecycle.judge import Verdict, judge
from samite.lifecycle.memory import RecoveryMemory
from samite.lifecycle.observed import ENDED
from samite.lifecycle.phases import FailureClass, Level
from samite.lifecycle.recovery import diagnosed, escalate, finish, recovery_of, refine
from samite.lifecycle.respond import end_attempt
from samite.lifecycle.turn import Turn, live_of
from samite.lifecycle.watching import begin_incarnation, kill_orphans, watch

STUBBORN = frozenset({FailureClass.NUMERIC, FailureClass.OOM, FailureClass.USER})
"""Classes that Ray's own restart of the worker group cannot answer."""


def end_old(turn: Turn) -> None:
    """Stop the old submission, on evidence or request, and wait until nothing of it lives."""
    recovery, live = recovery_of(turn), live_of(turn)
    job = turn.live_seen
    if live.ended_seen_at_s is None and job.job_status in ENDED:
        turn.remember_live(ended_seen_at_s=turn.now_s)
    if _did_its_work(turn):
        watch(turn)
        return
    verdict = judge(turn, since_incarnation=recovery.old_incarnation)
    if submission_ended(turn):
        _keep_head_evidence(turn, verdict)
        end_attempt(turn, outcome="failed")
        return
    facts = _facts(turn, verdict.evidence)
    newer = turn.ranks.incarnation > recovery.old_incarnation and turn.ranks.stepping
    if newer and _may_accept(recovery, enough=sufficient(facts)):
        begin_incarnation(turn, turn.ranks.incarnation)
        turn.remember_live(handled=max(live.handled, turn.ranks.incarnation - 1))
        finish(turn)
        return
    if job.job_status in ENDED:
        kill_orphans(turn)
        turn.wait_for("the ranks of the ended job to leave")
        return
    replace_lost_nodes(turn)
    if verdict.failure is not None and verdict.failure.lost_head and recovery.level < Level.L3_CLUSTER:
        refine(turn, verdict.failure)
        escalate(turn, Level.L3_CLUSTER, verdict.failure.message)
        recovery = recovery_of(turn)
    late = turn.watched_s > recovery.deadline_watched_s
    if recovery.by_request:
        _stop_by_request(turn, late=late)
    elif not sufficient(facts):
        _withhold(turn, missing(facts))
    elif not diagnosed(turn):
        turn.wait_for("stacks of the ranks")
    elif recovery.level >= Level.L3_CLUSTER or late:
        if recovery.level < Level.L3_CLUSTER:
            escalate(turn, Level.L3_CLUSTER, "the submission does not stop")
        _destroy(turn, facts)
    else:
        turn.act(StopSubmission(cluster_id=live.cluster_id, submission_id=live.submission_id, reason=recovery.message, evidence=facts))
        turn.wait_for(f"{live.submission_id} to stop")


def _did_its_work(turn: Turn) -> bool:
    """Its result arrived after all: the stage is complete, or the checkpoint that a pause had asked for is there."""
    result = turn.live_seen.result
    if result is None or result.submission_id != live_of(turn).submission_id:
        return False
    return result.outcome == "stage_complete" or (result.outcome == "stopped" and turn.memory.pause is not None)


def _keep_head_evidence(turn: Turn, verdict: Verdict) -> None:
    """The ranks that prove the loss of the head are forgotten with the attempt; the cluster is destroyed on the same facts a moment later."""
    recovery, found = recovery_of(turn), verdict.failure
    if found is not None and found.lost_head and not recovery.failure.lost_head:
        known = replace(recovery.failure, lost_head=True, evidence=found.evidence)
        turn.remember_recovery(failure=known, level=max(recovery.level, Level.L3_CLUSTER))


def _facts(turn: Turn, current: tuple[Evidence, ...]) -> tuple[Evidence, ...]:
    """What is seen now, and of what was seen at the decision only that which cannot become untrue."""
    recovery = recovery_of(turn)
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
    recovery, live = recovery_of(turn), live_of(turn)
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
    turn.act(StopCluster(cluster_id=cluster.cluster_id, reason=recovery_of(turn).message, evidence=facts))
    turn.wait_for(f"cluster {cluster.cluster_id} to be gone")


def _withhold(turn: Turn, what: str) -> None:
    recovery = recovery_of(turn)
    turn.wait_for(f"a second fact before anything is stopped: {what}")
    if recovery.withheld != what:
        turn.remember_recovery(withheld=what)
        turn.emit("samite.restart.withheld", evidence_missing=what)
