"""Block attention residuals: each sublayer reads a learned mixture of the completed blocks and the running sum.

    score_i = < w, rms(v_i; n) >      v_i in {b_0 .. b_(m-1), p}
    h       = sum_i softmax_i(score) v_i                    scores per token, values raw, sums in float32

AttnRes paper, block form; K3 report. Only w * n matters, so the two weights are fused for the compute. What is kept for the backward pass
is the sources themselves, which are alive anyway, and three numbers per token and source.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from samite_workloads.model.norm import inverse_rms
from samite_workloads.model.situ import widened


class Source(NamedTuple):
    """A block that can be read: its value [T, D] and its inverse root mean square [T, 1], which does not change once it is frozen."""

    value_TD: Tensor
    inverse_rms_T1: Tensor


def source(value_TD: Tensor, eps: float) -> Source:
    """A readable source; the norm is taken without autograd, the reader's backward accounts for it."""
    with torch.no_grad():
        return Source(value_TD, inverse_rms(value_TD.detach(), eps))


class AttentionResidual(nn.Module):
    """The reader in front of one sublayer: the query w (zero at the start: a plain mean) and the key norm n."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.norm = nn.Parameter(torch.empty(width))
        self.proj = nn.Parameter(torch.empty(1, width))
        self.eps = eps

    def forward(self, blocks: Sequence[Source], partial_TD: Tensor) -> Tensor:
        """Mixture of the frozen blocks and the running sum, [T, D] in the type of the running sum."""
        query_D = widened(self.proj[0]) * widened(self.norm)
        sources = [*blocks, source(partial_TD, self.eps)]
        values = [s.value_TD for s in sources]
        mixed: Tensor = _Mixture.apply(query_D, len(sources), *(s.inverse_rms_T1 for s in sources), *values)
        return mixed


class _Mixture(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query_D: Tensor, num_sources: int, *inverses_and_values: Tensor) -> Tensor:
        inverses, values = inverses_and_values[:num_sources], inverses_and_values[num_sources:]
        query_D1 = query_D.unsqueeze(-1)
        scores_TN = torch.cat([(widened(v) @ query_D1) * r for v, r in zip(values, inverses, strict=True)], -1)
        weights_TN = scores_TN.softmax(-1)
        mixed = widened(values[0]) * weights_TN[:, :1]
        for i in range(1, num_sources):
            mixed.addcmul_(widened(values[i]), weights_TN[:, i : i + 1])
        ctx.save_for_backward(query_D, scores_TN, weights_TN, *inverses, *values)
        ctx.num_sources = num_sources
        return mixed.to(values[-1].dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query_D, scores_TN, weights_TN, *rest = ctx.saved_tensors
        inverses, values = rest[: ctx.num_sources], [widened(v) for v in rest[ctx.num_sources :]]
        gradient = widened(gradients[0])
        towards_TN = torch.stack([(gradient * v).sum(-1) for v in values], -1)
        inner = (weights_TN * towards_TN).sum(-1, keepdim=True)
        d_scores_TN = weights_TN * (towards_TN - inner)
        d_query = torch.zeros_like(query_D)
        d_values: list[Tensor] = []
        for i, (v, r) in enumerate(zip(values, inverses, strict=True)):
            pull_T1 = d_scores_TN[:, i : i + 1] * r
            d_query.addmv_(v.t(), pull_T1[:, 0])
            shrink_T1 = pull_T1 * scores_TN[:, i : i + 1] * r / v.shape[-1]
            d_v = torch.addcmul(gradient * weights_TN[:, i : i + 1], v, shrink_T1, value=-1.0).addr_(pull_T1[:, 0], query_D)
            d_values.append(d_v.to(rest[ctx.num_sources + i].dtype))
        return d_query, None, *(None for _ in inverses), *d_values
