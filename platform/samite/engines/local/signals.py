"""The metrics that only the engine can know: phase, effective time and what it was lost to, failures, recoveries, ages.

Made from two statuses in a row, so that a restarted supervisor neither repeats nor forgets a recovery. Sent with `samite.telemetry`.
"""

from collections.abc import Iterator, Mapping, Sequence

from samite.lifecycle import Phase, RunPlan, Status, blame, budgets
from samite.lifecycle.memory import Memory, RecoveryRecord
from samite.lifecycle.phases import TRAINING, FailureClass
from samite.telemetry.records import Point

PERIOD_S = 10.0
"""States are sent at least this often; changes at once."""

_RECOVERY_PHASES = ("detect", "restart", "load", "first_step", "total")


def points(before: Status | None, now: Status, *, due: bool, plan: RunPlan | None = None, memory: Memory | None = None) -> list[Point]:
    """What to send after a turn: changes always, the standing values if they are `due`.

    With the run's plan and memory also what only they know: budgets, age and interval of checkpoints, nodes, cycles without a commit.
    """
    found = list(_changes(before, now))
    if due or before is None or before.phase is not now.phase:
        found += _standing(now)
        if plan is not None and memory is not None:
            found += _remembered(now, plan, memory)
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
    if now.progress.eta_s is not None:
        yield Point("samite.run.remaining", now.progress.eta_s)
    if now.progress.stage_percent is not None:
        yield Point("samite.stage.progress", now.progress.stage_percent / 100.0)
    if now.progress.updated_age_s is not None:
        yield Point("samite.heartbeat.age", now.progress.updated_age_s, {"samite.rank.group": "all"})
    if now.last_checkpoint_step is not None:
        yield Point("samite.checkpoint.step", float(now.last_checkpoint_step), {"samite.checkpoint.state": "committed"})

    for name in now.started_stages:
        current = name == now.current_stage and now.phase is not Phase.SUCCEEDED
        for state, holds in (("current", current), ("finished", not current)):
            yield Point("samite.stage.status", float(holds), {"samite.stage.name": name, "samite.stage.state": state})
    yield from _detectors(now)


def _detectors(now: Status) -> Iterator[Point]:
    """Whether the sources of evidence speak. Where nobody expects one to (a heartbeat while workers start), it is off, not degraded."""
    progressing, checkpoints = now.condition("Progressing"), now.condition("CheckpointHealthy")
    running, training = now.phase is Phase.RUNNING, now.phase in TRAINING
    sources = (
        ("heartbeat", running, progressing.reason == "NoHeartbeat"),
        ("ray", running, progressing.reason == "HeartbeatOnly"),
        ("storage", training, checkpoints.reason in ("Silent", "StorageFailing")),
    )
    for name, expected, is_blind in sources:
        for state, holds in (("active", expected and not is_blind), ("degraded", expected and is_blind), ("off", not expected)):
            yield Point("samite.detector.status", float(holds), {"samite.detector.name": name, "samite.detector.state": state})


def _remembered(now: Status, plan: RunPlan, memory: Memory) -> Iterator[Point]:
    training = now.phase in TRAINING
    yield Point("samite.attempts.without_commit", float(memory.cycles_without_commit) if training else 0.0)
    for failure_class, budget in plan.restart.budgets.items():
        attributes = {"samite.failure.class": failure_class.value}
        yield Point("samite.restart.budget.limit", float(budget.limit), attributes)
        yield Point("samite.restart.budget.usage", float(_used(plan, memory, failure_class)), attributes)
    began_s = memory.started_at_s if memory.newest_commit_at_s is None else memory.newest_commit_at_s
    if training and began_s is not None:
        yield Point("samite.checkpoint.age", max(0.0, memory.now_s - began_s))
    interval_s = _interval_s(now, plan)
    if interval_s is not None:
        yield Point("samite.checkpoint.interval", interval_s)
    yield Point("samite.queue.wait.age", max(0.0, memory.now_s - memory.phase_since_s) if now.phase is Phase.QUEUED else 0.0)
    yield Point("samite.node.excluded.count", float(len(now.excluded_nodes)))
    for entry in memory.blame:
        yield Point("samite.node.strike.count", blame.strikes_now(entry, plan.nodes, memory.now_s), {"samite.node": entry.node})
    if training and plan.nodes.spares and memory.live is not None and now.nodes_ready is not None:
        yield Point("samite.node.spare.count", float(max(0, now.nodes_ready - memory.live.num_nodes)))


def _used(plan: RunPlan, memory: Memory, failure_class: FailureClass) -> int:
    return len(budgets.counted(memory.spent, failure_class, budgets.budget_of(plan.restart, failure_class), memory.now_s))


def _interval_s(now: Status, plan: RunPlan) -> float | None:
    """Seconds between commits: as the spec says, or its steps at this attempt's step time; None as long as that is unknown."""
    if plan.checkpoint.interval_s is not None:
        return plan.checkpoint.interval_s
    if plan.checkpoint.interval_steps is None or now.progress.step_s is None:
        return None
    return plan.checkpoint.interval_steps * now.progress.step_s


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
