"""Recovery: how quickly failures are noticed and answered, and what is left of the budgets."""

from samite.dashboards.panels import RUN, Board, Kind, Needs, Panel, Query, Row, happened, lines, quantile

_TOTAL = RUN + ', samite_recovery_phase="total"'

RECOVERY = Board(
    uid="samite-recovery",
    title="Samite / Recovery",
    about="From the fault to the first new step: how long, how often, and what remains.",
    rows=(
        Row(
            title="How long",
            panels=(
                lines(
                    "Detection",
                    "From the fault to the decision, by class: half and nine tenths of all cases.",
                    *(
                        Query(
                            expr=quantile(share, "samite_detection_duration_seconds", "samite_failure_class", RUN),
                            legend=f"{{{{samite_failure_class}}}} p{100 * share:.0f}",
                        )
                        for share in (0.5, 0.9)
                    ),
                    unit="s",
                    needs=Needs.FAULT,
                ),
                lines(
                    "Recovery",
                    "From the fault to the first new step, by level of the restart ladder.",
                    *(
                        Query(
                            expr=quantile(share, "samite_recovery_duration_seconds", "samite_restart_level", _TOTAL),
                            legend=f"{{{{samite_restart_level}}}} p{100 * share:.0f}",
                        )
                        for share in (0.5, 0.9)
                    ),
                    unit="s",
                    needs=Needs.FAULT,
                ),
                Panel(
                    title="Mean recovery by phase",
                    kind=Kind.BARS,
                    queries=(
                        Query(
                            expr=f"sum by (samite_recovery_phase) (samite_recovery_duration_seconds_sum{{{RUN}}})"
                            f" / sum by (samite_recovery_phase) (samite_recovery_duration_seconds_count{{{RUN}}})",
                            legend="{{samite_recovery_phase}}",
                        ),
                    ),
                    about="detect: to the decision; restart: to the first heartbeat; load: to a loaded checkpoint; first_step: to a finished step.",
                    unit="s",
                    needs=Needs.FAULT,
                ),
            ),
        ),
        Row(
            title="How often",
            panels=(
                Panel(
                    title="Failures",
                    kind=Kind.TABLE,
                    queries=(Query(expr=f"sum by (samite_failure_class, error_type) (samite_failures_total{{{RUN}}})"),),
                    about="By class and type since the engine began to watch.",
                    needs=Needs.FAULT,
                ),
                Panel(
                    title="Attempts",
                    kind=Kind.BARS,
                    queries=(
                        Query(
                            expr=f"sum by (samite_attempt_outcome) (samite_attempts_total{{{RUN}}})", legend="{{samite_attempt_outcome}}"
                        ),
                    ),
                    about="How attempts ended.",
                ),
                lines(
                    "Attempts without a commit",
                    "Attempts in a row that ended before a new checkpoint. At the limit of the run it is held.",
                    Query(expr=f"max by (samite_run_name) (samite_attempts_without_commit{{{RUN}}})", legend="{{samite_run_name}}"),
                ),
                lines(
                    "Tokens trained again",
                    "What restarts cost beyond their own time.",
                    Query(
                        expr=f'sum by (samite_run_name) (rate(samite_tokens_total{{{RUN}, samite_token_kind="recomputed"}}[$__rate_interval]))',
                        legend="{{samite_run_name}}",
                    ),
                    needs=Needs.FAULT,
                ),
                Panel(
                    title="Nodes lost and faults found",
                    kind=Kind.BARS,
                    queries=(
                        Query(
                            expr=happened("node.lost|failure.detected|restart.decided|recovery.finished", RUN),
                            legend="{{samite_event_name}}",
                        ),
                    ),
                    about="Events since the engine began to watch.",
                    needs=Needs.FAULT,
                ),
                Panel(
                    title="Suspected and withheld",
                    kind=Kind.BARS,
                    queries=(Query(expr=happened("hang.suspected|hang.confirmed|restart.withheld", RUN), legend="{{samite_event_name}}"),),
                    about="Hangs, and restarts that wait for a second fact. One fact alone never destroys anything.",
                    needs=Needs.RARE,
                ),
            ),
        ),
        Row(
            title="What is left",
            panels=(
                Panel(
                    title="Restarts used",
                    kind=Kind.BARS,
                    queries=(
                        Query(
                            expr=f"max by (samite_failure_class) (samite_restart_budget_usage{{{RUN}}})", legend="{{samite_failure_class}}"
                        ),
                    ),
                    about="Restarts that still count against the budget of their class.",
                    width=12,
                ),
                Panel(
                    title="Restarts allowed",
                    kind=Kind.BARS,
                    queries=(
                        Query(
                            expr=f"max by (samite_failure_class) (samite_restart_budget_limit{{{RUN}}})", legend="{{samite_failure_class}}"
                        ),
                    ),
                    about="The budget of each class; when it is used up the run is held.",
                    width=12,
                ),
            ),
        ),
    ),
)
