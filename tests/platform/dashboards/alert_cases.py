"""For each alert: series that must make it fire, and near misses that must not. One value a minute, in promtool's notation.

The base of every case is a healthy run; a case replaces or adds series. `at` is when it is looked at, 10 hours after the start at most.
"""

from dataclasses import dataclass, field

RUN = 'samite_run_name="demo", samite_run_uid="u1", k8s_namespace_name="team"'
TRAINER = 'samite_run_name="demo", samite_run_uid="u1", samite_stage_name="short", instance="rank-0"'

Series = dict[str, str]


def of(metric: str, labels: str = "", run: str = RUN) -> str:
    return f"{metric}{{{run}{', ' if labels and run else ''}{labels}}}"


def state(name: str) -> str:
    return of("samite_run_status", f'samite_run_state="{name}"')


def event(name: str) -> str:
    return of("samite_events_total", f'samite_event_name="samite.{name}"')


HEALTHY: Series = {
    state("running"): "1x600",
    state("held"): "0x600",
    state("failed"): "0x600",
    of("samite_heartbeat_age_seconds", 'samite_rank_group="all"'): "1 2x600",
    of("samite_ettr_ratio"): "0.97x600",
    of("samite_ettr_objective_ratio"): "0.9x600",
    of("samite_time_seconds_total", 'samite_time_state="productive"'): "0+58x600",
    of("samite_time_seconds_total", 'samite_time_state="save_stall"'): "0+2x600",
    of("samite_restart_budget_usage", 'samite_failure_class="infra"'): "1x600",
    of("samite_restart_budget_limit", 'samite_failure_class="infra"'): "20x600",
    of("samite_restart_budget_usage", 'samite_failure_class="user"'): "0x600",
    of("samite_restart_budget_limit", 'samite_failure_class="user"'): "0x600",
    of("samite_attempts_without_commit"): "0x600",
    of("samite_checkpoint_age_seconds"): "30x600",
    of("samite_checkpoint_interval_seconds"): "60x600",
    of("samite_node_strike_count", 'samite_node="node-1"'): "0.5x600",
    of("samite_queue_wait_age_seconds"): "0x600",
    of("samite_detector_status", 'samite_detector_name="ray", samite_detector_state="active"'): "1x600",
    of("samite_detector_status", 'samite_detector_name="ray", samite_detector_state="degraded"'): "0x600",
    of("samite_events_total", 'samite_event_name="samite.checkpoint.committed"'): "0+1x600",
    of("samite_numeric_nonfinites_total", 'samite_tensor_kind="loss"', TRAINER): "0x600",
    of("samite_grad_norm", 'samite_param_group="global"', TRAINER): "1 0.5 1.2 0.8 1.1x600",
    of("samite_decay_underflow_ratio", 'samite_layer_block="0"', TRAINER): "0x600",
    of("samite_decay_tile_margin", 'samite_layer_block="0"', TRAINER): "12x600",
    of("samite_decay_benign_flush_ratio", 'samite_layer_block="0"', TRAINER): "0.75x600",
    of("samite_moe_expert_load_cv", 'samite_layer_block="1"', TRAINER): "0.6x600",
    of("samite_moe_expert_load_maxvio_ratio", 'samite_layer_block="1"', TRAINER): "1.3x600",
    of("samite_moe_expert_load_maxvio_floor_ratio", 'samite_layer_block="1"', TRAINER): "0.8x600",
    of("samite_step_straggler_ratio", "", TRAINER): "1.02x600",
    of("samite_device_memory_peak_bytes", 'samite_memory_kind="reserved"', TRAINER): "80x600",
    of("samite_device_memory_limit_bytes", "", TRAINER): "100x600",
    of("samite_checkpoint_duration_seconds_sum", 'samite_checkpoint_phase="stall"', TRAINER): "0+0.2x600",
    'samite_operator_list_age_seconds{instance="operator-0"}': "20x600",
    'samite_operator_change_age_seconds{instance="operator-0"}': "0x600",
    'samite_operator_watch_stalled{instance="operator-0"}': "0x600",
    'samite_operator_turns_total{instance="operator-0", samite_turn_outcome="done"}': "0+30x600",
    'samite_operator_turns_total{instance="operator-0", samite_turn_outcome="conflict"}': "0+1x600",
    'DCGM_FI_DEV_XID_ERRORS{Hostname="n1", gpu="0"}': "0x600",
}


@dataclass(frozen=True, kw_only=True)
class Case:
    fires: Series
    at: str = "20m"
    silent: Series = field(default_factory=dict)
    """Nothing of it may fire at `at`."""
    without: tuple[str, ...] = ()
    """Healthy series that are not there when it fires."""
    count: int = 1


_HELD = {state("held"): "0x10 1x600", state("running"): "1x10 0x600"}
_RECOVERY = 'samite_recovery_phase="total", samite_restart_level="L2"'

CASES: dict[str, Case] = {
    "SamiteRunNotProgressing": Case(
        fires={of("samite_heartbeat_age_seconds", 'samite_rank_group="all"'): "1x10 60+60x600"},
        # Old heartbeats of a run that is being recovered are no news.
        silent={
            of("samite_heartbeat_age_seconds", 'samite_rank_group="all"'): "1x10 60+60x600",
            state("running"): "1x10 0x600",
            state("recovering"): "0x10 1x600",
        },
    ),
    "SamiteHeartbeatAbsent": Case(fires={}, without=(of("samite_heartbeat_age_seconds", 'samite_rank_group="all"'),)),
    "SamiteHangConfirmed": Case(
        fires={of("samite_failures_total", 'samite_failure_class="hang", error_type="Hang"'): "_x15 1x600"},
        silent={
            of("samite_failures_total", 'samite_failure_class="hang", error_type="Hang"'): "1x600",
            of("samite_failures_total", 'samite_failure_class="infra", error_type="NodeLost"'): "_x15 1x600",
        },
    ),
    "SamiteRunHeld": Case(fires=_HELD, silent={state("suspended"): "0x10 1x600", state("running"): "1x10 0x600"}),
    "SamiteRunFailed": Case(
        fires={state("failed"): "0x10 1x600", state("running"): "1x10 0x600"},
        silent={state("cancelled"): "0x10 1x600", state("running"): "1x10 0x600"},
    ),
    "SamiteRecoverySlow": Case(
        fires={
            of("samite_recovery_duration_seconds_sum", _RECOVERY): "_x15 420x600",
            of("samite_recovery_duration_seconds_count", _RECOVERY): "_x15 1x600",
        },
        silent={
            of("samite_recovery_duration_seconds_sum", _RECOVERY): "_x15 240x600",
            of("samite_recovery_duration_seconds_count", _RECOVERY): "_x15 1x600",
        },
    ),
    "SamiteEttrLow": Case(
        fires={of("samite_ettr_ratio"): "0.85x600"},
        at="3h",
        silent={of("samite_ettr_ratio"): "0.92x600"},
    ),
    "SamiteEttrFastBurn": Case(
        fires={
            of("samite_time_seconds_total", 'samite_time_state="productive"'): "0+58x60 3480+15x600",
            of("samite_time_seconds_total", 'samite_time_state="restart"'): "0x60 0+45x600",
        },
        at="3h",
        # A run of ten minutes that is still starting has lost all of them, and nobody is woken.
        silent={
            of("samite_time_seconds_total", 'samite_time_state="productive"'): "0x600",
            of("samite_time_seconds_total", 'samite_time_state="save_stall"'): "0x600",
            of("samite_time_seconds_total", 'samite_time_state="start"'): "_x170 0+60x60",
            of("samite_ettr_ratio"): "_x170 0x60",
        },
    ),
    "SamiteRestartBudgetLow": Case(
        fires={of("samite_restart_budget_usage", 'samite_failure_class="infra"'): "1x10 17x600"},
        silent={of("samite_restart_budget_usage", 'samite_failure_class="infra"'): "16x600"},
    ),
    "SamiteNoProgressCycles": Case(
        fires={of("samite_attempts_without_commit"): "0x10 2x600"}, silent={of("samite_attempts_without_commit"): "1x600"}
    ),
    "SamiteCheckpointStale": Case(
        fires={of("samite_checkpoint_age_seconds"): "60+60x600"},
        # Three intervals of a tiny run are seconds: nobody is woken for less than five minutes.
        silent={of("samite_checkpoint_age_seconds"): "290x600", of("samite_checkpoint_interval_seconds"): "5x600"},
    ),
    "SamiteStorageAlmostFull": Case(
        # 100 of 1,000 bytes are left, and a byte goes every ten minutes: 144 a day. Half as fast leaves some.
        fires={of("samite_checkpoint_storage_usage_bytes"): "900+0.1x600", of("samite_checkpoint_storage_limit_bytes"): "1000x600"},
        at="60m",
        silent={of("samite_checkpoint_storage_usage_bytes"): "900+0.05x600", of("samite_checkpoint_storage_limit_bytes"): "1000x600"},
    ),
    "SamiteCheckpointVerifyFailed": Case(
        fires={of("samite_checkpoint_verify_failures_total"): "_x15 1x600"},
        at="30m",
        silent={of("samite_checkpoint_verify_failures_total"): "0x600"},
    ),
    "SamiteStorageErrors": Case(fires={event("storage.stall"): "_x10 1 2 3 3x600"}, silent={event("storage.stall"): "_x10 1 2 2x600"}),
    "SamiteSparesExhausted": Case(fires={of("samite_node_spare_count"): "0x600"}, silent={of("samite_node_spare_count"): "1x600"}),
    "SamiteExclusionConcentrated": Case(
        fires={
            of("samite_node_strike_count", 'samite_node="node-1"'): "3x600",
            'samite_node_strike_count{samite_run_uid="u2", samite_run_name="other", samite_node="node-1"}': "2.5x600",
        },
        silent={of("samite_node_strike_count", 'samite_node="node-1"'): "3x600"},
    ),
    "SamiteDetectorOff": Case(
        fires={of("samite_detector_status", 'samite_detector_name="ray", samite_detector_state="degraded"'): "1x600"},
        silent={of("samite_detector_status", 'samite_detector_name="ray", samite_detector_state="off"'): "1x600"},
    ),
    "SamiteGangWaitLong": Case(
        fires={of("samite_queue_wait_age_seconds"): "0+60x600"},
        at="90m",
        silent={of("samite_queue_wait_age_seconds"): "0+30x600"},
    ),
    "SamiteNonFinite": Case(
        # The trainer ends with the step that it refused: one sample is all there is.
        fires={of("samite_numeric_nonfinites_total", 'samite_tensor_kind="loss"', TRAINER): "0x15 1 _x600"},
        silent={of("samite_numeric_nonfinites_total", 'samite_tensor_kind="loss"', TRAINER): "0x600"},
    ),
    "SamiteGradNormBreak": Case(
        fires={of("samite_grad_norm", 'samite_param_group="global"', TRAINER): "1 1.2 0.9x100 6x600"},
        at="110m",
        silent={of("samite_grad_norm", 'samite_param_group="global"', TRAINER): "1 1.2 0.9x100 3.5x600"},
    ),
    "SamiteDecayUnderflow": Case(
        fires={of("samite_decay_underflow_ratio", 'samite_layer_block="0"', TRAINER): "0x10 0.003x600"},
        silent={of("samite_decay_benign_flush_ratio", 'samite_layer_block="0"', TRAINER): "0.75x10 1x600"},
    ),
    "SamiteExpertCollapse": Case(
        fires={
            of("samite_moe_expert_load_cv", 'samite_layer_block="1"', TRAINER): "3x600",
            of("samite_moe_expert_load_maxvio_ratio", 'samite_layer_block="1"', TRAINER): "9x600",
        },
        # Few tokens per expert: uneven, but no more than chance.
        silent={
            of("samite_moe_expert_load_cv", 'samite_layer_block="1"', TRAINER): "1.8x600",
            of("samite_moe_expert_load_maxvio_ratio", 'samite_layer_block="1"', TRAINER): "3.5x600",
            of("samite_moe_expert_load_maxvio_floor_ratio", 'samite_layer_block="1"', TRAINER): "1.2x600",
        },
    ),
    "SamiteDeviceMemoryNearLimit": Case(
        fires={of("samite_device_memory_peak_bytes", 'samite_memory_kind="reserved"', TRAINER): "97x600"},
        silent={of("samite_device_memory_peak_bytes", 'samite_memory_kind="allocated"', TRAINER): "97x600"},
    ),
    "SamiteStragglerSustained": Case(
        fires={of("samite_step_straggler_ratio", "", TRAINER): "1.4x600"},
        at="40m",
        silent={of("samite_step_straggler_ratio", "", TRAINER): "1.4x15 1.0x600"},
    ),
    "SamiteCheckpointStallHigh": Case(
        fires={of("samite_checkpoint_duration_seconds_sum", 'samite_checkpoint_phase="stall"', TRAINER): "0+3x600"},
        at="2h",
        silent={of("samite_checkpoint_duration_seconds_sum", 'samite_checkpoint_phase="stall"', TRAINER): "0+1x600"},
    ),
    "SamiteTelemetryDropped": Case(
        fires={'samite_telemetry_dropped_total{service_name="samite-trainer", samite_telemetry_signal="metrics"}': "0+5x600"},
        at="40m",
        silent={'samite_telemetry_dropped_total{service_name="samite-trainer", samite_telemetry_signal="metrics"}': "0x5 40x600"},
    ),
    "SamiteOperatorDown": Case(fires={}, without=('samite_operator_list_age_seconds{instance="operator-0"}',)),
    "SamiteOperatorBlind": Case(
        fires={'samite_operator_list_age_seconds{instance="operator-0"}': "20+60x600"},
        silent={'samite_operator_list_age_seconds{instance="operator-0"}': "100x600"},
    ),
    "SamiteOperatorTurnsFail": Case(
        fires={'samite_operator_turns_total{instance="operator-0", samite_turn_outcome="error"}': "0+10x600"},
        at="30m",
        silent={'samite_operator_turns_total{instance="operator-0", samite_turn_outcome="conflict"}': "0+15x600"},
    ),
    "SamiteOperatorWatchStalled": Case(
        fires={'samite_operator_watch_stalled{instance="operator-0"}': "2x600"},
        silent={'samite_operator_watch_stalled{instance="operator-0"}': "0 0 1 0 0x600"},
    ),
    "SamiteOperatorPermissionMissing": Case(
        fires={event("operator.permission.missing"): "_x15 1x600"}, silent={event("operator.orphan.deleted"): "_x15 1x600"}
    ),
    "SamiteFatalXid": Case(
        fires={'DCGM_FI_DEV_XID_ERRORS{Hostname="n1", gpu="0"}': "0x10 79x600"},
        # A fault of the application, not of the device.
        silent={'DCGM_FI_DEV_XID_ERRORS{Hostname="n1", gpu="0"}': "0x10 31x600"},
    ),
}
