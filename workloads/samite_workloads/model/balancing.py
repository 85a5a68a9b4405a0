"""Balancing the experts: the router bias after a step, from the counts of all tokens of the step on all ranks.

Quantile balancing (K3 report): with margins r = alpha - score, the new bias of an expert is the k/n quantile of its margins, so that at the same
scores each expert would get m k / n tokens; the mean is taken out. The quantile comes from an integer histogram, so shards, micro-batches and
recomputation cannot change it. `quantile_balance` is called once per optimizer step, after the backward pass of the last micro-batch.
Legend: L MoE layers, E experts, B bins.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from samite_workloads.config import Balancing
from samite_workloads.model.router import Router, margin_range

if TYPE_CHECKING:
    from samite_workloads.model.decoder import MultimodalDecoder


@dataclass(frozen=True, kw_only=True, slots=True)
class BalanceReport:
    """Loads of the step that just ended, over all ranks; tensors on the device, nothing has been synchronised."""

    loads_LE: Tensor
    """int64 [L, E]: real tokens each expert got."""
    max_violation_L: Tensor
    """float32 [L], max load / mean load - 1."""
    sampling_floor_L: Tensor
    """float32 [L], sqrt(2 ln E / mean load): what a perfectly balanced router shows through chance alone."""


@torch.no_grad()
def quantile_balance(
    model: "MultimodalDecoder", process_group: ProcessGroup | None = None, *, apply: Tensor | bool = True
) -> BalanceReport:
    """Sums the counts of every rank of `process_group` in one integer all-reduce, moves each bias by the model's balancing rule, clears the counts.

    `process_group` must hold every rank with different tokens, and no two with the same; None means this process alone saw the whole step.
    `apply` false (or a 0-dim bool tensor that is) leaves the biases as they are: for steps whose optimizer update is skipped.
    """
    routers = list(model.router_layers())
    if not routers:
        nothing = torch.zeros(0)
        return BalanceReport(loads_LE=torch.zeros(0, 0, dtype=torch.int64), max_violation_L=nothing, sampling_floor_L=nothing)
    counts_LEB1 = torch.stack([router.counts_EB1 for router in routers])
    if process_group is not None:
        torch.distributed.all_reduce(counts_LEB1, group=process_group)
    for router, counts_EB1 in zip(routers, counts_LEB1, strict=True):
        bias_E = updated_bias(router, counts_EB1, model.config.balancing, model.config.balancing_sign_rate)
        kept = bias_E if apply is True else torch.where(torch.as_tensor(apply), bias_E, router.e_score_correction_bias)
        router.e_score_correction_bias.copy_(kept)
        router.counts_EB1.zero_()
    loads_LE = counts_LEB1[:, :, -1].long()
    mean_L = loads_LE.double().mean(-1)
    busy_L = mean_L.clamp(min=torch.finfo(torch.float64).tiny)
    violation_L = torch.where(mean_L > 0, loads_LE.amax(-1) / busy_L - 1.0, 0.0)
    floor_L = torch.where(mean_L > 0, (2.0 * math.log(loads_LE.shape[1]) / busy_L).sqrt(), 0.0)
    return BalanceReport(loads_LE=loads_LE, max_violation_L=violation_L.float(), sampling_floor_L=floor_L.float())


def updated_bias(router: Router, counts_EB1: Tensor, rule: Balancing, sign_rate: float) -> Tensor:
    """The next bias [E] of one layer from the summed counts [E, B + 1]; the present one when no token was counted."""
    bias_E, load_E = router.e_score_correction_bias, counts_EB1[:, -1]
    if rule is Balancing.NONE:
        return bias_E
    if rule is Balancing.SIGN:
        load = load_E.double()
        return bias_E + sign_rate * torch.sign(load.mean() - load).to(bias_E.dtype)
    quantile_E = margin_quantile(counts_EB1[:, :-1], load_E.sum() / router.num_experts, *margin_range(bias_E, router.num_bins))
    moved_E = (quantile_E - quantile_E.mean()).to(bias_E.dtype)
    return torch.where(load_E.sum() > 0, moved_E, bias_E)


def margin_quantile(histogram_EB: Tensor, target: Tensor, low: Tensor, width: Tensor) -> Tensor:
    """Margin below which `target` tokens of each expert lie, float64 [E], linear within its bin.

    `target` is m k / n; bin t is the first whose cumulative count reaches ceil(target).
    """
    target = target.double()
    cumulative_EB = histogram_EB.cumsum(-1).double()
    last_bin = histogram_EB.shape[-1] - 1
    reached_E = torch.searchsorted(cumulative_EB, target.ceil().repeat(histogram_EB.shape[0], 1)).squeeze(-1).clamp(max=last_bin)
    inside_E = histogram_EB.gather(1, reached_E.unsqueeze(-1)).squeeze(-1).double()
    before_E = cumulative_EB.gather(1, reached_E.unsqueeze(-1)).squeeze(-1) - inside_E
    part_E = ((target - before_E) / inside_E.clamp(min=1.0)).clamp(0.0, 1.0)
    return low.double() + (reached_E.double() + part_E) * width.double()
