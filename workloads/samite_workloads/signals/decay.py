"""The decay signals of Kimi Delta Attention, per layer: shares and extremes from the integer counts of `samite_kernels.kda.decay_counts`.

Which of them deserve an alarm, and why a benign flush is none of anybody's business: `decay_rule.py`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from samite.telemetry.records import Point
from samite_kernels.kda import DecayCounts
from samite_kernels.kda.signals import LN_MAX_FLOAT32
from samite_workloads.signals.reduction import FusedReduction

_COUNTS = (
    "gate_total",
    "gate_sat_count",
    "gate_open_count",
    "lossy_flush_events",
    "benign_flush_count",
    "benign_total",
    "chunk_total",
    "memoryless_head_count",
    "head_total",
    "beta_sat_count",
    "beta_total",
    "nonfinite_operands",
)
_THRESHOLDS = {"normal": "normal", "bfloat16_subnormal": "bf16_subnormal", "float32_subnormal": "fp32_subnormal"}
"""Keys of `DecayCounts.chunk_forget_counts` to values of the attribute `samite.decay.threshold`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StateSample:
    """What a layer's state and decay parameters looked like in one forward pass: 0-dim float32 tensors on the device."""

    state_rms_max: Tensor
    """Largest root mean square of a head's final state over all documents."""
    a_log_max: Tensor

    @classmethod
    @torch.no_grad()
    def of(cls, state_NHKV: Tensor, a_log_H: Tensor) -> "StateSample":
        """From the final states [N, H, K, V] and A_log [H]."""
        rms_NH = state_NHKV.float().square().mean((-2, -1)).sqrt()
        largest = rms_NH.amax() if rms_NH.numel() else rms_NH.new_zeros(())
        return cls(state_rms_max=largest, a_log_max=a_log_H.float().amax())


@dataclass(frozen=True, kw_only=True, slots=True)
class DecaySignals:
    """One layer's decay on one sampled step, over all ranks. Shares are in [0, 1], spans in nats."""

    layer: int
    gate_saturated: float
    """Share of gates within 0.05 of the lower bound."""
    gate_open: float
    """Share of gates of at least -1e-4."""
    tile_span_max: float
    """Largest |G[last] - G[anchor]| of a tile."""
    chunk_exponent_min: float
    """Lowest summed log2 decay of a chunk."""
    lossy_flushes: int
    """Causal products above 2^-24 that were lost because a factor left the range of float32."""
    underflow: float
    """Those over all causal products of whole tiles."""
    benign_flush: float
    """Share of state operands that scaling took below 2^-126."""
    chunk_forgotten: Mapping[str, float]
    """Share of (chunk, head, channel) that carry nothing over a chunk, by `samite.decay.threshold`."""
    memoryless_heads: float
    """Share of heads reduced to local attention."""
    beta_saturated: float
    """Share of beta below 1e-3 or above 0.999."""
    nonfinite_operands: int
    state_rms_max: float | None = None
    """Largest root mean square of a head's final state; None if it was not sampled."""
    a_log_max: float | None = None
    """Largest A_log; above 5 the gate is binary."""

    @property
    def tile_margin(self) -> float:
        """Nats left to the largest float32; negative means overflow."""
        return LN_MAX_FLOAT32 - self.tile_span_max

    def points(self) -> list[Point]:
        """Its metrics."""
        block = {"samite.layer.block": str(self.layer)}
        points = [
            Point("samite.decay.underflow", self.underflow, {**block, "samite.decay.kind": "state"}),
            Point("samite.decay.lossy_flushes", self.lossy_flushes, block),
            Point("samite.decay.benign_flush", self.benign_flush, block),
            Point("samite.decay.exponent.min", self.chunk_exponent_min, block),
            Point("samite.decay.tile.span", self.tile_span_max, block),
            Point("samite.decay.tile.margin", self.tile_margin, block),
            Point("samite.decay.gate.saturated", self.gate_saturated, block),
            Point("samite.decay.gate.open", self.gate_open, block),
            Point("samite.decay.head.memoryless", self.memoryless_heads, block),
            Point("samite.decay.beta.saturated", self.beta_saturated, block),
        ]
        points += [
            Point("samite.decay.chunk.forgotten", share, {**block, "samite.decay.threshold": threshold})
            for threshold, share in self.chunk_forgotten.items()
        ]
        if self.state_rms_max is not None:
            points.append(Point("samite.decay.state.rms", self.state_rms_max, block))
        if self.a_log_max is not None:
            points.append(Point("samite.decay.a_log.max", self.a_log_max, block))
        if self.nonfinite_operands:
            points.append(Point("samite.numeric.nonfinites", self.nonfinite_operands, {**block, "samite.tensor.kind": "operand"}))
        return points


def add_decay_counts(
    reduction: FusedReduction, counts_by_layer: Mapping[int, DecayCounts], states_by_layer: Mapping[int, StateSample] | None = None
) -> None:
    """Put the counts of this rank into `reduction`; read them back with `decay_signals`."""
    for layer, state in (states_by_layer or {}).items():
        reduction.maximum(f"decay/{layer}/state_rms_max", state.state_rms_max)
        reduction.maximum(f"decay/{layer}/a_log_max", state.a_log_max)
    for layer, counts in counts_by_layer.items():
        for name in _COUNTS:
            reduction.add(f"decay/{layer}/{name}", getattr(counts, name))
        for key, value in counts.chunk_forget_counts.items():
            reduction.add(f"decay/{layer}/forget/{key}", value)
        reduction.maximum(f"decay/{layer}/tile_span_max", counts.tile_span_max)
        reduction.maximum(f"decay/{layer}/chunk_decay_fall", -counts.chunk_decay_min)


def decay_signals(reduced: Mapping[str, list[float]], layers: Mapping[int, DecayCounts], *, tile_size: int = 16) -> list[DecaySignals]:
    """The signals of each layer from what `FusedReduction.run` returned."""
    return [_of_layer(reduced, layer, tile_size) for layer in layers]


def _of_layer(reduced: Mapping[str, list[float]], layer: int, tile_size: int) -> DecaySignals:
    def count(name: str) -> float:
        return reduced[f"decay/{layer}/{name}"][0]

    def largest(name: str) -> float | None:
        values = reduced.get(f"decay/{layer}/{name}")
        return values[0] if values else None

    def share(name: str, total: str) -> float:
        return count(name) / max(1.0, count(total))

    return DecaySignals(
        layer=layer,
        gate_saturated=share("gate_sat_count", "gate_total"),
        gate_open=share("gate_open_count", "gate_total"),
        tile_span_max=count("tile_span_max"),
        chunk_exponent_min=-count("chunk_decay_fall") / math.log(2.0),
        lossy_flushes=int(count("lossy_flush_events")),
        underflow=count("lossy_flush_events") / max(1.0, count("gate_total") * (tile_size + 1) / 2),
        benign_flush=share("benign_flush_count", "benign_total"),
        chunk_forgotten={name: share(f"forget/{key}", "chunk_total") for key, name in _THRESHOLDS.items()},
        memoryless_heads=share("memoryless_head_count", "head_total"),
        beta_saturated=share("beta_sat_count", "beta_total"),
        nonfinite_operands=int(count("nonfinite_operands")),
        state_rms_max=largest("state_rms_max"),
        a_log_max=largest("a_log_max"),
    )
