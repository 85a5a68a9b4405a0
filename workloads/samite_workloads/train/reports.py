"""Failure reports as files: written once by each failing rank and incarnation, read by the driver and by the next incarnation.

Imports nothing heavy: Ray's controller and the driver use it too, and every second they start later is a second of recovery.
"""

from dataclasses import replace
from pathlib import Path

from samite.spec.attempt import FailureReport
from samite.telemetry.redaction import without_secrets

EXIT_FAILED = 1
EXIT_DO_NOT_RESTART = 93
"""The driver's exit code for what no restart can repair: a bad spec, a missing hand-over, refused permissions."""

PEER_LOST = "PeerLostError"
"""Error type of a report about a collective that failed because another rank is gone: the cause stands in that rank's report."""


def may_restart_in_place(report: FailureReport) -> bool:
    """Whether the worker group may simply be started again (L1). Numbers and memory fail again the same way: the ladder decides."""
    return report.restartable and report.failure_class not in ("numeric", "oom")


def write_report(folder: Path, report: FailureReport) -> Path:
    """Store `report` under a name of its own, without secrets in its texts; the first report of a rank and incarnation stays."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"incarnation-{report.incarnation}-rank-{report.rank}.json"
    if not path.exists():
        replace(report, message=without_secrets(report.message), traceback=without_secrets(report.traceback)).write(path)
    return path


def read_reports(folder: Path, incarnation: int | None = None) -> list[FailureReport]:
    """Reports of `folder`, oldest first, of one incarnation or of all."""
    reports = [FailureReport.read(path) for path in sorted(folder.glob("incarnation-*.json"))]
    chosen = [r for r in reports if incarnation is None or r.incarnation == incarnation]
    return sorted(chosen, key=lambda r: r.time_unix_s)


def first_cause(reports: list[FailureReport]) -> FailureReport | None:
    """The report that explains the failure: the earliest that is not about a lost peer, else the earliest."""
    causes = [r for r in reports if r.error_type != PEER_LOST]
    return min(causes or reports, key=lambda r: r.time_unix_s, default=None)
