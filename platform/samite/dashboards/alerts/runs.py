"""Alerts on runs as the engine sees them: progress, failures, budgets, effective time, checkpoints, nodes."""

from samite.dashboards.alerts.values import OF_RUN, RUNNING, Alert, grown, told

_RUN = "{{ $labels.samite_run_name }}"
_SINCE_AN_HOUR = "and on (samite_run_uid) max by (samite_run_uid) (samite_ettr_ratio offset 1h)"
_LOST = 'samite_time_seconds_total{samite_time_state!~"productive|queue"}'
_SPENT = 'samite_time_seconds_total{samite_time_state!="queue"}'
_TOTAL = 'samite_recovery_duration_seconds_{part}{{samite_recovery_phase="total"}}'


def _run(name: str, severity: str, expr: str, lasts: str, summary: str, means: str, board: str = "samite-run") -> Alert:
    return Alert(name=name, group="runs", severity=severity, expr=expr, lasts=lasts, summary=summary, means=means, board=board)


def _recovery(part: str) -> str:
    return f"sum by ({OF_RUN}) {grown(_TOTAL.format(part=part), '1h')}"


RUN_ALERTS: tuple[Alert, ...] = (
    _run(
        "SamiteRunNotProgressing",
        "page",
        f"max by ({OF_RUN}) (samite_heartbeat_age_seconds) > 300 and on (samite_run_uid) {RUNNING}",
        "0m",
        f"Run {_RUN}: no heartbeat for {{{{ $value | humanizeDuration }}}}",
        "The phase says Running, but no rank has finished a step for five minutes.",
    ),
    _run(
        "SamiteHeartbeatAbsent",
        "page",
        f"{RUNNING} unless on (samite_run_uid) samite_heartbeat_age_seconds",
        "3m",
        f"Run {_RUN}: running, but nobody reads its heartbeat",
        "The engine is blind for this run, or the trainer never wrote a heartbeat. Training may be fine; a failure would go unseen.",
    ),
    _run(
        "SamiteHangConfirmed",
        "page",
        f"sum by ({OF_RUN}) {grown('samite_failures_total{samite_failure_class=' + chr(34) + 'hang' + chr(34) + '}', '10m')} > 0",
        "0m",
        f"Run {_RUN}: a hang was confirmed",
        "Heartbeats stopped and a second, independent fact agrees.",
        "samite-recovery",
    ),
    _run(
        "SamiteRunHeld",
        "page",
        f'max by ({OF_RUN}) (samite_run_status{{samite_run_state="held"}}) == 1',
        "1m",
        f"Run {_RUN} is held and waits for a person",
        "The run stopped trying. Its nodes are given back ten minutes later, checkpoints and logs stay.",
    ),
    _run(
        "SamiteRunFailed",
        "ticket",
        f'max by ({OF_RUN}) (samite_run_status{{samite_run_state="failed"}}) == 1',
        "0m",
        f"Run {_RUN} failed",
        "The run ended for good, without using up its budget of steps.",
    ),
    _run(
        "SamiteRecoverySlow",
        "page",
        f"{_recovery('sum')} / {_recovery('count')} > 300",
        "0m",
        f"Run {_RUN}: recoveries take {{{{ $value | humanizeDuration }}}}",
        "From the fault to the first new step it took more than five minutes on average in the last hour.",
        "samite-recovery",
    ),
    _run(
        "SamiteEttrLow",
        "ticket",
        f"max by ({OF_RUN}) (avg_over_time(samite_ettr_ratio[6h])) < max by ({OF_RUN}) (samite_ettr_objective_ratio)"
        f" and on (samite_run_uid) {RUNNING} {_SINCE_AN_HOUR}",
        "30m",
        f"Run {_RUN}: effective time is {{{{ $value | humanizePercentage }}}}",
        "Less of the wall time since the start was new training than the spec asks for (slo.ettrPercent).",
        "samite-recovery",
    ),
    _run(
        "SamiteEttrFastBurn",
        "page",
        f"sum by ({OF_RUN}) (rate({_LOST}[1h])) / sum by ({OF_RUN}) (rate({_SPENT}[1h]))"
        f" > 5 * (1 - max by ({OF_RUN}) (samite_ettr_objective_ratio))"
        f" and on (samite_run_uid) {RUNNING} {_SINCE_AN_HOUR}",
        "5m",
        f"Run {_RUN} lost {{{{ $value | humanizePercentage }}}} of the last hour",
        "Five times the share of time that the spec allows (slo.ettrPercent) went to something other than training.",
        "samite-recovery",
    ),
    _run(
        "SamiteRestartBudgetLow",
        "page",
        f"max by ({OF_RUN}, samite_failure_class) (samite_restart_budget_usage)"
        f" / max by ({OF_RUN}, samite_failure_class) (samite_restart_budget_limit) > 0.8",
        "0m",
        f"Run {_RUN}: {{{{ $value | humanizePercentage }}}} of the restarts for {{{{ $labels.samite_failure_class }}}} are used",
        "When the budget of this class is used up the run is held. Now there is still time to find the cause.",
        "samite-recovery",
    ),
    _run(
        "SamiteNoProgressCycles",
        "page",
        f"max by ({OF_RUN}) (samite_attempts_without_commit) >= 2",
        "0m",
        f"Run {_RUN}: {{{{ $value }}}} attempts in a row ended without a new checkpoint",
        "The run restarts and fails again before it can save. At three the run is held by default.",
        "samite-recovery",
    ),
    _run(
        "SamiteCheckpointStale",
        "page",
        f"max by ({OF_RUN}) (samite_checkpoint_age_seconds) > clamp_min(3 * max by ({OF_RUN}) (samite_checkpoint_interval_seconds), 300)"
        f" and on (samite_run_uid) {RUNNING}",
        "2m",
        f"Run {_RUN}: the newest checkpoint is {{{{ $value | humanizeDuration }}}} old",
        "Three intervals passed without a commit: a failure now costs all of that time.",
        "samite-checkpoints",
    ),
    _run(
        "SamiteStorageAlmostFull",
        "ticket",
        f"max by ({OF_RUN}) (predict_linear(samite_checkpoint_storage_usage_bytes[6h], 86400)) > "
        f"max by ({OF_RUN}) (samite_checkpoint_storage_limit_bytes)",
        "30m",
        f"Run {_RUN}: the file system of its checkpoints is full within a day",
        "At the pace of the last six hours nothing can be written a day from now: saves fail, and a failure then costs all that came after the last one.",
        "samite-checkpoints",
    ),
    _run(
        "SamiteCheckpointVerifyFailed",
        "ticket",
        f"sum by ({OF_RUN}) {grown('samite_checkpoint_verify_failures_total', '1h')} > 0",
        "0m",
        f"Run {_RUN}: a checkpoint did not verify",
        "Stored bytes differ from what the manifest promises. The checkpoint is set aside; older ones stay usable.",
        "samite-checkpoints",
    ),
    _run(
        "SamiteStorageErrors",
        "ticket",
        f"{told('storage.stall|checkpoint.save.failed', '15m')} > 2",
        "0m",
        f"Run {_RUN}: {{{{ $value | humanize }}}} saves failed or stood still in 15 minutes",
        "Storage is slow or refuses. Training goes on, checkpoints come late.",
        "samite-checkpoints",
    ),
    _run(
        "SamiteSparesExhausted",
        "ticket",
        f"min by ({OF_RUN}) (samite_node_spare_count) == 0",
        "10m",
        f"Run {_RUN} has no spare node left",
        "The next lost node has to be waited for.",
        "samite-nodes",
    ),
    _run(
        "SamiteExclusionConcentrated",
        "ticket",
        "topk(3, sum by (samite_node) (samite_node_strike_count)) > 5",
        "0m",
        "Node {{ $labels.samite_node }} has {{ $value | humanize }} strikes",
        "A few nodes cause most of the trouble, over all runs.",
        "samite-nodes",
    ),
    _run(
        "SamiteDetectorOff",
        "ticket",
        f'max by ({OF_RUN}, samite_detector_name) (samite_detector_status{{samite_detector_state="degraded"}}) == 1',
        "5m",
        f"Run {_RUN}: the {{{{ $labels.samite_detector_name }}}} detector is blind",
        "A source of evidence is silent while the run trains. A silent source is no fact: restarts that need it are withheld.",
    ),
    _run(
        "SamiteGangWaitLong",
        "ticket",
        f"max by ({OF_RUN}) (samite_queue_wait_age_seconds) > 3600",
        "0m",
        f"Run {_RUN} has waited {{{{ $value | humanizeDuration }}}} for quota",
        "Queued for more than an hour.",
        "samite-fleet",
    ),
)
