"""Cross entropy over a large vocabulary, a few rows of logits at a time, with its gradient made in the same pass.

Never holds more than `chunk` rows of logits. Sums, not means: the trainer divides by the supervised tokens of all ranks. Rows without a label add
exactly zero to the loss and to every gradient, so a micro-batch without supervised tokens has loss 0 and zero gradients, never NaN.
Legend: T tokens, D model width, V vocabulary.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from samite_workloads.batch import IGNORED_LABEL, Modality
from samite_workloads.model.situ import widened


class CrossEntropy(NamedTuple):
    """Sums over supervised tokens."""

    loss_sum: Tensor
    """0-dim float32 with gradient."""
    loss_sum_by_modality: Tensor
    """float32 [2], without gradient."""
    num_supervised_by_modality: Tensor
    """int64 [2]."""


def chunked_cross_entropy(hidden_TD: Tensor, weight_VD: Tensor, labels_T: Tensor, modality_T: Tensor, *, chunk: int) -> CrossEntropy:
    """Sum of -log softmax(hidden W^T)[label] over the rows whose label is not -100."""
    supervised_T = labels_T != IGNORED_LABEL
    loss_sum, loss_T = _ChunkedLoss.apply(hidden_TD, weight_VD.to(hidden_TD.dtype), labels_T, supervised_T, chunk, torch.is_grad_enabled())
    of_modality = [supervised_T & (modality_T == modality) for modality in Modality]
    return CrossEntropy(
        loss_sum=loss_sum,
        loss_sum_by_modality=torch.stack([torch.where(mine, loss_T, 0.0).sum() for mine in of_modality]),
        num_supervised_by_modality=torch.stack([mine.sum() for mine in of_modality]),
    )


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_TD: Tensor,
        weight_VD: Tensor,
        labels_T: Tensor,
        supervised_T: Tensor,
        chunk: int,
        with_gradient: bool,
    ) -> tuple[Tensor, Tensor]:
        wide = torch.float64 if hidden_TD.dtype == torch.float64 else torch.float32
        loss_T = hidden_TD.new_zeros(hidden_TD.shape[0], dtype=wide)
        d_hidden_TD = torch.empty_like(hidden_TD) if with_gradient else None
        d_weight_VD = torch.zeros_like(weight_VD, dtype=wide) if with_gradient else None
        for start in range(0, hidden_TD.shape[0], chunk):
            rows = slice(start, start + chunk)
            hidden, real = hidden_TD[rows], supervised_T[rows].unsqueeze(-1)
            target = labels_T[rows].unsqueeze(-1).masked_fill(~real, 0)
            log_share = torch.log_softmax(widened(hidden @ weight_VD.t()), -1)
            loss_T[rows] = -log_share.gather(1, target).masked_fill(~real, 0.0).squeeze(-1)
            if d_hidden_TD is None or d_weight_VD is None:
                continue
            d_logits = log_share.exp_()
            d_logits.scatter_add_(1, target, d_logits.new_full(target.shape, -1.0))
            d_logits = d_logits.masked_fill_(~real, 0.0).to(hidden.dtype)
            d_hidden_TD[rows] = d_logits @ weight_VD
            d_weight_VD += d_logits.t() @ hidden
        if d_hidden_TD is not None and d_weight_VD is not None:
            ctx.save_for_backward(d_hidden_TD, d_weight_VD)
        ctx.weight_dtype = weight_VD.dtype
        ctx.mark_non_differentiable(loss_T)
        return loss_T.sum(), loss_T

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        d_hidden_TD, d_weight_VD = ctx.saved_tensors
        d_loss = gradients[0]
        return d_hidden_TD * d_loss.to(d_hidden_TD.dtype), (d_weight_VD * d_loss).to(ctx.weight_dtype), None, None, None, None
