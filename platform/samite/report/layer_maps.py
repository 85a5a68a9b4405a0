"""Which heatmaps a report has: decay and expert load, layers by time."""

from samite.report import figures
from samite.report.heatmap import Heatmap, by_layer
from samite.report.run_data import RunData

_LAYER = "samite.layer.block"


def decay_maps(run: RunData) -> list[Heatmap]:
    """How far memory sinks, which gates sit at their bound, and what was lost, if anything was."""
    curves = run.curves
    return [
        by_layer(
            curves,
            curves.family("samite.decay.exponent.min", _LAYER),
            key="decay-exponent-map",
            title="How far memory sinks",
            note="Lowest summed log2 decay of a chunk, by layer and step.",
            low_is_worse=True,
        ),
        by_layer(
            curves,
            curves.family("samite.decay.gate.saturated", _LAYER),
            key="gate-saturated-map",
            title="Gates at their bound",
            note="Share of gates at the lower bound, by layer and step.",
            number=figures.share,
        ),
        by_layer(
            curves,
            curves.family("samite.decay.underflow", _LAYER),
            key="decay-lost-map",
            title="Lost decay products",
            note="Share of products that mattered and were lost, by layer and step.",
            number=figures.share,
        ),
    ]


def expert_maps(run: RunData) -> list[Heatmap]:
    """How unevenly a layer's experts are loaded."""
    return [
        by_layer(
            run.curves,
            run.curves.family("samite.moe.expert.load.cv", _LAYER),
            key="expert-load-map",
            title="Expert load by layer",
            note="Standard deviation over mean of the loads of a layer's experts, by layer and step.",
        )
    ]
