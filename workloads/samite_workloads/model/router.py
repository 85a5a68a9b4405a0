"""The sigmoid router: which experts see a token, with which weight, and the counts that balance them.

    scores = sigmoid(W x)  float32      chosen = top-k of scores + bias      weights = chosen scores / their sum

The bias enters the choice, never the weight (K3 report, LatentMoE). While training, each first forward pass adds the margins alpha - score of
all real tokens to an integer histogram, alpha being the (k+1)-th largest biased score: `balancing.py` turns it into the next bias.
Legend: T tokens, D model width, E experts, K experts per token, B bins.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from samite_workloads.config import ModelConfig
from samite_workloads.model.islands import Float32Island
from samite_workloads.model.recompute import same_in_both_passes
from samite_workloads.model.situ import widened


class Routing(NamedTuple):
    """Where tokens go. Padding is sent to the expert id E, which does not exist."""

    chosen_TK: Tensor
    """int64 [T, K], expert ids, E for padding."""
    weight_TK: Tensor
    """float32 [T, K], rows sum to the scaling factor."""


class RouterSample(NamedTuple):
    """What one forward pass saw, as 0-dim float32 tensors over real tokens."""

    entropy: Tensor
    """Mean entropy in nats of the scores normalised over the experts; ln E when they are all alike."""
    logit_max: Tensor
    """Largest absolute router logit."""


class Router(Float32Island):
    """Scores, choice and counts of one MoE layer."""

    e_score_correction_bias: Tensor
    counts_EB1: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.num_experts, self.top_k = config.num_experts, config.experts_per_token
        self.num_bins, self.scaling_factor = config.balancing_bins, config.routed_scaling_factor
        self.weight = nn.Parameter(torch.empty(config.num_experts, config.hidden_size))
        self.register_buffer("e_score_correction_bias", torch.zeros(config.num_experts, dtype=torch.float32))
        # Histogram of the step so far and, in the last column, the load: one tensor, so that one all-reduce carries both.
        counts = torch.zeros(config.num_experts, config.balancing_bins + 1, dtype=torch.int32)
        self.register_buffer("counts_EB1", counts, persistent=False)
        self.forced_TK: Tensor | None = None
        self.recorded_TK: Tensor | None = None
        self.recording = False
        self.sampling = False
        self.sample: RouterSample | None = None

    def forward(self, x_TD: Tensor, is_padding_T: Tensor) -> Routing:
        """x [T, D] -> the routing of every token; counts it when training and not recomputing."""
        logits_TE = nn.functional.linear(widened(x_TD), widened(self.weight))
        scores_TE = logits_TE.sigmoid()
        with torch.no_grad():
            chosen_TK = same_in_both_passes(self, lambda: self._choose(logits_TE, scores_TE, is_padding_T))
        picked_TK = scores_TE.gather(1, chosen_TK)
        weight_TK = picked_TK / (picked_TK.sum(-1, keepdim=True) + 1e-20) * self.scaling_factor
        return Routing(chosen_TK.masked_fill(is_padding_T.unsqueeze(-1), self.num_experts), weight_TK)

    def _choose(self, logits_TE: Tensor, scores_TE: Tensor, is_padding_T: Tensor) -> Tensor:
        """Experts of every token, [T, K], and what is to be learned from the choice."""
        biased = (scores_TE + self.e_score_correction_bias).topk(self.top_k + 1, -1)
        chosen_TK = biased.indices[:, : self.top_k] if self.forced_TK is None else self.forced_TK
        if self.recording:
            self.recorded_TK = chosen_TK
        if self.sampling:
            self.sample = _sample(logits_TE, scores_TE, is_padding_T)
        if self.training:
            self.count(biased.values[:, -1:] - scores_TE, chosen_TK, is_padding_T)
        return chosen_TK

    def count(self, margin_TE: Tensor, chosen_TK: Tensor, is_padding_T: Tensor) -> None:
        """Adds margins [T, E] and choices [T, K] of real tokens to the counts of the step. Integer sums: any order, same result."""
        low, width = margin_range(self.e_score_correction_bias, self.num_bins)
        bin_TE = ((margin_TE - low) / width).long().clamp_(0, self.num_bins - 1)
        stride, spill = self.num_bins + 1, self.num_experts * (self.num_bins + 1)
        experts_E = torch.arange(self.num_experts, device=margin_TE.device)
        padding_T1 = is_padding_T.unsqueeze(-1)
        slots = torch.cat(
            [
                (bin_TE + experts_E * stride).masked_fill(padding_T1, spill).flatten(),
                (chosen_TK * stride + self.num_bins).masked_fill(padding_T1, spill).flatten(),
            ]
        )
        flat = torch.zeros(spill + 1, dtype=torch.int32, device=slots.device)
        flat.scatter_add_(0, slots, torch.ones_like(slots, dtype=torch.int32))
        self.counts_EB1 += flat[:spill].view(self.num_experts, stride)


def margin_range(bias_E: Tensor, num_bins: int) -> tuple[Tensor, Tensor]:
    """(lowest margin, bin width): margins alpha - score lie in [min b - 1, max b + 1], as scores lie in (0, 1)."""
    low = bias_E.min() - 1.0
    return low, (bias_E.max() + 1.0 - low) / num_bins


def _sample(logits_TE: Tensor, scores_TE: Tensor, is_padding_T: Tensor) -> RouterSample:
    real_T1 = ~is_padding_T.unsqueeze(-1)
    share_TE = scores_TE / scores_TE.sum(-1, keepdim=True)
    entropy_T = torch.special.entr(share_TE).sum(-1)
    num_real = real_T1.sum().clamp(min=1)
    return RouterSample(
        entropy=(torch.where(real_T1[:, 0], entropy_T, 0.0).sum() / num_real).float(),
        logit_max=torch.where(real_T1, logits_TE.abs(), 0.0).max().float(),
    )
