"""The files that say how an attempt ended: `result.json` once, `failures/*.json` for each failing rank and incarnation."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from samite.spec.attempt import AttemptResult, AttemptSpec, FailureReport, Heartbeat
from samite_workloads.train.reports import first_cause, read_reports, write_report

if TYPE_CHECKING:
    from samite_workloads.train.ranks import RankFacts


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
    """How many worker groups of this submission have met."""
    marks = attempt_folder(attempt) / "incarnations"
    return sum(1 for mark in marks.iterdir() if mark.name.isdigit()) if marks.is_dir() else 0


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
