"""The metrics that only the engine can know: phase, effective time and what it was lost to, failures, recoveries, ages.

Made from two statuses in a row, so that a restarted supervisor neither repeats nor forgets a recovery. Sent with `samite.telemetry`.
"""

from collections.abc import Iterator, Mapping, Sequence

from samite.lifecycle import Phase, Status
from samite.lifecycle.memory import RecoveryRecord
from samite.telemetry.records import Point

PERIOD_S = 10.0
"""States are sent at least this often; changes at once."""

_RECOVERY_PHASES = ("detect", "restart", "load", "first_step")


def points(before: Status | None, now: Status, *, due: bool) -> list[Point]:
    """What to send after a turn: changes always, the standing values if they are `due`."""
    found = list(_changes(before, now))
    if due or before is None or before.phase is not now.phase:
        found += _standing(now)
    return found


def _changes(before: Status | None, now: Status) -> Iterator[Point]:
    if before is None:
        return
    for record in _new(before.recoveries, now.recoveries):
        level = {"samite.restart.level": f"L{record.level}"}
        yield Point("samite.detection.duration", record.detect_s, {"samite.failure.class": record.failure_class.value})
        for phase in _RECOVERY_PHASES:
            yield Point("samite.recovery.duration", getattr(record, f"{phase}_s"), {**level, "samite.recovery.phase": phase})
    if now.last_failure is not None and now.last_failure != before.last_failure:
        yield Point(
            "samite.failures",
            1.0,
            {"samite.failure.class": now.last_failure.failure_class.value, "error.type": now.last_failure.error_type},
        )
    for state, seconds in _grown(_times(before), _times(now)).items():
        yield Point("samite.time", seconds, {"samite.time.state": state})


def _standing(now: Status) -> Iterator[Point]:
    for phase in Phase:
        yield Point("samite.run.status", float(phase is now.phase), {"samite.run.state": phase.value.lower()})
    if now.ettr.percent is not None:
        yield Point("samite.ettr", now.ettr.percent / 100.0)
    if now.progress.stage_percent is not None:
        yield Point("samite.stage.progress", now.progress.stage_percent / 100.0)
    if now.progress.updated_age_s is not None:
        yield Point("samite.heartbeat.age", now.progress.updated_age_s, {"samite.rank.group": "all"})
    if now.last_checkpoint_step is not None:
        yield Point("samite.checkpoint.step", float(now.last_checkpoint_step), {"samite.checkpoint.state": "committed"})


def _new(before: Sequence[RecoveryRecord], now: Sequence[RecoveryRecord]) -> list[RecoveryRecord]:
    seen = set(before)
    return [record for record in now if record not in seen]


def _times(status: Status) -> dict[str, float]:
    lost = status.ettr.lost
    return {
        "productive": status.ettr.productive_s,
        "queue": lost.queue,
        "start": lost.start,
        "detect": lost.detect,
        "restart": lost.restart,
        "load": lost.load,
        "recompute": lost.recompute,
        "save_stall": lost.checkpoint_stall,
        "hold": lost.hold,
    }


def _grown(before: Mapping[str, float], now: Mapping[str, float]) -> dict[str, float]:
    """Seconds that were added since; a counter never goes back."""
    return {state: seconds - before[state] for state, seconds in now.items() if seconds > before[state]}
