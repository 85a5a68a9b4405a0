"""Alerts on training itself, from the trainer's own signals: numbers, experts, memory, stragglers, saves that stall."""

from samite.dashboards.alerts.values import OF_RUN, Alert, grown

_RUN = "{{ $labels.samite_run_name }}"
_STAGE = f"{OF_RUN}, samite_stage_name"
_LAYER = f"{OF_RUN}, samite_layer_block"
_NORM = 'samite_grad_norm{samite_param_group="global"}'
_PEAK = 'samite_device_memory_peak_bytes{samite_memory_kind="reserved"}'
_STALL = 'samite_checkpoint_duration_seconds_sum{samite_checkpoint_phase="stall"}'


def _training(name: str, severity: str, expr: str, lasts: str, summary: str, means: str, board: str = "samite-numeric") -> Alert:
    return Alert(name=name, group="training", severity=severity, expr=expr, lasts=lasts, summary=summary, means=means, board=board)


TRAINING_ALERTS: tuple[Alert, ...] = (
    _training(
        "SamiteNonFinite",
        "page",
        f"sum by ({OF_RUN}, samite_tensor_kind) {grown('samite_numeric_nonfinites_total', '10m')} > 0",
        "0m",
        f"Run {_RUN}: NaN or infinity in a {{{{ $labels.samite_tensor_kind }}}}",
        "The step was refused on all ranks. By default the run rolls back and leaves the data of that step out.",
    ),
    _training(
        "SamiteGradNormBreak",
        "ticket",
        f"max by ({_STAGE}) ({_NORM}) > 4 * max by ({_STAGE}) (quantile_over_time(0.99, {_NORM}[6h] offset 10m))",
        "5m",
        f"Run {_RUN}: the gradient norm stays at {{{{ $value | humanize }}}}",
        "Four times what 99 of 100 samples of the last six hours stayed under.",
    ),
    _training(
        "SamiteDecayUnderflow",
        "ticket",
        f"max by ({_LAYER}) (samite_decay_underflow_ratio) > 0 or min by ({_LAYER}) (samite_decay_tile_margin) < 0",
        "1m",
        f"Run {_RUN}: layer {{{{ $labels.samite_layer_block }}}} loses decay products",
        "Products that matter vanish because a factor left the range of float32: what a layer should remember is gone. A restart repairs nothing.",
    ),
    _training(
        "SamiteExpertCollapse",
        "ticket",
        f"max by ({_LAYER}) (samite_moe_expert_load_cv) > 1.5 and on (samite_run_uid, samite_layer_block)"
        f" max by ({_LAYER}) (samite_moe_expert_load_maxvio_ratio) > 4 * max by ({_LAYER}) (samite_moe_expert_load_maxvio_floor_ratio)",
        "15m",
        f"Run {_RUN}: the router of layer {{{{ $labels.samite_layer_block }}}} sends most tokens to few experts",
        "Loads vary far more than chance alone would show.",
        "samite-experts",
    ),
    _training(
        "SamiteDeviceMemoryNearLimit",
        "ticket",
        f"max by ({OF_RUN}, instance) ({_PEAK}) / max by ({OF_RUN}, instance) (samite_device_memory_limit_bytes) > 0.96",
        "10m",
        f"Run {_RUN}: {{{{ $labels.instance }}}} uses {{{{ $value | humanizePercentage }}}} of its device memory",
        "The next longer document can end the attempt.",
        "samite-memory-compute",
    ),
    _training(
        "SamiteStragglerSustained",
        "ticket",
        f"max by ({OF_RUN}) (samite_step_straggler_ratio) > 1.15",
        "20m",
        f"Run {_RUN}: one rank needs {{{{ $value | humanize }}}} times the median",
        "All ranks wait for the slowest in each step.",
        "samite-memory-compute",
    ),
    _training(
        "SamiteCheckpointStallHigh",
        "ticket",
        f"sum by ({OF_RUN}) (rate({_STALL}[1h])) > 0.02",
        "30m",
        f"Run {_RUN} spends {{{{ $value | humanizePercentage }}}} of its time waiting for saves",
        "Saving should cost training nearly nothing: the snapshot is too large for host memory, or uploads do not keep up.",
        "samite-checkpoints",
    ),
    _training(
        "SamiteTelemetryDropped",
        "ticket",
        "sum by (service_name, samite_telemetry_signal) (rate(samite_telemetry_dropped_total[5m])) > 0",
        "15m",
        "{{ $labels.service_name }} loses {{ $labels.samite_telemetry_signal }}",
        "The collector does not answer, or is too slow. The run folder stays complete; boards and alerts do not.",
        "samite-control-plane",
    ),
)
