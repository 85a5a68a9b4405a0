"""Steps become registered metrics; spikes and stragglers become events, once each."""

import math
from pathlib import Path

import pytest
import torch

from samite.telemetry.events import read_events
from samite.telemetry.records import Point, read_metrics
from samite.telemetry.setup import Telemetry, setup_telemetry
from samite_workloads.signals import SignalRecorder, StepMeasure
from samite_workloads.signals.memory import memory_points
from samite_workloads.signals.reduction import FusedReduction
from samite_workloads.signals.schedule import SampleSchedule
from samite_workloads.signals.spikes import Bands, SpikeDetector
from samite_workloads.signals.stragglers import StragglerRule


def measure(step: int, **changes) -> StepMeasure:
    values = {
        "step": step,
        "durations_s": {"total": 0.5, "compute": 0.4, "communication": 0.05, "data": 0.01, "optimizer": 0.04},
        "loss": 2.0 + 0.01 * math.sin(step),
        "loss_by_modality": {"text": 2.1, "vision": math.nan},
        "grad_norms": {"global": 1.0 + 0.1 * math.cos(step), "attention": 0.5, "expert": 0.4},
        "clipped": False,
        "learning_rate": 1e-3,
        "tokens": {"text": 900, "image": 0},
        "padded": 24,
        "data_window": (step * 8, step * 8 + 8),
    }
    return StepMeasure(**{**values, **changes})


@pytest.fixture
def telemetry(tmp_path: Path) -> Telemetry:
    return setup_telemetry(service="samite-trainer", run="r", uid="u", metrics_path=tmp_path / "m.jsonl", events_path=tmp_path / "e.jsonl")


def test_every_point_of_a_step_is_in_the_registry_and_nothing_unmeasured_is_shown(telemetry: Telemetry, tmp_path: Path):
    recorder = SignalRecorder(telemetry, context_length=128)
    recorder.step(measure(1, loss=None), extra=memory_points(torch.device("cpu")))
    (record,), _ = read_metrics(tmp_path / "m.jsonl")
    found = {(point.name, *point.attributes.values()): point.value for point in record.points}
    assert record.step == 1
    assert found["samite.tokens", "trained", "text"] == 900
    assert found["samite.tokens", "padded"] == 24
    assert found["samite.loss", "text"] == 2.1
    assert not {("samite.loss", "total"), ("samite.loss", "vision"), ("samite.tokens", "trained", "image")} & set(found)
    assert found["process.memory.usage",] > 10_000_000


def test_recomputed_tokens_are_not_counted_as_trained():
    points = measure(1, recomputed=True).points()
    assert {point.attributes["samite.token.kind"] for point in points if point.name == "samite.tokens"} == {"recomputed", "padded"}


@pytest.mark.parametrize(("loss", "kind"), [(math.nan, "loss"), (2.0, "gradient")])
def test_a_refused_step_counts_its_non_finite_value(loss: float, kind: str):
    points = [point for point in measure(1, loss=loss, skipped=True).points() if point.name == "samite.numeric.nonfinites"]
    assert [point.attributes for point in points] == [{"samite.tensor.kind": kind}]


def test_a_loss_spike_and_a_gradient_spike_are_events_with_their_data_window(telemetry: Telemetry, tmp_path: Path):
    recorder = SignalRecorder(telemetry, context_length=128)
    for step in range(40):
        recorder.step(measure(step, **({"loss": 9.0, "grad_norms": {"global": 50.0}} if step >= 36 else {})))
    events, _ = read_events(tmp_path / "e.jsonl")
    assert [(event.name, event.attributes["samite.step.index"]) for event in events] == [
        ("samite.loss.spike", 38),
        ("samite.grad.norm.spike", 38),
    ]
    assert events[0].attributes["samite.data.window"] == [288, 312], "of all steps outside"
    assert events[0].attributes["samite.step.first"] == 36
    assert events[0].attributes["samite.deviation"] > 6


def test_a_spike_names_its_steps_their_rows_and_the_layer_that_grew_most_and_every_rank_says_the_same():
    def spiky(step: int) -> StepMeasure:
        outside = step >= 30
        layers = {"0": 0.5 * (2.0 if outside else 1.0), "1": 0.1 * (40.0 if outside else 1.0), "head": 3.0}
        return measure(step, grad_norms={"global": 50.0 if outside else 3.1}, grad_norms_by_layer=layers)

    ranks = [Bands(), Bands()]
    found = [[excursion for step in range(40) for excursion in bands.update(spiky(step))] for bands in ranks]
    assert found[0] == found[1]
    (spike,) = found[0]
    assert (spike.kind, spike.first_step, spike.step, spike.rows, spike.layer) == ("GradNormSpike", 30, 32, (240, 264), "1")
    assert spike.layer_growth == pytest.approx(40.0)
    assert spike.message == ("steps 30 to 32: gradient norm 50 where 3.1 is usual; layer 1 grew most, 40 times; data rows 240 to 264")


def feed(detector: SpikeDetector, values: list[float]) -> list[int]:
    return [index for index, value in enumerate(values) if detector.update(value)]


def noise(count: int, seed: int = 0) -> list[float]:
    return (2.0 + 0.1 * torch.randn(count, generator=torch.Generator().manual_seed(seed))).tolist()


@pytest.mark.parametrize("seed", range(5))
def test_noise_is_no_spike(seed: int):
    assert feed(SpikeDetector(), noise(2000, seed)) == []


def test_two_values_outside_are_no_spike_and_three_are():
    assert feed(SpikeDetector(), [*noise(50), 9.0, 9.0, *noise(10)]) == []
    assert feed(SpikeDetector(), [*noise(50), 9.0, 9.0, 9.0, 9.0, *noise(10)]) == [52]


def test_a_falling_loss_is_no_spike():
    assert feed(SpikeDetector(), [8.0 * 0.97**n + 0.01 * math.sin(n) for n in range(300)]) == []


def test_a_constant_curve_does_not_fire_on_rounding():
    assert feed(SpikeDetector(), [2.0] * 100 + [2.0001] * 10) == []


def test_nan_is_left_to_the_guard_and_infinity_is_outside():
    assert feed(SpikeDetector(), [*noise(50), math.nan, math.inf, math.nan, math.inf, math.inf]) == [54]


def test_a_new_level_fires_once_and_then_becomes_the_band():
    assert len(feed(SpikeDetector(), [*noise(100), *[v + 5 for v in noise(300, 1)]])) == 1


def test_a_slow_rank_is_reported_after_fifty_steps_and_once():
    rule = StragglerRule()
    found = [(step, s) for step in range(10, 200, 10) for s in rule.update([1.0, 1.0, 1.2, 1.0], num_steps=10)[1]]
    assert [(step, s.rank, s.steps) for step, s in found] == [(50, 2, 50)]
    assert found[0][1].ratio == pytest.approx(1.2)


def test_a_rank_that_is_slow_now_and_then_is_no_straggler():
    rule = StragglerRule()
    assert [s for n in range(60) for s in rule.update([1.0, 1.0, 2.0 if n % 4 else 1.0], num_steps=10)[1]] == []


@pytest.mark.parametrize("times", [[], [1.0], [0.0, 0.0]])
def test_without_a_comparison_there_is_no_straggler(times: list[float]):
    assert StragglerRule(steps=1).update(times, num_steps=10) == (1.0, [])


def test_with_two_ranks_the_slow_one_is_found():
    ratio, found = StragglerRule(factor=1.15, steps=10).update([1.0, 1.5], num_steps=10)
    assert ratio == pytest.approx(1.5)
    assert [s.rank for s in found] == [1]


def test_samples_are_taken_every_n_steps_and_densely_after_a_change():
    schedule = SampleSchedule(every=50, burst=3)
    schedule.began(120)
    assert [step for step in range(90, 160) if schedule.due(step)] == [*range(90, 124), 150]
    assert [step for step in range(200, 260) if schedule.due(step)] == [200, 250]


def test_the_fused_reduction_returns_sums_and_maxima_by_name():
    reduction = FusedReduction()
    reduction.add("counts", torch.tensor([2**40, 3]))
    reduction.add("one", torch.tensor(0.5))
    reduction.maximum("peak", torch.tensor([1.0, math.nan]))
    assert reduction.run() == {"counts": [2**40, 3], "one": [0.5], "peak": [1.0, math.inf]}
    assert FusedReduction().run() == {}


def device_memory(peak: int) -> list[Point]:
    return [Point("samite.device.memory.peak", peak, {"samite.memory.kind": "reserved"}), Point("samite.device.memory.limit", 100)]


def test_memory_pressure_is_told_once_until_it_is_over(telemetry: Telemetry, tmp_path: Path):
    recorder = SignalRecorder(telemetry, context_length=128)
    for step, peak in enumerate([90, 97, 98, 0, 97, 90, 99]):
        recorder.step(measure(step), extra=device_memory(peak) if peak else [])
    events, _ = read_events(tmp_path / "e.jsonl")
    assert [(event.name, event.attributes["samite.step.index"]) for event in events] == [
        ("samite.memory.pressure", 1),
        ("samite.memory.pressure", 6),
    ]
