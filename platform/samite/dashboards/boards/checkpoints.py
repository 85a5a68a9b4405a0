"""Checkpoints and storage: whether there is something to come back to, and what it costs to have it."""

from samite.dashboards.panels import RUN, Board, Kind, Needs, Panel, Query, Row, happened, lines, mean, stat

_STALL = RUN + ', samite_checkpoint_phase="stall"'

CHECKPOINTS = Board(
    uid="samite-checkpoints",
    title="Samite / Checkpoints and storage",
    about="Age, duration, size and health of checkpoints.",
    rows=(
        Row(
            title="Now",
            panels=(
                stat("Age", "Of the newest commit, while training.", f"max(samite_checkpoint_age_seconds{{{RUN}}})", unit="s"),
                stat("Interval", "That the spec asks for.", f"max(samite_checkpoint_interval_seconds{{{RUN}}})", unit="s"),
                stat("Newest step", "Of a committed checkpoint.", f"max(samite_checkpoint_step{{{RUN}}})"),
                stat("Last step trained", "What would be lost lies between the two.", f"max(samite_step_number{{{RUN}}})"),
                stat(
                    "Failed verifications",
                    "Since the engine began to watch.",
                    f"sum(samite_checkpoint_verify_failures_total{{{RUN}}})",
                    red_above=1,
                    needs=Needs.RARE,
                ),
                stat(
                    "Time stalled",
                    "Share of the last ten minutes in which training waited for a save.",
                    f"sum(rate(samite_checkpoint_duration_seconds_sum{{{_STALL}}}[10m]))",
                    unit="percentunit",
                    red_above=0.02,
                ),
            ),
        ),
        Row(
            title="Saving",
            panels=(
                lines(
                    "Age against interval",
                    "Three intervals without a commit raise an alert.",
                    Query(expr=f"max by (samite_run_name) (samite_checkpoint_age_seconds{{{RUN}}})", legend="age {{samite_run_name}}"),
                    Query(
                        expr=f"max by (samite_run_name) (samite_checkpoint_interval_seconds{{{RUN}}})",
                        legend="interval {{samite_run_name}}",
                    ),
                    unit="s",
                ),
                lines(
                    "Duration by phase",
                    "Mean of an interval. Only stall costs training time.",
                    Query(
                        expr=mean("samite_checkpoint_duration_seconds", "samite_checkpoint_phase", RUN),
                        legend="{{samite_checkpoint_phase}}",
                    ),
                    unit="s",
                ),
                lines(
                    "Bytes committed per second",
                    "By direction and tier.",
                    Query(
                        expr="sum by (samite_io_direction, samite_checkpoint_tier)"
                        f" (rate(samite_checkpoint_io_bytes_total{{{RUN}}}[$__rate_interval]))",
                        legend="{{samite_io_direction}} {{samite_checkpoint_tier}}",
                    ),
                    unit="Bps",
                ),
            ),
        ),
        Row(
            title="Health",
            panels=(
                Panel(
                    title="Life of checkpoints",
                    kind=Kind.BARS,
                    queries=(
                        Query(
                            expr=happened("checkpoint.committed|checkpoint.verified|checkpoint.restored|checkpoint.pruned", RUN),
                            legend="{{samite_event_name}}",
                        ),
                    ),
                    about="Since the processes began.",
                    width=12,
                ),
                Panel(
                    title="Trouble with storage",
                    kind=Kind.BARS,
                    queries=(
                        Query(
                            expr=happened("checkpoint.save.failed|checkpoint.verify.failed|checkpoint.quarantined|storage.stall", RUN),
                            legend="{{samite_event_name}}",
                        ),
                    ),
                    about="Saves that failed or stood still, checkpoints that did not verify. samite checkpoints ls RUN lists what is left.",
                    width=12,
                    needs=Needs.RARE,
                ),
            ),
        ),
    ),
)
