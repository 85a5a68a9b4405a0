"""Reports on behalf of ranks that were killed before they could write one. Runs in Ray's controller and loads nothing heavy."""

import time
from dataclasses import replace
from typing import Any

from ray.train import UserCallback

from samite.spec.attempt import AttemptSpec, FailureReport
from samite_workloads.train.outcome import failures_folder, incarnations_begun, last_heartbeat
from samite_workloads.train.ray_rendezvous import groups_started
from samite_workloads.train.reports import write_report


class ReportForTheDead(UserCallback):
    """Runs in Ray's controller: writes the failure report of ranks that could not write their own, because they were killed."""

    def __init__(self, attempt: str) -> None:
        self._attempt = attempt

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:  # noqa: ARG002
        """One report for each rank without one; a report that is already there stays."""
        attempt = AttemptSpec.from_json(self._attempt)
        for rank, error in worker_exceptions.items():
            report = FailureReport(
                failure_class="infra",
                error_type=type(error).__name__,
                message=str(error)[:4000],
                rank=rank,
                incarnation=max(0, incarnations_begun(attempt) - 1, groups_started() - 1),
            )
            write_report(failures_folder(attempt), replace(report, **_where(attempt, rank)))


def _where(attempt: AttemptSpec, rank: int) -> dict[str, Any]:
    beat = last_heartbeat(attempt, rank)
    place = {"node": beat.node, "step": beat.step} if beat is not None and beat.submission_id == attempt.submission_id else {}
    return {"time_unix_s": time.time(), **place}
