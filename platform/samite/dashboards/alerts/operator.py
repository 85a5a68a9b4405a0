"""Alerts on the operator and on the hardware below the runs. For a Prometheus that scrapes no operator, leave this group out."""

from samite.dashboards.alerts.values import Alert, told
from samite.dashboards.outside import FATAL_XIDS

_TURNS = "sum(rate(samite_operator_turns_total{where}[10m]))"


def _operator(name: str, severity: str, expr: str, lasts: str, summary: str, means: str) -> Alert:
    return Alert(
        name=name, group="operator", severity=severity, expr=expr, lasts=lasts, summary=summary, means=means, board="samite-control-plane"
    )


OPERATOR_ALERTS: tuple[Alert, ...] = (
    _operator(
        "SamiteOperatorDown",
        "page",
        "absent(samite_operator_list_age_seconds)",
        "5m",
        "No Samite operator answers",
        "Runs go on training, but nothing recovers them.",
    ),
    _operator(
        "SamiteOperatorBlind",
        "page",
        "max by (instance) (samite_operator_list_age_seconds) > 180 or max by (instance) (samite_operator_change_age_seconds) > 120",
        "2m",
        "The Samite operator is up but sees nothing new",
        "A dead watch, an API server that does not answer, or a turn that does not end.",
    ),
    _operator(
        "SamiteOperatorTurnsFail",
        "ticket",
        _TURNS.format(where='{samite_turn_outcome=~"error|refused|unreachable"}') + " / " + _TURNS.format(where="") + " > 0.2",
        "10m",
        "{{ $value | humanizePercentage }} of the operator's turns fail",
        "Errors, missing rights, or an API server that does not answer. Runs are looked after late or not at all.",
    ),
    _operator(
        "SamiteOperatorWatchStalled",
        "ticket",
        "max by (instance) (samite_operator_watch_stalled) > 0",
        "5m",
        "{{ $value }} watches of the operator are silent",
        "A listing shows changes that the watch did not tell. The operator works from listings, which is slower.",
    ),
    _operator(
        "SamiteOperatorPermissionMissing",
        "ticket",
        f"{told('operator.permission.missing', '1h', 'k8s_namespace_name')} > 0",
        "0m",
        "The operator lacks a right in namespace {{ $labels.k8s_namespace_name }}",
        "Something that the operator has to do was forbidden.",
    ),
)

HARDWARE_ALERTS: tuple[Alert, ...] = (
    Alert(
        name="SamiteFatalXid",
        group="hardware",
        severity="page",
        expr=" or ".join(f"max by (Hostname, gpu) (DCGM_FI_DEV_XID_ERRORS == {code})" for code in FATAL_XIDS),
        lasts="0m",
        summary="GPU {{ $labels.gpu }} of {{ $labels.Hostname }} reported XID {{ $value }}",
        means="After this code a GPU or its node cannot be trusted until it was reset or replaced. The field keeps the last code.",
        board="samite-nodes",
    ),
)
