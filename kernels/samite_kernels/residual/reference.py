"""The block attention residual in plain torch, differentiable, in float32 or float64: the definition.

    score_i = <query, v_i> / rms(v_i)      h = sum_i softmax(score)_i v_i      y = h / rms(h) * norm_weight, or h without a norm

AttnRes paper, block form; the query is the product of the reader's projection and key norm, of which only the product matters.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def attention_residual_reference(values: Sequence[Tensor], query_D: Tensor, norm_weight_D: Tensor | None, eps: float) -> Tensor:
    """y [T, D] in the type of the last value; sums in float32, or float64 if the values are."""
    dtype = torch.float64 if values[-1].dtype == torch.float64 else torch.float32
    wide = [v.to(dtype) for v in values]
    query_D = query_D.to(dtype)
    scores_TN = torch.stack([(v @ query_D) * (v.square().mean(-1) + eps).rsqrt() for v in wide], -1)
    weights_TN = scores_TN.softmax(-1)
    h = wide[0] * weights_TN[:, :1]
    for i, v in enumerate(wide[1:], 1):
        h = h + v * weights_TN[:, i : i + 1]
    if norm_weight_D is not None:
        h = h * (h.square().mean(-1, keepdim=True) + eps).rsqrt() * norm_weight_D.to(dtype)
    return h.to(values[-1].dtype)
