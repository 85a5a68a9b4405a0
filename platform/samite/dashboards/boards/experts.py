"""MoE and multimodal: whether the router spreads its load, and what the modalities get and learn."""

from samite.dashboards.panels import STAGE, Board, Query, Row, heatmap, lines, stat

_LAYER = "{{samite_layer_block}}"
_MODALITY_RATE = f'sum by (samite_modality) (rate(samite_tokens_total{{{STAGE}, samite_token_kind="trained"}}[$__rate_interval]))'

EXPERTS = Board(
    uid="samite-experts",
    title="Samite / MoE and multimodal",
    about="Load of experts against what chance alone would show, and loss and tokens by modality.",
    rows=(
        Row(
            title="Now",
            panels=(
                stat("Idle experts", "In the worst layer.", f"max(samite_moe_expert_idle_count{{{STAGE}}})"),
                stat("Worst load cv", "Standard deviation over mean of expert loads.", f"max(samite_moe_expert_load_cv{{{STAGE}}})"),
                stat(
                    "Worst load over its floor",
                    "Largest load over mean load minus 1, less what perfectly balanced sampling shows. Near or below 0 is balanced.",
                    f"max(samite_moe_expert_load_maxvio_ratio{{{STAGE}}} - samite_moe_expert_load_maxvio_floor_ratio{{{STAGE}}})",
                ),
                stat("Lowest entropy", "Of the router, in nats, over layers.", f"min(samite_moe_router_entropy{{{STAGE}}})"),
                stat("Largest logit", "Of any router.", f"max(samite_moe_router_logit_max{{{STAGE}}})"),
                stat(
                    "Padding",
                    "Share of positions that are filling.",
                    f'(sum(rate(samite_tokens_total{{{STAGE}, samite_token_kind="padded"}}[10m])) or vector(0))'
                    f" / sum(rate(samite_tokens_total{{{STAGE}}}[10m]))",
                    unit="percentunit",
                ),
            ),
        ),
        Row(
            title="Experts",
            panels=(
                heatmap(
                    "Load cv by layer",
                    "Standard deviation over mean of the loads of a layer's experts.",
                    f"max by (samite_layer_block) (samite_moe_expert_load_cv{{{STAGE}}})",
                    _LAYER,
                ),
                heatmap(
                    "Idle experts by layer",
                    "Experts without any token in a step. Few tokens per expert leave some idle by chance.",
                    f"max by (samite_layer_block) (samite_moe_expert_idle_count{{{STAGE}}})",
                    _LAYER,
                ),
                lines(
                    "Largest load against chance",
                    "MaxVio, and the floor below which no router can stay. Never judge one without the other.",
                    Query(expr=f"max by (samite_layer_block) (samite_moe_expert_load_maxvio_ratio{{{STAGE}}})", legend="layer " + _LAYER),
                    Query(expr=f"max(samite_moe_expert_load_maxvio_floor_ratio{{{STAGE}}})", legend="floor"),
                ),
                lines(
                    "Router entropy",
                    "Mean over tokens, in nats. A router that falls towards 0 sends everything the same way.",
                    Query(expr=f"min by (samite_layer_block) (samite_moe_router_entropy{{{STAGE}}})", legend="layer " + _LAYER),
                ),
                lines(
                    "Router logits",
                    "Largest magnitude.",
                    Query(expr=f"max by (samite_layer_block) (samite_moe_router_logit_max{{{STAGE}}})", legend="layer " + _LAYER),
                ),
            ),
        ),
        Row(
            title="Modalities",
            panels=(
                lines(
                    "Loss by modality",
                    "In nats; vision is the cross entropy of image captions.",
                    Query(
                        expr=f'max by (samite_loss_kind) (samite_loss{{{STAGE}, samite_loss_kind=~"text|vision"}})',
                        legend="{{samite_loss_kind}}",
                    ),
                    width=12,
                ),
                lines(
                    "Tokens per second by modality",
                    "New tokens without padding.",
                    Query(expr=_MODALITY_RATE, legend="{{samite_modality}}"),
                    width=12,
                ),
            ),
        ),
    ),
)
