"""Short causal convolution in plain torch: one weight per channel and tap, SiLU after, documents kept apart.

    y[t] = silu( sum_j weight[:, j] * x[t - (W - 1) + j] )       taps before the document's first token read the initial state, or 0

Called by `short`, and by its tests. `initial_state` is the last W - 1 inputs before this piece: the halo of context parallelism and the
cache of decoding.
"""

from typing import Any

import torch
from torch import Tensor

from samite_kernels.kda.documents import Documents, find_documents
from samite_kernels.runtime.tensors import check_devices


def short_conv_reference(
    x: Tensor,
    weight: Tensor,
    *,
    cu_seqlens: Tensor | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    activation: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """Arguments, result and errors as `short_conv`; sums in float32, or float64 if x is."""
    taps, documents = checked(x, weight, cu_seqlens=cu_seqlens, initial_state=initial_state)
    history = taps.shape[1] - 1
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    taps = taps.to(dtype)
    padded = _with_history(x.flatten(0, 1), documents, history, initial_state)
    rows = _rows_after_history(documents, history, x.device)
    sums: Tensor = _SlidingSum.apply(padded.to(dtype), taps)
    y = sums.index_select(0, rows - history)
    if activation:
        y = torch.nn.functional.silu(y)
    final_state = _final_state(padded, documents, history) if output_final_state else None
    return y.view(x.shape).to(x.dtype), final_state


def checked(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor | None, initial_state: Tensor | None) -> tuple[Tensor, Documents]:
    """The weight as [D, W] and the documents. Raises ValueError for shapes or offsets that don't fit."""
    if x.dim() != 3:
        raise ValueError(f"x must have shape [B, T, D], found {list(x.shape)}")
    batch, num_tokens, num_channels = x.shape
    if 0 in (batch, num_channels):
        raise ValueError(f"B and D must be at least 1, found x {list(x.shape)}: leave out the empty call")
    taps = weight.squeeze(1) if weight.dim() == 3 else weight
    if taps.dim() != 2 or taps.shape[0] != num_channels:
        raise ValueError(f"weight must have shape [{num_channels}, W] or [{num_channels}, 1, W], found {list(weight.shape)}")
    documents = find_documents(cu_seqlens, batch=batch, num_tokens=num_tokens)
    wanted = (documents.count, taps.shape[1] - 1, num_channels)
    if initial_state is not None and tuple(initial_state.shape) != wanted:
        raise ValueError(f"initial_state must have shape {list(wanted)} ([N, W - 1, D]), found {list(initial_state.shape)}")
    for name, tensor in {"x": x, "weight": weight, "initial_state": initial_state}.items():
        if tensor is not None and not tensor.is_floating_point():
            raise ValueError(f"{name} must be a floating-point tensor, found {tensor.dtype}")
    check_devices(("x", x), weight=weight, initial_state=initial_state)
    return taps, documents


def _with_history(x: Tensor, documents: Documents, history: int, initial_state: Tensor | None) -> Tensor:
    """The documents one after another, each behind the `history` inputs that precede it."""
    nothing = x.new_zeros(history, x.shape[-1])
    pieces: list[Tensor] = []
    for document, piece in enumerate(x.split(list(documents.lengths))):
        pieces += [nothing if initial_state is None else initial_state[document].to(x.dtype), piece]
    return torch.cat(pieces)


def _rows_after_history(documents: Documents, history: int, device: torch.device) -> Tensor:
    lengths = torch.tensor(documents.lengths, device=device)
    shift = torch.arange(1, documents.count + 1, device=device) * history
    return torch.arange(documents.num_tokens, device=device) + shift.repeat_interleave(lengths)


def _final_state(padded: Tensor, documents: Documents, history: int) -> Tensor:
    ends = torch.tensor(documents.offsets[1:]) + torch.arange(1, documents.count + 1) * history
    return torch.stack([padded[int(end) - history : int(end)] for end in ends])


class _SlidingSum(torch.autograd.Function):
    """x [M, D], taps [D, W] -> [M - W + 1, D], row i is sum_j taps[:, j] x[i + j]. Slices only: no gathers, no atomics."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, taps: Tensor) -> Tensor:
        ctx.save_for_backward(x, taps)
        length = x.shape[0] - taps.shape[1] + 1
        total = x[:length] * taps[:, 0]
        for tap in range(1, taps.shape[1]):
            total.addcmul_(x[tap : tap + length], taps[:, tap])
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        x, taps = ctx.saved_tensors
        gradient = gradients[0]
        length = gradient.shape[0]
        d_x = torch.zeros_like(x)
        d_taps = torch.empty_like(taps)
        for tap in range(taps.shape[1]):
            d_x[tap : tap + length].addcmul_(gradient, taps[:, tap])
            d_taps[:, tap] = (gradient * x[tap : tap + length]).sum(0)
        return d_x, d_taps
