"""The short convolution on Hopper: one kernel forward, one and a small reduction backward, documents by the chunk table of KDA.

Called by `short`. Four taps, bfloat16 tokens, float32 weights; saved for the backward: the input.
"""

import ctypes
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from samite_kernels.kda.documents import Documents
from samite_kernels.kda.sm90_launch import addresses_of, block, chunk_table, fill
from samite_kernels.runtime.launch import declare
from samite_kernels.runtime.tensors import aligned

TAPS = 4
_POINTERS = "x weight initial_state d_y y d_x d_initial_state d_weight_parts d_weight chunks"
ConvArguments = block("ConvArguments", _POINTERS, "num_chunks num_channels activation")
_forward = declare("sm90_short_conv_forward")
_backward = declare("sm90_short_conv_backward")


def fits_sm90(x: Tensor, weight: Tensor) -> bool:
    """Whether the kernel covers this call: bfloat16 on a Hopper GPU, four taps, channels in eights, eager mode."""
    if x.device.type != "cuda" or x.dtype != torch.bfloat16 or x.dim() != 3 or torch.compiler.is_compiling():
        return False
    return weight.shape[-1] == TAPS and x.shape[-1] % 8 == 0 and torch.cuda.get_device_capability(x.device) == (9, 0)


def short_conv_sm90(x: Tensor, taps: Tensor, documents: Documents, initial_state: Tensor | None, *, activation: bool) -> Tensor:
    """y [B, T, D] from x [B, T, D] and taps [D, 4]; `initial_state` [N, 3, D] or None."""
    state = None if initial_state is None else initial_state.to(x.dtype)
    y: Tensor = _ShortConv.apply(x, taps.float(), state, documents, activation)
    return y


class _ShortConv(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, taps: Tensor, state: Tensor | None, documents: Documents, activation: bool) -> Tensor:
        x, taps = aligned(x), aligned(taps)
        state = None if state is None else aligned(state)
        ctx.save_for_backward(x, taps, state)
        ctx.documents, ctx.activation = documents, activation
        y = torch.empty_like(x)
        _forward(_arguments({"x": x, "weight": taps, "initial_state": state, "y": y}, x, documents, activation), x.device)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, taps, state = ctx.saved_tensors
        d_y = aligned(gradients[0])
        d_x, d_taps = torch.empty_like(x), torch.empty_like(taps)
        d_state = None if state is None else torch.zeros_like(state)
        num_chunks = chunk_table(ctx.documents, x.device).num_chunks
        parts = torch.empty(num_chunks, *taps.shape, dtype=torch.float32, device=x.device)
        tensors = {"x": x, "weight": taps, "initial_state": state, "d_y": d_y, "d_x": d_x, "d_initial_state": d_state}
        tensors |= {"d_weight_parts": parts, "d_weight": d_taps}
        _backward(_arguments(tensors, x, ctx.documents, ctx.activation), x.device)
        return d_x, d_taps, d_state, None, None


def _arguments(tensors: dict[str, Tensor | None], x: Tensor, documents: Documents, activation: bool) -> ctypes.Structure:
    table = chunk_table(documents, x.device)
    addresses = addresses_of(tensors | {"chunks": table.chunks})
    return fill(ConvArguments, addresses, num_chunks=table.num_chunks, num_channels=x.shape[-1], activation=int(activation))
