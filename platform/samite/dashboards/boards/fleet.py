"""Fleet: all runs at a glance. Start here; a click on a run leads to its own board."""

from samite.dashboards.panels import Board, Kind, Needs, Panel, Query, Row, lines, stat

_RATE = "[$__rate_interval]"
_STATE = "sum by (samite_run_name, samite_run_state) (samite_run_status == 1)"

FLEET = Board(
    uid="samite-fleet",
    title="Samite / Fleet",
    about="All runs: where they are, what they lose time to, what failed.",
    by_run=False,
    rows=(
        Row(
            title="Now",
            panels=(
                stat("Running", "Runs that train.", 'sum(samite_run_status{samite_run_state="running"})'),
                stat("Recovering", "Runs between a failure and the next step.", 'sum(samite_run_status{samite_run_state="recovering"})'),
                stat(
                    "Held",
                    "Runs that wait for a person and may hold nodes.",
                    'sum(samite_run_status{samite_run_state="held"})',
                    red_above=1,
                ),
                stat("Queued", "Runs that wait for quota.", 'sum(samite_run_status{samite_run_state="queued"})'),
                stat("Excluded nodes", "Nodes that runs do not use.", "sum(samite_node_excluded_count)", red_above=1),
                stat("Lowest ETTR", "Effective training time of the worst run.", "min(samite_ettr_ratio)", unit="percentunit"),
                Panel(
                    title="Runs",
                    kind=Kind.TABLE,
                    queries=(Query(expr=_STATE),),
                    about="The present phase of each run.",
                    width=12,
                ),
                Panel(
                    title="Progress of the stage",
                    kind=Kind.BARS,
                    queries=(Query(expr="max by (samite_run_name) (samite_stage_progress_ratio)", legend="{{samite_run_name}}"),),
                    about="Share of the current stage's budget that is used.",
                    unit="percentunit",
                    width=12,
                    highest=1.0,
                ),
            ),
        ),
        Row(
            title="Time",
            panels=(
                lines(
                    "Effective training time",
                    "Productive over wall time since the run began; suspended time is left out.",
                    Query(expr="max by (samite_run_name) (samite_ettr_ratio)", legend="{{samite_run_name}}"),
                    unit="percentunit",
                ),
                Panel(
                    title="What time goes to",
                    kind=Kind.STACKED,
                    queries=(
                        Query(expr=f"sum by (samite_time_state) (rate(samite_time_seconds_total{_RATE}))", legend="{{samite_time_state}}"),
                    ),
                    about="Seconds per second over all runs, by what they were spent on.",
                ),
                lines(
                    "Tokens per second",
                    "New tokens; tokens that are trained again after a restart do not count.",
                    Query(
                        expr=f'sum by (samite_run_name) (rate(samite_tokens_total{{samite_token_kind="trained"}}{_RATE}))',
                        legend="{{samite_run_name}}",
                    ),
                ),
            ),
        ),
        Row(
            title="Trouble",
            panels=(
                Panel(
                    title="Failures by class",
                    kind=Kind.BARS,
                    queries=(Query(expr="sum by (samite_failure_class) (samite_failures_total)", legend="{{samite_failure_class}}"),),
                    about="Since the engines began to watch.",
                    needs=Needs.FAULT,
                ),
                Panel(
                    title="Nodes with most strikes",
                    kind=Kind.TABLE,
                    queries=(Query(expr="topk(10, sum by (samite_node) (samite_node_strike_count) > 0)"),),
                    about="Weak evidence against nodes, summed over runs; strikes halve in a week.",
                    needs=Needs.RARE,
                ),
                lines(
                    "Queue wait",
                    "How long a run has been queued.",
                    Query(expr="max by (samite_run_name) (samite_queue_wait_age_seconds)", legend="{{samite_run_name}}"),
                    unit="s",
                ),
            ),
        ),
    ),
)
