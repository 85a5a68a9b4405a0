"""Numeric health: gradients, and whether linear attention still carries what it should. Layers by time wherever there is one value per layer."""

from samite.dashboards.panels import STAGE, Board, Kind, Needs, Panel, Query, Row, happened, heatmap, lines, stat

_LAYER = "{{samite_layer_block}}"


def _by_layer(metric: str, aggregate: str = "max", where: str = STAGE) -> str:
    return f"{aggregate} by (samite_layer_block) ({metric}{{{where}}})"


NUMERIC = Board(
    uid="samite-numeric",
    title="Samite / Numeric health",
    about="Gradients, decay, and numbers that left their range.",
    rows=(
        Row(
            title="Now",
            panels=(
                stat(
                    "Non-finite values",
                    "NaN or infinity since the attempt began; the step that had them was refused.",
                    f"sum(samite_numeric_nonfinites_total{{{STAGE}}})",
                    red_above=1,
                ),
                stat(
                    "Lost decay products",
                    "Products above 2^-24 that a factor out of range lost. The bounded gate allows none.",
                    f"sum(samite_decay_lossy_flushes_total{{{STAGE}}})",
                    red_above=1,
                ),
                stat(
                    "Lowest tile margin",
                    "Nats left before a factor of a tile overflows float32.",
                    f"min(samite_decay_tile_margin{{{STAGE}}})",
                ),
                stat(
                    "Clipped steps",
                    "Share of the last ten minutes' steps whose gradient was clipped.",
                    f"max(avg_over_time(samite_grad_clipped_ratio{{{STAGE}}}[10m]))",
                    unit="percentunit",
                ),
                stat("Largest A_log", "Above 5 a gate is binary.", f"max(samite_decay_a_log_max{{{STAGE}}})", red_above=5),
                stat("Largest state", "Root mean square of the largest head's state.", f"max(samite_decay_state_rms{{{STAGE}}})"),
            ),
        ),
        Row(
            title="Gradients",
            panels=(
                lines(
                    "Gradient norm by group",
                    "Before clipping. One group that leaves the others shows where to look.",
                    Query(expr=f"max by (samite_param_group) (samite_grad_norm{{{STAGE}}})", legend="{{samite_param_group}}"),
                    width=12,
                ),
                lines(
                    "Loss",
                    "By kind, in nats.",
                    Query(expr=f"max by (samite_loss_kind) (samite_loss{{{STAGE}}})", legend="{{samite_loss_kind}}"),
                    width=12,
                ),
                heatmap(
                    "Largest activation by layer",
                    "Largest magnitude of what a layer gives on. One layer that climbs for hours ends in a spike.",
                    _by_layer("samite_activation_amax"),
                    _LAYER,
                ),
                Panel(
                    title="What the rules found",
                    kind=Kind.BARS,
                    queries=(
                        Query(
                            expr=happened(
                                "numeric.nonfinite|numeric.window.skipped|grad.norm.spike|loss.spike|decay.underflow|moe.expert.collapse",
                                STAGE.partition(", samite_stage")[0],
                            ),
                            legend="{{samite_event_name}}",
                        ),
                    ),
                    about="Numeric events of the attempt. Each names step, layer and data window: samite events RUN shows them.",
                    width=12,
                    needs=Needs.RARE,
                ),
            ),
        ),
        Row(
            title="Decay of linear attention",
            panels=(
                heatmap(
                    "Lost products by layer",
                    "Share of causal decay products above 2^-24 that were lost. Anything but 0 is wrong.",
                    _by_layer("samite_decay_underflow_ratio"),
                    _LAYER,
                    unit="percentunit",
                ),
                heatmap(
                    "Lowest exponent by layer",
                    "Lowest summed log2 decay of a chunk: how far memory of a whole chunk sinks.",
                    _by_layer("samite_decay_exponent_min", "min"),
                    _LAYER,
                ),
                heatmap(
                    "Tile margin by layer",
                    "Nats left before a factor overflows; below 0 it has.",
                    _by_layer("samite_decay_tile_margin", "min"),
                    _LAYER,
                ),
                heatmap(
                    "Saturated gates by layer",
                    "Share of gates within 0.05 of the lower bound: they forget as fast as they may.",
                    _by_layer("samite_decay_gate_saturated_ratio"),
                    _LAYER,
                    unit="percentunit",
                ),
                heatmap(
                    "Heads without memory by layer",
                    "Share of heads reduced to local attention.",
                    _by_layer("samite_decay_head_memoryless_ratio"),
                    _LAYER,
                    unit="percentunit",
                ),
                heatmap(
                    "Open gates by layer",
                    "Share of gates that never forget.",
                    _by_layer("samite_decay_gate_open_ratio"),
                    _LAYER,
                    unit="percentunit",
                ),
                lines(
                    "Forgotten chunks",
                    "Largest share over layers of chunk, head and channel triples that carry nothing across a chunk, by the format it vanishes in.",
                    Query(
                        expr=f"max by (samite_decay_threshold) (samite_decay_chunk_forgotten_ratio{{{STAGE}}})",
                        legend="{{samite_decay_threshold}}",
                    ),
                    unit="percentunit",
                ),
                lines(
                    "Benign flushes",
                    "Share of state operands that scaling took below 2^-126. Harmless, and no alarm ever looks at it.",
                    Query(expr=_by_layer("samite_decay_benign_flush_ratio"), legend="layer " + _LAYER),
                    unit="percentunit",
                ),
                lines(
                    "Saturated beta",
                    "Share of beta below 1e-3 or above 0.999.",
                    Query(expr=_by_layer("samite_decay_beta_saturated_ratio"), legend="layer " + _LAYER),
                    unit="percentunit",
                ),
            ),
        ),
    ),
)
