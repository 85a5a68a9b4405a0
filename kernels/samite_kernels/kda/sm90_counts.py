"""The decay signals that the prepare kernels count, from their tally to `DecayCounts`.

csrc/include/tally.cuh says what a head's row of the tally holds. `SAMITE_KERNELS_KDA_COUNTS=idle` lets warps that idle count
(csrc/include/survey.cuh) in the place of all of them beside their work; elements are then seen in every 64th chunk of a head, not every 16th.
"""

import math
import os
from functools import lru_cache

import torch
from torch import Tensor

from samite_kernels.kda.signals import FORGET_THRESHOLDS, DecayCounts
from samite_kernels.kda.sm90_launch import HEAD_DIM, TallyArguments, addresses_of, fill
from samite_kernels.runtime.launch import declare

VARIABLE = "SAMITE_KERNELS_KDA_COUNTS"
TALLY_ROW = 16 + HEAD_DIM
_SATURATED_WITHIN, _OPEN_WITHIN = 0.05, 1e-4
_tally = declare("sm90_kda_tally")


def counting(lower_bound: float) -> dict[str, float]:
    """How to count: the logits of the gate's sigmoid beyond which a decay is saturated or open, and who counts."""
    who = os.environ.get(VARIABLE, "beside")
    if who not in ("beside", "idle"):
        raise ValueError(f"{VARIABLE} must be beside or idle, found {who!r}")
    return {
        "saturated_logit": _logit(1.0 + _SATURATED_WITHIN / lower_bound),
        "open_logit": _logit(-_OPEN_WITHIN / lower_bound),
        "idle_count": int(who == "idle"),
    }


def _logit(share: float) -> float:
    if share <= 0.0:
        return -math.inf
    return math.log(share / (1.0 - share)) if share < 1.0 else math.inf


class Tally:
    """What the kernels count: `rows` [heads, TALLY_ROW] int64. Once summed up, `sums`: int64 counts over heads, float32 extremes in nats."""

    def __init__(self, num_heads: int, device: torch.device) -> None:
        self.rows = torch.zeros(num_heads, TALLY_ROW, dtype=torch.int64, device=device)
        self.sums = (self.rows.new_empty(len(_COUNTS) if num_heads else 0), self.rows.new_empty(3 if num_heads else 0, dtype=torch.float32))

    def sum_up(self) -> None:
        """On the current stream."""
        addresses = addresses_of({"rows": self.rows, "sums": self.sums[0], "extremes": self.sums[1]})
        if self.rows.shape[0]:
            _tally(fill(TallyArguments, addresses, num_heads=self.rows.shape[0]), self.rows.device)


_COUNTS = (
    "gate_sat_count",
    "benign_total",
    "gate_open_count",
    "benign_flush_count",
    "normal",
    "bfloat16_subnormal",
    "float32_subnormal",
    "beta_sat_count",
    "nonfinite_operands",
    "lossy_flush_events",
    "gate_total",
    "chunk_total",
    "memoryless_head_count",
)


def counts_of(sums: Tensor, extremes: Tensor, *, num_tokens: int, num_heads: int) -> DecayCounts:
    """The signals of one call over `num_tokens` tokens."""

    def number(value: int) -> Tensor:
        return _constant(value, sums.device)

    counts = dict(zip(_COUNTS, sums.unbind(), strict=True))
    return DecayCounts(
        chunk_forget_counts={name: counts.pop(name) for name in FORGET_THRESHOLDS},
        beta_total=number(num_tokens * num_heads),
        head_total=number(num_heads),
        tile_span_max=extremes[0],
        tile_margin=extremes[1],
        chunk_decay_min=extremes[2],
        **counts,
    )


@lru_cache(maxsize=256)
def _constant(value: int, device: torch.device) -> Tensor:
    return torch.full((), value, dtype=torch.int64, device=device)
