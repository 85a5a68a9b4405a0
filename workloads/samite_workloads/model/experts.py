"""The routed experts as one differentiable operation: sort by expert, grouped products, combine by gathering.

    rows  = tokens sorted by expert           R = T * K rows, padding behind the last expert
    act   = situ(z[rows] W_gate^T, z[rows] W_up^T)
    out_t = sum_k weight_tk * (act W_down^T)[row of (t, k)]

Nothing is added atomically: forward and backward gather, so repeated runs are equal bit for bit. Kept for the backward pass: z, the gate and up
products and the weights; expert outputs are not (the gradient of a weight is < act, W_down^T d out >, K3 report).
Legend: T tokens, K experts per token, E experts, L latent width, F expert hidden width, R rows.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from samite_workloads.model.grouped import grouped_product, grouped_weight_gradient
from samite_workloads.model.situ import situ_gradients, situ_value, widened


class Dispatch(NamedTuple):
    """Rows sorted by expert: integer tensors only."""

    token_of_row_R: Tensor
    slot_of_row_R: Tensor
    """Which of the T * K (token, choice) pairs a row serves."""
    row_of_slot_TK: Tensor
    ends_E: Tensor
    """int32, end of each expert's rows; rows at or past the last end belong to padding and are never read."""
    is_padding_T1: Tensor


def dispatch(chosen_TK: Tensor, num_experts: int) -> Dispatch:
    """Sorts (token, choice) pairs by expert, stable; pairs with the id `num_experts` go last."""
    flat = chosen_TK.flatten()
    sorted_experts, slot_of_row = torch.sort(flat, stable=True)
    row_of_slot = torch.empty_like(slot_of_row)
    row_of_slot[slot_of_row] = torch.arange(flat.numel(), device=flat.device)
    every_expert = torch.arange(num_experts, device=flat.device)
    return Dispatch(
        token_of_row_R=slot_of_row // chosen_TK.shape[1],
        slot_of_row_R=slot_of_row,
        row_of_slot_TK=row_of_slot.view_as(chosen_TK),
        ends_E=torch.searchsorted(sorted_experts, every_expert, right=True).to(torch.int32),
        is_padding_T1=chosen_TK[:, :1] == num_experts,
    )


def mix_experts(
    latent_TL: Tensor,
    weight_TK: Tensor,
    gate_up_E2FL: Tensor,
    down_ELF: Tensor,
    plan: Dispatch,
    *,
    beta: float,
    linear_beta: float,
) -> Tensor:
    """sum_k weight_tk expert_k(latent_t), [T, L] in the type of the latent; zero for padding. Weights are cast to that type."""
    kind = latent_TL.dtype
    mixed: Tensor = _Experts.apply(latent_TL, weight_TK, gate_up_E2FL.to(kind), down_ELF.to(kind), beta, linear_beta, *plan)
    return mixed


class _Experts(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        latent_TL: Tensor,
        weight_TK: Tensor,
        gate_up_E2FL: Tensor,
        down_ELF: Tensor,
        beta: float,
        linear_beta: float,
        *parts: Tensor,
    ) -> Tensor:
        plan = Dispatch(*parts)
        rows_RL = latent_TL.index_select(0, plan.token_of_row_R)
        hidden_R2F = grouped_product(rows_RL, gate_up_E2FL.flatten(1, 2).transpose(1, 2), plan.ends_E)
        gate_RF, up_RF = hidden_R2F.chunk(2, -1)
        act_RF = situ_value(widened(gate_RF), widened(up_RF), beta, linear_beta).to(rows_RL.dtype)
        out_RL = grouped_product(act_RF, down_ELF.transpose(1, 2), plan.ends_E)
        ctx.save_for_backward(latent_TL, weight_TK, gate_up_E2FL, down_ELF, hidden_R2F, *plan)
        ctx.bounds = beta, linear_beta
        return _gather_sum(out_RL, plan, weight_TK).to(latent_TL.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        latent_TL, weight_TK, gate_up_E2FL, down_ELF, hidden_R2F, *parts = ctx.saved_tensors
        plan = Dispatch(*parts)
        weight_R1 = weight_TK.flatten().index_select(0, plan.slot_of_row_R).unsqueeze(-1)
        d_out_RL = gradients[0].index_select(0, plan.token_of_row_R)
        pull_RF = widened(grouped_product(d_out_RL, down_ELF, plan.ends_E))
        gate_RF, up_RF = (widened(x) for x in hidden_R2F.chunk(2, -1))
        act_RF, d_gate_RF, d_up_RF = situ_gradients(gate_RF, up_RF, pull_RF * weight_R1, *ctx.bounds)
        d_weight_R = (act_RF * pull_RF).sum(-1)
        d_weight_TK = d_weight_R.index_select(0, plan.row_of_slot_TK.flatten()).view_as(weight_TK)
        scaled_RF = (act_RF * weight_R1).to(latent_TL.dtype)
        d_down_ELF = grouped_weight_gradient(d_out_RL, scaled_RF, plan.ends_E)
        d_hidden_R2F = torch.cat([d_gate_RF, d_up_RF], -1).to(latent_TL.dtype)
        rows_RL = latent_TL.index_select(0, plan.token_of_row_R)
        d_gate_up = grouped_weight_gradient(d_hidden_R2F, rows_RL, plan.ends_E).view_as(gate_up_E2FL)
        d_rows_RL = grouped_product(d_hidden_R2F, gate_up_E2FL.flatten(1, 2), plan.ends_E)
        return (
            _gather_sum(d_rows_RL, plan, None).to(latent_TL.dtype),
            d_weight_TK.masked_fill(plan.is_padding_T1, 0.0).to(weight_TK.dtype),
            d_gate_up,
            d_down_ELF,
            *(None,) * (2 + len(parts)),
        )


def _gather_sum(rows_RL: Tensor, plan: Dispatch, weight_TK: Tensor | None) -> Tensor:
    """Sum over the choices of each token of its (weighted) rows, in order of choice, float32; rows of padding are not looked at."""
    total: Tensor | None = None
    for choice in range(plan.row_of_slot_TK.shape[1]):
        picked_TL = widened(rows_RL.index_select(0, plan.row_of_slot_TK[:, choice]))
        if weight_TK is not None:
            picked_TL = picked_TL * weight_TK[:, choice : choice + 1]
        total = picked_TL if total is None else total.add_(picked_TL)
    assert total is not None
    return total.masked_fill_(plan.is_padding_T1, 0.0)
