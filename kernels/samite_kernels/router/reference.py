"""The router in plain torch, in float32 or float64: the definition, and what runs where no kernel does.

    scores = sigmoid(logits)      chosen = top-k of scores + bias      weights = chosen scores / (their sum + 1e-20) * factor

K3 report, LatentMoE and quantile balancing (histogram form). Legend: T tokens, E experts, K experts per token, B bins.
"""

import torch
from torch import Tensor


def route_reference(logits_TE: Tensor, bias_E: Tensor, *, top_k: int, scaling_factor: float) -> tuple[Tensor, Tensor, Tensor]:
    """Chosen experts [T, K] int64, their weights [T, K], and the threshold [T]: the (K + 1)-th largest score + bias."""
    scores_TE = logits_TE.sigmoid()
    with torch.no_grad():
        biased = (scores_TE + bias_E).topk(top_k + 1, -1)
    chosen_TK = biased.indices[:, :top_k]
    picked_TK = scores_TE.gather(1, chosen_TK)
    weight_TK = picked_TK / (picked_TK.sum(-1, keepdim=True) + 1e-20) * scaling_factor
    return chosen_TK, weight_TK, biased.values[:, top_k]


@torch.no_grad()
def count_margins_reference(
    logits_TE: Tensor, bias_E: Tensor, threshold_T: Tensor, chosen_TK: Tensor, counts_EB1: Tensor, is_padding_T: Tensor | None
) -> None:
    """Adds margins threshold - score and choices of real tokens to counts [E, B + 1], whose last column is the load."""
    num_experts, stride = counts_EB1.shape
    num_bins = stride - 1
    low = bias_E.min() - 1.0
    width = (bias_E.max() + 1.0 - low) / num_bins
    margin_TE = threshold_T.unsqueeze(-1) - logits_TE.sigmoid()
    bin_TE = ((margin_TE - low) / width).long().clamp_(0, num_bins - 1)
    experts_E = torch.arange(num_experts, device=logits_TE.device)
    slots_TE, load_TK = bin_TE + experts_E * stride, chosen_TK * stride + num_bins
    if is_padding_T is not None:
        slots_TE, load_TK = slots_TE[~is_padding_T], load_TK[~is_padding_T]
    slots = torch.cat([slots_TE.flatten(), load_TK.flatten()])
    flat = torch.zeros(num_experts * stride, dtype=torch.int32, device=slots.device)
    flat.scatter_add_(0, slots, torch.ones_like(slots, dtype=torch.int32))
    counts_EB1 += flat.view(num_experts, stride)
