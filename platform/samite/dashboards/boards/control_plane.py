"""Control plane: whether the operator sees and acts, what the API server answers, and whether signals arrive."""

from samite.dashboards.panels import Board, Kind, Needs, Panel, Query, Row, happened, lines, stat

_RATE = "[$__rate_interval]"


def _operator(title: str, about: str, *queries: Query, unit: str = "short") -> Panel:
    return lines(title, about, *queries, unit=unit, needs=Needs.OPERATOR)


def _p(share: float, histogram: str) -> Query:
    expr = f"histogram_quantile({share:g}, sum by (le) (rate({histogram}_bucket{_RATE})))"
    return Query(expr=expr, legend=f"p{100 * share:.0f}")


CONTROL_PLANE = Board(
    uid="samite-control-plane",
    title="Samite / Control plane",
    about="The operator, the API server as it sees it, KubeRay and Kueue, and lost telemetry.",
    by_run=False,
    rows=(
        Row(
            title="Operator",
            panels=(
                stat("Leaders", "Exactly one is right.", "sum(samite_operator_leader_ratio)", needs=Needs.OPERATOR),
                stat("Runs", "Looked after.", "sum(samite_operator_run_count)", needs=Needs.OPERATOR),
                stat(
                    "Last listing",
                    "Time since a full listing succeeded.",
                    "max(samite_operator_list_age_seconds)",
                    unit="s",
                    red_above=180,
                    needs=Needs.OPERATOR,
                ),
                stat(
                    "Oldest change",
                    "That no turn has taken in.",
                    "max(samite_operator_change_age_seconds)",
                    unit="s",
                    red_above=120,
                    needs=Needs.OPERATOR,
                ),
                stat(
                    "Stalled watches",
                    "They did not tell what a listing showed.",
                    "max(samite_operator_watch_stalled)",
                    red_above=1,
                    needs=Needs.OPERATOR,
                ),
                stat("Orphans deleted", "Objects whose run was gone.", "sum(samite_operator_orphans_total)", needs=Needs.RARE),
                _operator(
                    "From a change to its turn's end",
                    "p50 and p99.",
                    _p(0.5, "samite_operator_reconcile_duration_seconds"),
                    _p(0.99, "samite_operator_reconcile_duration_seconds"),
                    unit="s",
                ),
                _operator(
                    "Turns",
                    "Per second, by outcome.",
                    Query(
                        expr=f"sum by (samite_turn_outcome) (rate(samite_operator_turns_total{_RATE}))", legend="{{samite_turn_outcome}}"
                    ),
                ),
                _operator(
                    "Duration of a turn",
                    "p50 and p99.",
                    *(_p(share, "samite_operator_turn_duration_seconds") for share in (0.5, 0.99)),
                    unit="s",
                ),
            ),
        ),
        Row(
            title="API server",
            panels=(
                _operator(
                    "Requests",
                    "Per second, by verb.",
                    Query(
                        expr=f"sum by (samite_request_verb) (rate(samite_operator_requests_total{_RATE}))", legend="{{samite_request_verb}}"
                    ),
                ),
                lines(
                    "Requests that failed",
                    "Per second, by outcome; notfound is an ordinary answer.",
                    Query(
                        expr="sum by (samite_request_outcome, samite_request_resource)"
                        f' (rate(samite_operator_requests_total{{samite_request_outcome!~"ok|notfound"}}{_RATE})) > 0',
                        legend="{{samite_request_outcome}} {{samite_request_resource}}",
                    ),
                    needs=Needs.RARE,
                ),
                _operator(
                    "Duration of a request",
                    "p50 and p99.",
                    *(_p(share, "samite_operator_request_duration_seconds") for share in (0.5, 0.99)),
                    unit="s",
                ),
                Panel(
                    title="Operator's own events",
                    kind=Kind.BARS,
                    queries=(
                        Query(
                            expr=happened("operator.permission.missing|operator.spec.refused|operator.clearing.expired", ""),
                            legend="{{samite_event_name}}",
                        ),
                    ),
                    about="Missing rights, refused specs, runs that were let go before all was cleared away.",
                    needs=Needs.RARE,
                ),
                lines(
                    "KubeRay clusters",
                    "Provisioned clusters by state, from KubeRay's own metrics.",
                    Query(expr="sum by (condition) (kuberay_cluster_condition_provisioned)", legend="{{condition}}"),
                    needs=Needs.OUTSIDE,
                ),
                lines(
                    "Kueue",
                    "Workloads that wait, by queue.",
                    Query(expr="sum by (cluster_queue, status) (kueue_pending_workloads)", legend="{{cluster_queue}} {{status}}"),
                    needs=Needs.OUTSIDE,
                ),
            ),
        ),
        Row(
            title="Evidence and signals",
            panels=(
                Panel(
                    title="Detectors",
                    kind=Kind.TABLE,
                    queries=(
                        Query(expr="sum by (samite_run_name, samite_detector_name, samite_detector_state) (samite_detector_status == 1)"),
                    ),
                    about="active: the source speaks; degraded: it is silent while the run trains; off: nobody expects it to speak.",
                    width=12,
                ),
                lines(
                    "Telemetry lost",
                    "Items per second that could not be delivered.",
                    Query(
                        expr=f"sum by (service_name, samite_telemetry_signal) (rate(samite_telemetry_dropped_total{_RATE})) > 0",
                        legend="{{service_name}} {{samite_telemetry_signal}}",
                    ),
                    width=12,
                    needs=Needs.RARE,
                ),
            ),
        ),
    ),
)
