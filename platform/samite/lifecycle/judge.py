"""Whether the live attempt has failed, on which evidence, and whether the evidence is enough to act on.

Everything is derived again in each turn from what is seen in that turn; only what has been answered already is remembered. So an old or repeated
observation cannot make a second failure out of the first.
"""

from dataclasses import dataclass, field

from samite.lifecycle.classify import Cause, classify
from samite.lifecycle.evidence import Evidence, Source, sufficient
from samite.lifecycle.facts import (
    ended_evidence,
    exit_evidence,
    ranks_are_gone,
    report_evidence,
    reports_since,
    result_failed,
    silence_evidence,
    start_evidence,
    submission_ended,
)
from samite.lifecycle.hang import Stillness, stillness
from samite.lifecycle.memory import FailureRecord
from samite.lifecycle.nodes import NodeState, head_evidence, judge_nodes
from samite.lifecycle.observed import ENDED, JobStatus, RankObserved
from samite.lifecycle.phases import FailureClass
from samite.lifecycle.turn import Turn, live_of
from samite.spec.attempt import FailureReport

RESULT_GRACE_S = 10.0
"""How long after the end of a job its result file may take to appear."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """The judgement of one turn."""

    failure: FailureRecord | None = None
    over: bool = False
    """The submission is known to have ended: nothing of it trains."""
    evidence: tuple[Evidence, ...] = ()
    """All facts against the attempt, with or without a failure."""
    suspicion: str = ""
    """What looks wrong on too little evidence."""
    still: Stillness = field(default_factory=Stillness)
    kill_ranks: tuple[int, ...] = ()
    """Ranks whose death lets Ray restart the worker group."""

    @property
    def sufficient(self) -> bool:
        """Whether a destructive action may rest on the evidence."""
        return sufficient(self.evidence)


def judge(turn: Turn, *, since_incarnation: int | None = None) -> Verdict:
    """Judge the live attempt. `since_incarnation` includes failures of that incarnation and later that were answered already."""
    live = live_of(turn)
    first = live.handled + 1 if since_incarnation is None else since_incarnation
    evidence = list(ended_evidence(turn))
    reports = reports_since(turn, first)
    evidence.extend(report_evidence(reports))
    if turn.ranks.incarnation >= first:
        evidence.extend(exit_evidence(turn))
    lost = judge_nodes(turn)
    lost_workers = [state for state in lost if not state.node.head and state.has_ranks]
    head = head_evidence(turn)
    evidence.extend(head)
    for state in lost_workers:
        evidence.extend(state.evidence)
    over = submission_ended(turn)
    still = stillness(turn.ranks, live, turn.observed.storage, turn.plan.detection)
    if evidence and (quiet := silence_evidence(turn, over=bool(ended_evidence(turn)))) is not None:
        evidence.append(quiet)
    facts = tuple(evidence)
    if head and sufficient((*head, *ranks_are_gone(turn))):
        return _failed(turn, reports, facts, over=over, lost_head=True, still=still)
    if any(state.lost for state in lost_workers):
        return _failed(turn, reports, facts, over=over, nodes=tuple(s.node.name for s in lost_workers if s.lost), still=still)
    openly = over or reports or result_failed(turn) or any(item.source in (Source.RANK_EXIT, Source.PROCESS_TABLE) for item in facts)
    if openly or (ended_evidence(turn) and sufficient(facts)):
        return _failed(turn, reports, facts, over=over, still=still)
    return _quiet_trouble(turn, facts, still, answered=first - 1, head=bool(head), nodes=lost_workers)


def _worth_waiting(turn: Turn) -> bool:
    """A job that ended well a moment ago may still be writing its result."""
    live, job = live_of(turn), turn.live_seen
    if job.job_status is not JobStatus.SUCCEEDED or job.result is not None or live.ended_seen_at_s is None:
        return False
    return turn.now_s - live.ended_seen_at_s < RESULT_GRACE_S


def _failed(
    turn: Turn,
    reports: list[FailureReport],
    evidence: tuple[Evidence, ...],
    *,
    over: bool,
    still: Stillness,
    lost_head: bool = False,
    nodes: tuple[str, ...] = (),
) -> Verdict:
    if _worth_waiting(turn) and not lost_head and not nodes:
        return Verdict(evidence=evidence, suspicion="the job ended; waiting for its result", still=still)
    seen = turn.live_seen
    preempted = frozenset(node for node, _ in turn.memory.preempted)
    heads = tuple(node.name for node in turn.cluster_seen().nodes if lost_head and node.head and node.name in preempted)
    failed_ranks = turn.ranks.failed if turn.ranks.incarnation > live_of(turn).handled else []
    cause = classify(
        reports=reports,
        exits=failed_ranks,
        job_message=seen.job_message if seen.job_status is JobStatus.FAILED else "",
        log_tail=seen.log_tail,
        lost_nodes=(*nodes, *heads),
        lost_head=lost_head,
        preempted_nodes=preempted,
        policy=turn.plan.restart,
    )
    if seen.job_status is JobStatus.STOPPED and not (reports or nodes or lost_head):
        message = "the Ray job was stopped, and not by this run; `samite suspend` is the way to stop it"
        cause = Cause(failure_class=FailureClass.OPERATOR, error_type="StoppedOutside", message=message)
    return Verdict(
        failure=record_of(turn, cause, evidence, lost_head=lost_head, lost_nodes=bool(nodes)),
        over=over,
        evidence=evidence,
        still=still,
    )


def record_of(
    turn: Turn, cause: Cause, evidence: tuple[Evidence, ...], *, lost_head: bool = False, lost_nodes: bool = False
) -> FailureRecord:
    """The failure as it goes into the memory."""
    live, ranks = turn.memory.live, turn.ranks
    return FailureRecord(
        failure_class=cause.failure_class,
        error_type=cause.error_type,
        message=cause.message[:1000],
        traceback=cause.traceback[-4000:],
        ranks=cause.ranks[:64],
        nodes=cause.nodes[:64],
        machines=tuple(dict.fromkeys(turn.machine_of(node) for node in cause.nodes))[:64],
        submission_id=live.submission_id if live else "",
        attempt=live.attempt if live else turn.memory.attempt,
        incarnation=ranks.incarnation,
        step=cause.step if cause.step >= 0 else (live.last_step if live else -1),
        evidence=evidence[:16],
        data_window=cause.data_window,
        good_step=cause.good_step,
        restartable=cause.restartable and not cause.verdict,
        verdict=cause.verdict,
        lost_nodes=lost_nodes,
        lost_head=lost_head,
        detect_s=ranks.youngest_s or 0.0,
        at_s=turn.now_s,
        commits=turn.memory.commits,
    )


def _quiet_trouble(
    turn: Turn, facts: tuple[Evidence, ...], still: Stillness, *, answered: int, head: bool, nodes: list[NodeState]
) -> Verdict:
    """Nothing has failed openly: stopped processes, hangs, a start that takes too long, and suspicions."""
    live, policy = live_of(turn), turn.plan.detection
    stopped = [rank for rank in turn.ranks.stopped if (rank.progress_age_s or 0.0) > policy.stopped_s]
    if stopped and answered < turn.ranks.incarnation and (turn.ranks.youngest_s or 0.0) > policy.stopped_s:
        return _stopped_verdict(turn, stopped, still)
    if turn.ranks.incarnation <= answered:
        return Verdict(evidence=facts, still=still)  # this group is being replaced already
    if still.over_limit and not still.storage and still.phase != "starting":
        evidence = (*facts, *still.evidence)
        if policy.hang_restarts and sufficient(evidence):
            return _hang_verdict(turn, evidence, still)
        return Verdict(evidence=evidence, still=still)
    waited = turn.watched_s - live.since_watched_s
    if (not live.heartbeat_seen and waited > policy.start_s) or (still.over_limit and still.phase == "starting"):
        evidence = (*facts, *start_evidence(turn, waited))
        if sufficient(evidence):
            cause = Cause(
                failure_class=FailureClass.INFRA,
                error_type="StartTimeout",
                message=f"no rank reported training within {waited:.0f} s of the submission, limit {policy.start_s:.0f} s",
            )
            return Verdict(failure=record_of(turn, cause, evidence), evidence=evidence, still=still)
        return Verdict(evidence=evidence, suspicion="the attempt does not start", still=still)
    suspicion = ""
    if head:
        suspicion = "the head may be lost"
    elif nodes:
        suspicion = f"node {nodes[0].node.name} may be lost"
    elif turn.live_seen.job_status in ENDED:
        suspicion = "Ray says that the job ended, but nothing in the training confirms it"
    return Verdict(evidence=facts, suspicion=suspicion, still=still)


def _stopped_verdict(turn: Turn, stopped: list[RankObserved], still: Stillness) -> Verdict:
    numbers = tuple(sorted(rank.rank for rank in stopped))
    age = turn.ranks.youngest_s or 0.0
    evidence = (
        Evidence(
            source=Source.PROCESS_TABLE,
            subject=f"rank {', '.join(map(str, numbers[:16]))}",
            says="its process is stopped (SIGSTOP)",
            age_s=max(rank.process_age_s for rank in stopped),
        ),
        Evidence(
            source=Source.HEARTBEAT,
            subject=f"{len(turn.ranks.current)} ranks",
            says=f"no progress for {age:.1f} s, limit {turn.plan.detection.stopped_s:.1f} s",
        ),
    )
    cause = Cause(
        failure_class=FailureClass.INFRA,
        error_type="SIGSTOP",
        message=f"the process of rank {', '.join(map(str, numbers[:16]))} is stopped and the others wait for it",
        ranks=numbers,
        nodes=tuple(sorted({rank.node for rank in stopped if rank.node})),
    )
    return Verdict(failure=record_of(turn, cause, evidence), evidence=evidence, still=still, kill_ranks=numbers)


def _hang_verdict(turn: Turn, evidence: tuple[Evidence, ...], still: Stillness) -> Verdict:
    by_number = {rank.rank: rank.node for rank in turn.ranks.current}
    cause = Cause(
        failure_class=FailureClass.HANG,
        error_type="Hang",
        message=f"no progress for {still.age_s:.0f} s in phase {still.phase}, limit {still.limit_s:.0f} s; {evidence[-1].says}",
        ranks=still.suspects,
        nodes=tuple(sorted({by_number[number] for number in still.suspects if by_number.get(number)})),
    )
    return Verdict(failure=record_of(turn, cause, evidence), evidence=evidence, still=still, kill_ranks=still.suspects)
