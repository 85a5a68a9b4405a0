"""The files that say how an attempt ended: `result.json` once, `failures/*.json` for each failing rank and incarnation."""

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from samite.spec.attempt import AttemptResult, AttemptSpec, FailureReport, Heartbeat
from samite_workloads.train.reports import first_cause, read_reports, write_report

if TYPE_CHECKING:
    from samite_workloads.train.ranks import RankFacts


WORKER_GROUP = "SAMITE_WORKER_GROUP"
"""Environment variable with the number of the worker group in its submission, from 0; set by who starts groups."""


def attempt_folder(attempt: AttemptSpec) -> Path:
    """`attempts/<submission id>` of the run folder."""
    return Path(attempt.run_folder) / "attempts" / attempt.submission_id


def finish(attempt: AttemptSpec, result: AttemptResult) -> None:
    """Store how the attempt ended."""
    folder = attempt_folder(attempt)
    folder.mkdir(parents=True, exist_ok=True)
    result.write(folder / "result.json")


def fail(attempt: AttemptSpec, facts: "RankFacts", error: BaseException, *, conclude: bool = True) -> FailureReport:
    """Report `error` of this rank. `conclude` also stores the attempt's result, by the cause as far as reports tell it.

    Without a driver the last rank to fail writes the last word; the cause is the same whoever writes it.
    """
    from samite_workloads.train.failures import report_of

    beat = last_heartbeat(attempt, facts.rank)
    incarnation = beat.incarnation if beat and beat.submission_id == attempt.submission_id else 0
    report = report_of(error, rank=facts.rank, node=facts.node, incarnation=incarnation, step=beat.step if beat else -1)
    write_report(failures_folder(attempt), report)
    if conclude:
        finish(attempt, failed_result(attempt))
    return report


def failures_folder(attempt: AttemptSpec) -> Path:
    """Where the reports of the attempt's ranks are."""
    return attempt_folder(attempt) / "failures"


def incarnations_begun(attempt: AttemptSpec) -> int:
    """One more than the number of the last worker group of this submission that has met; 0 if none has."""
    marks = attempt_folder(attempt) / "incarnations"
    return max((1 + int(mark.name) for mark in marks.iterdir() if mark.name.isdigit()), default=0) if marks.is_dir() else 0


def this_incarnation(attempt: AttemptSpec) -> int:
    """Number of the worker group that this rank belongs to.

    Marks count the groups that met; who started the group counts those too that failed before (Ray's controller, torchrun). A group that had the number of
    one before it would be taken for it, and its first steps for no recovery.
    """
    started = os.environ.get(WORKER_GROUP) or os.environ.get("TORCHELASTIC_RESTART_COUNT") or "0"
    return max(incarnations_begun(attempt), int(started))


def earlier_failure(attempt: AttemptSpec) -> FailureReport | None:
    """Why the incarnation before failed; None for the first one."""
    reports = read_reports(failures_folder(attempt))
    newest = max((r.incarnation for r in reports), default=0)
    return first_cause([r for r in reports if r.incarnation == newest])


def read_result(attempt: AttemptSpec) -> AttemptResult | None:
    """The attempt's result if it is stored."""
    path = attempt_folder(attempt) / "result.json"
    return AttemptResult.read(path) if path.exists() else None


def failed_result(attempt: AttemptSpec, fallback: FailureReport | None = None) -> AttemptResult:
    """The result of a failed attempt, from the reports of its newest incarnation; `fallback` when no rank could report."""
    reports = read_reports(failures_folder(attempt))
    newest = max((r.incarnation for r in reports), default=0)
    cause = first_cause([r for r in reports if r.incarnation == newest]) or fallback
    beat = last_heartbeat(attempt, 0)
    return AttemptResult(
        outcome="failed",
        submission_id=attempt.submission_id,
        step=beat.step if beat else 0,
        tokens=beat.tokens if beat else 0,
        failure=asdict(cause) if cause else None,
        incarnations=newest + 1,
    )


def last_heartbeat(attempt: AttemptSpec, rank: int) -> Heartbeat | None:
    """The last sign of `rank`, of whatever attempt; None if there is none."""
    try:
        return Heartbeat.read(Path(attempt.run_folder) / "heartbeats" / f"rank-{rank}.json")
    except (OSError, ValueError):
        return None
