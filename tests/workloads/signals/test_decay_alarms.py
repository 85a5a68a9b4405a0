"""The decay rule fires when products are lost and stays silent when flushing is correct arithmetic.

Each control runs a real gate through the kernel's counter and the rule, as the trainer does. A brute-force counter is the oracle.
"""

import math
from pathlib import Path

import pytest
import torch

from samite.telemetry.events import read_events
from samite.telemetry.setup import setup_telemetry
from samite_kernels.kda.signals import log_decay_counts
from samite_workloads.signals import SignalRecorder
from samite_workloads.signals.decay import DecaySignals, StateSample, add_decay_counts, decay_signals
from samite_workloads.signals.decay_rule import DecayCause, DecayRule
from samite_workloads.signals.reduction import FusedReduction

HEADS, CHANNELS, TOKENS = 2, 4, 192


def softplus_gate(mean_nats: float) -> torch.Tensor:
    """log decay of an unbounded softplus gate whose mean is `mean_nats` per token."""
    raw = torch.nn.functional.softplus(torch.randn(1, TOKENS, HEADS, CHANNELS, generator=torch.Generator().manual_seed(1)))
    return -raw * (mean_nats / raw.mean())


def bounded_gate(spread: float, shift: float = 0.0, lower_bound: float = -5.0) -> torch.Tensor:
    raw = torch.randn(1, TOKENS, HEADS, CHANNELS, generator=torch.Generator().manual_seed(2))
    return lower_bound * torch.sigmoid(spread * raw + shift)


def floor_gate() -> torch.Tensor:
    return torch.full((1, TOKENS, HEADS, CHANNELS), -5.0)


def signals_of(log_decay: torch.Tensor, **tiling) -> DecaySignals:
    beta = torch.full(log_decay.shape[:3], 0.5)
    operands = torch.nn.functional.normalize(torch.randn(log_decay.shape, generator=torch.Generator().manual_seed(3)), dim=-1)
    counts = {3: log_decay_counts(log_decay, beta, q=operands, k=operands, **tiling)}
    reduction = FusedReduction()
    add_decay_counts(reduction, counts)
    (signals,) = decay_signals(reduction.run(), counts, tile_size=tiling.get("tile_size", 16))
    return signals


def causes(signals: DecaySignals, samples: int = 40) -> set[DecayCause]:
    rule = DecayRule()
    return {alarm.cause for _ in range(samples) for alarm in rule.update([signals])}


def test_a_softplus_gate_of_six_nats_per_token_fires():
    signals = signals_of(softplus_gate(6.0))
    assert signals.lossy_flushes > 0
    assert signals.underflow > 0
    assert signals.tile_margin < 0
    assert {DecayCause.LOSSY_FLUSH, DecayCause.TILE_OVERFLOW} <= causes(signals)


def test_a_tile_of_64_with_one_anchor_at_the_bound_fires():
    signals = signals_of(floor_gate(), tile_size=64, anchor="middle")
    assert signals.lossy_flushes > 0
    assert DecayCause.LOSSY_FLUSH in causes(signals)


@pytest.mark.parametrize("anchor", ["first", "start", "balanced"])
@pytest.mark.parametrize(
    "gate", [floor_gate(), bounded_gate(4.0), bounded_gate(0.5, -4.0), bounded_gate(8.0, 3.0)], ids=["floor", "mixed", "open", "near floor"]
)
def test_tiles_of_16_under_the_bound_never_fire(gate: torch.Tensor, anchor: str):
    signals = signals_of(gate, anchor=anchor)
    assert signals.lossy_flushes == 0
    assert signals.tile_margin >= 8
    assert causes(signals) == set()


def test_benign_flushes_are_seen_and_wake_nobody():
    signals = signals_of(floor_gate())
    assert signals.benign_flush > 0.5
    assert signals.chunk_forgotten["normal"] == 1.0
    assert signals.memoryless_heads == 1.0
    assert causes(signals) == set()


@pytest.mark.parametrize(("tile_size", "anchor"), [(16, "first"), (16, "start"), (16, "balanced"), (64, "middle"), (64, "first")])
@pytest.mark.parametrize("gate", [softplus_gate(6.0), floor_gate(), bounded_gate(4.0)], ids=["softplus", "floor", "mixed"])
def test_the_counts_are_those_of_the_definition(gate: torch.Tensor, tile_size: int, anchor: str):
    gate = gate[:, :128, :1, :2]
    lost = 0
    span = 0.0
    for head in range(gate.shape[2]):
        for channel in range(gate.shape[3]):
            for start in range(0, gate.shape[1], tile_size):
                total, sums = 0.0, []
                for value in gate[0, start : start + tile_size, head, channel].tolist():
                    total += value
                    sums.append(total)
                offset = {"first": sums[0], "start": 0.0, "middle": sums[tile_size // 2], "balanced": sums[0] - 2.5 * (tile_size - 1)}[
                    anchor
                ]
                span = max(span, abs(sums[0] - offset), abs(sums[-1] - offset))
                out = [any(e < -87.3365 or e > 88.7228 for e in (x,)) for x in (s - offset for s in sums)]
                back = [e < -87.3365 or e > 88.7228 for e in (offset - s for s in sums)]
                lost += sum(sums[i] - sums[j] > -16.6 and (out[i] or back[j]) for i in range(tile_size) for j in range(i + 1))
    signals = signals_of(gate, tile_size=tile_size, anchor=anchor)
    # The counter sums in float32: a pair exactly on a threshold may fall on either side.
    assert signals.lossy_flushes == pytest.approx(lost, rel=0.01, abs=2)
    assert signals.tile_span_max == pytest.approx(span, rel=1e-5)


def test_the_lowest_exponent_of_a_chunk_is_in_log2():
    assert signals_of(floor_gate()).chunk_exponent_min == pytest.approx(-64 * 5 / math.log(2))


def healthy(**changes) -> DecaySignals:
    values = {
        "layer": 3,
        "gate_saturated": 0.02,
        "gate_open": 0.1,
        "tile_span_max": 40.0,
        "chunk_exponent_min": -90.0,
        "lossy_flushes": 0,
        "underflow": 0.0,
        "benign_flush": 0.3,
        "chunk_forgotten": {"normal": 0.1, "bf16_subnormal": 0.1, "fp32_subnormal": 0.05},
        "memoryless_heads": 0.0,
        "beta_saturated": 0.0,
        "nonfinite_operands": 0,
    }
    return DecaySignals(**{**values, **changes})


@pytest.mark.parametrize(
    ("field", "cause"), [("gate_saturated", DecayCause.GATE_SATURATION), ("memoryless_heads", DecayCause.MEMORYLESS_HEADS)]
)
def test_a_sustained_rise_fires_once(field: str, cause: DecayCause):
    rule = DecayRule()
    fired = [alarm.cause for n in range(40) for alarm in rule.update([healthy(**{field: min(0.6, 0.02 * n)})])]
    assert fired == [cause]


@pytest.mark.parametrize("level", [0.0, 0.19, 0.5, 1.0])
def test_a_constant_share_is_no_trend(level: float):
    assert causes(healthy(gate_saturated=level, memoryless_heads=level)) == set()


def test_one_outlier_is_no_trend():
    rule = DecayRule()
    assert [alarm for n in range(60) for alarm in rule.update([healthy(gate_saturated=0.9 if n == 30 else 0.02)])] == []


def test_a_fall_is_no_alarm():
    rule = DecayRule()
    assert [alarm for n in range(40) for alarm in rule.update([healthy(gate_saturated=1.0 - 0.02 * n)])] == []


def test_an_alarm_repeats_only_after_its_fact_was_gone_for_a_window():
    rule = DecayRule()
    fired = [n for n in range(100) if rule.update([healthy(lossy_flushes=int(n < 20 or n in (25, 60)))])]
    assert fired == [0, 60]


def test_the_limit_of_the_spec_allows_that_many_losses():
    rule = DecayRule(lossy_limit=10)
    assert rule.update([healthy(lossy_flushes=10)]) == []
    assert [alarm.threshold for alarm in rule.update([healthy(lossy_flushes=11)])] == [10]


def test_a_span_that_is_not_a_number_counts_as_overflow():
    assert DecayCause.TILE_OVERFLOW in causes(healthy(tile_span_max=math.nan))


def test_an_alarm_becomes_an_event_with_its_evidence(tmp_path: Path):
    telemetry = setup_telemetry(
        service="samite-trainer", run="r", uid="u", events_path=tmp_path / "e.jsonl", metrics_path=tmp_path / "m.jsonl"
    )
    recorder = SignalRecorder(telemetry, context_length=8192, chunk_length=64)
    alarms = recorder.decay(40, [signals_of(softplus_gate(6.0))])
    events, _ = read_events(tmp_path / "e.jsonl")
    assert [event.name for event in events] == ["samite.decay.underflow"] * len(alarms)
    assert len(alarms) == 2
    attributes = events[0].attributes
    assert attributes["samite.decay.cause"] == "lossy_flush"
    assert (attributes["samite.layer.block"], attributes["samite.step.index"], attributes["samite.stage.context_length"]) == ("3", 40, 8192)
    assert attributes["samite.decay.lost"] > 0
    assert attributes["samite.decay.exponent"] < -500


def test_benign_flushes_leave_metrics_and_no_event(tmp_path: Path):
    telemetry = setup_telemetry(
        service="samite-trainer", run="r", uid="u", events_path=tmp_path / "e.jsonl", metrics_path=tmp_path / "m.jsonl"
    )
    recorder = SignalRecorder(telemetry, context_length=8192)
    for step in range(30):
        assert recorder.decay(step, [signals_of(floor_gate())]) == []
    assert not (tmp_path / "e.jsonl").exists()


def test_the_state_and_the_decay_parameter_of_a_layer_are_sampled_per_head():
    states = torch.zeros(3, 2, 4, 4)
    states[1, 0] = 2.0
    states[2, 1, 0, 0] = 4.0
    reduction = FusedReduction()
    counts = {7: log_decay_counts(floor_gate(), torch.full((1, TOKENS, HEADS), 0.5))}
    add_decay_counts(reduction, counts, {7: StateSample.of(states, torch.tensor([0.5, 2.25]))})
    (signals,) = decay_signals(reduction.run(), counts)
    assert (signals.state_rms_max, signals.a_log_max) == (2.0, 2.25)
    assert {"samite.decay.state.rms", "samite.decay.a_log.max"} <= {point.name for point in signals.points()}


def test_a_batch_without_documents_has_no_state():
    assert StateSample.of(torch.zeros(0, 2, 4, 4), torch.zeros(2)).state_rms_max == 0
