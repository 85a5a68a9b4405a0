"""The numbers that a stage's gate asks for, from the metric records of rank 0."""

from collections.abc import Iterable
from pathlib import Path

from samite.lifecycle import GateQuestion
from samite.telemetry.records import MetricRecord, read_metrics

BUILT_IN: dict[str, tuple[str, dict[str, str]]] = {
    "loss": ("samite.loss", {"samite.loss.kind": "total"}),
    "grad_norm": ("samite.grad.norm", {"samite.param.group": "global"}),
    "decay_underflow": ("samite.decay.underflow", {}),
    "expert_load_cv": ("samite.moe.expert.load.cv", {}),
}
"""A gate's short names: metric and the attributes that select its series. Any other name is a metric's own."""


def measure(run_folder: Path, questions: Iterable[GateQuestion]) -> dict[str, float]:
    """The asked quantile of each metric over its last `window` values. A metric without values is left out: that is not a number."""
    records = list(read_metrics(run_folder / "metrics" / "rank-0.jsonl")[0])
    found = {question.metric: (question, series(records, question)) for question in questions}
    return {metric: quantile(values, question.quantile) for metric, (question, values) in found.items() if values}


def quantile(values: list[float], share: float) -> float:
    """The `share` quantile by linear interpolation between neighbours; `values` has at least one number."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def series(records: Iterable[MetricRecord], question: GateQuestion) -> list[float]:
    """The last `window` values of the asked metric, oldest first."""
    metric, wanted = BUILT_IN.get(question.metric, (question.metric, {}))
    points = (point for record in records for point in record.points if point.name == metric)
    values = [point.value for point in points if all(point.attributes.get(key) == value for key, value in wanted.items())]
    return values[-question.window :]
