"""Run: one run from its state to its curves, with every restart, gate and change of stage marked."""

from samite.dashboards.panels import RUN, STAGE, Board, Kind, Panel, Query, Row, lines, mean, stat

_RATE = "[$__rate_interval]"

RUN_BOARD = Board(
    uid="samite-run",
    title="Samite / Run",
    about="One run: where it is, how fast, how well, and what it lost.",
    rows=(
        Row(
            title="Where it is",
            panels=(
                stat("Step", "Optimizer steps finished over the whole run.", f"max(samite_step_number{{{RUN}}})"),
                stat("Stage done", "Share of the stage's budget.", f"max(samite_stage_progress_ratio{{{RUN}}})", unit="percentunit"),
                stat("Left", "To the end of the run, at this attempt's speed.", f"min(samite_run_remaining_seconds{{{RUN}}})", unit="s"),
                stat("Newest checkpoint", "Its step.", f'max(samite_checkpoint_step{{{RUN}, samite_checkpoint_state="committed"}})'),
                stat("Effective time", "Productive over wall time.", f"max(samite_ettr_ratio{{{RUN}}})", unit="percentunit"),
                stat("Heartbeat", "Age of the youngest heartbeat.", f"max(samite_heartbeat_age_seconds{{{RUN}}})", unit="s", red_above=120),
                Panel(
                    title="Phase",
                    kind=Kind.STATES,
                    queries=(Query(expr=f"sum by (samite_run_state) (samite_run_status{{{RUN}}}) > 0", legend="{{samite_run_state}}"),),
                    about="Phases of the run over time.",
                    width=12,
                ),
                Panel(
                    title="Stage",
                    kind=Kind.STATES,
                    queries=(
                        Query(
                            expr=f'sum by (samite_stage_name) (samite_stage_status{{{RUN}, samite_stage_state="current"}}) > 0',
                            legend="{{samite_stage_name}}",
                        ),
                    ),
                    about="The stage that trains.",
                    width=12,
                ),
            ),
        ),
        Row(
            title="How well",
            panels=(
                lines(
                    "Loss",
                    "Mean cross entropy over supervised tokens, in nats; vision is that of image captions.",
                    Query(expr=f"max by (samite_loss_kind) (samite_loss{{{STAGE}}})", legend="{{samite_loss_kind}}"),
                    width=12,
                ),
                lines(
                    "Gradient norm",
                    "Before clipping, with the highest value that 99 of 100 samples of the last hour stayed under.",
                    Query(expr=f'max(samite_grad_norm{{{STAGE}, samite_param_group="global"}})', legend="norm"),
                    Query(
                        expr=f'max(quantile_over_time(0.99, samite_grad_norm{{{STAGE}, samite_param_group="global"}}[1h]))',
                        legend="99 % of the last hour",
                    ),
                    width=12,
                ),
            ),
        ),
        Row(
            title="How fast",
            panels=(
                lines(
                    "Tokens per second",
                    "recomputed tokens were trained before a restart already; padded ones are filling.",
                    Query(expr=f"sum by (samite_token_kind) (rate(samite_tokens_total{{{STAGE}}}{_RATE}))", legend="{{samite_token_kind}}"),
                ),
                lines(
                    "Step time by part",
                    "Mean of an interval. compute is what rank 0 did itself; the rest of total is waiting for other ranks.",
                    Query(expr=mean("samite_step_duration_seconds", "samite_step_part", STAGE), legend="{{samite_step_part}}"),
                    unit="s",
                ),
                lines(
                    "Learning rate",
                    "Of the step.",
                    Query(expr=f"max by (samite_stage_name) (samite_optimizer_learning_rate{{{STAGE}}})", legend="{{samite_stage_name}}"),
                ),
                Panel(
                    title="What time goes to",
                    kind=Kind.STACKED,
                    queries=(
                        Query(
                            expr=f"sum by (samite_time_state) (rate(samite_time_seconds_total{{{RUN}}}{_RATE}))",
                            legend="{{samite_time_state}}",
                        ),
                    ),
                    about="Seconds per second: productive, or lost to one of the causes.",
                    width=12,
                ),
                lines(
                    "Heartbeat age",
                    "A run whose steps take seconds and whose heartbeat is minutes old hangs.",
                    Query(expr=f"max by (samite_rank_group) (samite_heartbeat_age_seconds{{{RUN}}})", legend="{{samite_rank_group}}"),
                    unit="s",
                    width=12,
                ),
            ),
        ),
    ),
)
