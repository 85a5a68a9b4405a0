"""The facts that are held against the live attempt in one turn, as evidence. `judge` decides what follows from them."""

from samite.lifecycle.classify import exit_description
from samite.lifecycle.evidence import Evidence, Source, sufficient
from samite.lifecycle.nodes import head_evidence, silence_s
from samite.lifecycle.observed import ENDED, ClusterState, JobStatus
from samite.lifecycle.turn import Turn, live_of
from samite.spec.attempt import FailureReport

ORPHAN_SILENCE_S = 30.0
"""Silence that counts once Ray has said that the job ended, whatever the ranks were doing."""

SUBMIT_GRACE_S = 10.0
"""A submission that was asked for may be on its way this long: only a later "not found" says that it never arrived."""


def submission_ended(turn: Turn) -> bool:
    """Whether the live submission is known to be over.

    Ray says so, and either holds none of its actors for alive any more or no rank contradicts; or its cluster is known to be gone; or the head,
    where its driver ran, is, and no rank lives.
    """
    live = live_of(turn)
    cluster, seen = turn.memory.cluster, turn.cluster_seen()
    if cluster is not None and cluster.cluster_id == live.cluster_id and cluster.leaving and seen.state is ClusterState.ABSENT:
        return turn.after(seen.age_s, cluster.leaving_since_s)
    if sufficient((*head_evidence(turn), *ranks_are_gone(turn))) and not _shows_life(turn):
        return True  # the driver ran on the head
    job = turn.live_seen
    if job.job_status in ENDED:
        # Where heartbeats travel through the driver they end with it, and their silence says nothing: Ray's table of actors is the better witness.
        return job.actors_left == 0 or not _shows_life(turn)
    if job.job_status is JobStatus.NOT_FOUND:
        if not turn.after(job.job_age_s, live.asked_at_s + SUBMIT_GRACE_S):
            return False  # an answer from before it arrived
        return not (live.known_to_ray or live.heartbeat_seen) or (live.known_to_ray and not _shows_life(turn))
    return False


def orphans(turn: Turn) -> tuple[int, ...]:
    """Ranks whose processes live on although Ray says that their job ended."""
    if turn.live_seen.job_status not in ENDED:
        return ()
    return tuple(rank.rank for rank in turn.ranks.current if rank.process is not None and rank.process.value != "gone")


def ended_evidence(turn: Turn) -> tuple[Evidence, ...]:
    """Ray and the attempt's own result about its end."""
    live, job = live_of(turn), turn.live_seen
    subject = f"job {live.submission_id}"
    facts: list[Evidence] = []
    if job.job_status in ENDED:
        facts.append(Evidence(source=Source.RAY_JOB, subject=subject, says=f"Ray says {job.job_status}", final=True))
    elif job.job_status is JobStatus.NOT_FOUND and live.known_to_ray:
        facts.append(Evidence(source=Source.RAY_JOB, subject=subject, says="Ray no longer knows it", age_s=job.job_age_s))
    if result_failed(turn):
        facts.append(Evidence(source=Source.ATTEMPT_RESULT, subject=subject, says="its result says failed", final=True))
    return tuple(facts)


def result_failed(turn: Turn) -> bool:
    """The attempt's result says that it failed."""
    result = turn.live_seen.result
    return result is not None and result.outcome == "failed"


def reports_since(turn: Turn, first: int) -> list[FailureReport]:
    """Failure reports of incarnation `first` and later, oldest first; the one inside the attempt's result included."""
    seen = turn.live_seen
    reports = [report for report in seen.reports if report.incarnation >= first]
    if seen.result is not None and seen.result.outcome == "failed" and seen.result.failure:
        known = set(FailureReport.__dataclass_fields__)
        document = {key: value for key, value in seen.result.failure.items() if key in known}
        if {"failure_class", "error_type", "message"} <= document.keys() and document.get("incarnation", 0) >= first:
            reports.append(FailureReport(**document))
    return sorted(reports, key=lambda report: (report.incarnation, report.time_unix_s))


def report_evidence(reports: list[FailureReport]) -> list[Evidence]:
    """The first report."""
    if not reports:
        return []
    first = reports[0]
    where = f"rank {first.rank}" if first.rank >= 0 else "driver"
    says = f"{first.error_type}: {first.message}"[:300]
    return [Evidence(source=Source.FAILURE_REPORT, subject=where, says=says, final=True)]


def exit_evidence(turn: Turn) -> list[Evidence]:
    """Ranks of the newest incarnation whose processes ended."""
    ranks = turn.ranks
    if not ranks.failed:
        return []
    first = ranks.failed[0]
    more = f", and {ranks.num_failed - 1} more" if ranks.num_failed > 1 else ""
    told = first.code is not None or first.signal is not None
    return [
        Evidence(
            source=Source.RANK_EXIT if told else Source.PROCESS_TABLE,
            subject=f"rank {first.rank}{more}",
            says=exit_description(first) if told else "its process is gone",
            final=True,
        )
    ]


def silence_evidence(turn: Turn, *, over: bool) -> Evidence | None:
    """The heartbeats' fact: every rank is silent, or none ever spoke. Never the only fact. `over`: Ray says that the job ended."""
    live, ranks = live_of(turn), turn.ranks
    if ranks.youngest_s is None:
        if not live.heartbeat_seen and over and live.ended_seen_at_s is not None and turn.now_s > live.ended_seen_at_s:
            return Evidence(source=Source.HEARTBEAT, subject="all ranks", says="no rank of this attempt ever reported")
        return None
    limit_s = _orphan_silence_s(turn) if over else silence_s(turn)
    if ranks.youngest_s <= limit_s:
        return None
    says = f"silent for {ranks.youngest_s:.1f} s, limit {limit_s:.1f} s"
    return Evidence(source=Source.HEARTBEAT, subject=f"{len(ranks.current)} ranks", says=says)


def ranks_are_gone(turn: Turn) -> tuple[Evidence, ...]:
    """What the training itself says about a lost head: every rank is gone, or all are silent. One failed rank says nothing."""
    if turn.ranks.all_gone:
        return (Evidence(source=Source.PROCESS_TABLE, subject="all ranks", says="no process is left", final=True),)
    quiet = silence_evidence(turn, over=False)
    return () if quiet is None else (quiet,)


def start_evidence(turn: Turn, waited_s: float) -> tuple[Evidence, ...]:
    """Facts for a start that takes too long: no sign of training, and Ray's own answer about the job."""
    live, job = live_of(turn), turn.live_seen
    says = f"no sign of training {waited_s:.0f} s after the submission"
    facts = [Evidence(source=Source.HEARTBEAT, subject="all ranks", says=says)]
    if job.job_status in (JobStatus.PENDING, JobStatus.RUNNING, JobStatus.NOT_FOUND):
        subject = f"job {live.submission_id}"
        facts.append(Evidence(source=Source.RAY_JOB, subject=subject, says=f"Ray still says {job.job_status}", age_s=job.job_age_s))
    return tuple(facts)


def _shows_life(turn: Turn) -> bool:
    """A rank of the live attempt is alive, or was, and nobody knows better."""
    ranks = turn.ranks
    if not ranks.current:
        return live_of(turn).heartbeat_seen  # there were some; nobody can see them now
    if ranks.all_gone:
        return False
    if ranks.num_alive:
        return True
    # Nobody looked at the processes of the rest: their heartbeats decide.
    silent_s = _orphan_silence_s(turn)
    return any(
        rank.process is None and rank.exit_code is None and rank.exit_signal is None and (rank.progress_age_s or 0.0) <= silent_s
        for rank in ranks.current
    )


def _orphan_silence_s(turn: Turn) -> float:
    lead = turn.ranks.lead
    step_s = lead.step_median_s if lead is not None else 0.0
    return max(turn.plan.detection.silent_s, min(silence_s(turn), ORPHAN_SILENCE_S), 3.0 * step_s)
