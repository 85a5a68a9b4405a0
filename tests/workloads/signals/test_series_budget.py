"""How many time series a run makes: what rank 0 and the engine send for a model of Kimi K3's size stays within a Prometheus' and the SDK's bounds."""

from dataclasses import fields

from samite.telemetry import names
from samite.telemetry.instruments import Instrument
from samite.telemetry.records import Point
from samite_workloads.signals.decay import DecaySignals
from samite_workloads.signals.router import router_signals
from samite_workloads.signals.step import StepMeasure

NUM_KDA, NUM_MOE = 69, 92
"""Layers of Kimi K3 with delta attention, and with experts."""
PARTS = ("total", "compute", "communication", "data", "optimizer")
GROUPS = names.attribute("samite.param.group").values


def decay(layer: int) -> DecaySignals:
    values = {field.name: 0.0 for field in fields(DecaySignals)}
    shares = dict.fromkeys(names.attribute("samite.decay.threshold").values, 0.0)
    return DecaySignals(**{**values, "layer": layer, "lossy_flushes": 0, "nonfinite_operands": 1, "chunk_forgotten": shares})


def of_rank_0() -> list[Point]:
    measure = StepMeasure(
        step=1,
        durations_s=dict.fromkeys(PARTS, 1.0),
        loss=1.0,
        loss_by_modality={"text": 1.0, "vision": 1.0},
        grad_norms=dict.fromkeys(GROUPS, 1.0),
        clipped=True,
        learning_rate=1e-3,
        tokens={"text": 1, "image": 1},
        padded=1,
        skipped=True,
    )
    experts = router_signals([[1] * 896] * NUM_MOE, list(range(NUM_MOE)), entropy=[1.0] * NUM_MOE, logit_max=[1.0] * NUM_MOE)
    return [
        *measure.points(),
        *(p for layer in range(NUM_KDA) for p in decay(layer).points()),
        *(p for layer in experts for p in layer.points()),
    ]


def series(points: list[Point]) -> int:
    """Time series in Prometheus: a histogram has one for each bucket, and three more."""
    distinct = {(point.name, tuple(sorted(point.checked().attributes.items()))) for point in points}
    metrics = [names.metric(name) for name, _ in distinct]
    return sum(len(metric.buckets) + 3 if metric.instrument is Instrument.HISTOGRAM else 1 for metric in metrics)


def test_rank_0_of_the_largest_model_stays_under_two_thousand_series():
    assert 1000 < series(of_rank_0()) < 2000


def test_no_metric_reaches_the_bound_at_which_the_sdk_folds_series_together():
    points = {(point.name, tuple(sorted(point.attributes.items()))) for point in of_rank_0()}
    by_metric: dict[str, int] = {}
    for name, _ in points:
        by_metric[name] = by_metric.get(name, 0) + 1
    assert max(by_metric.values()) < 500
