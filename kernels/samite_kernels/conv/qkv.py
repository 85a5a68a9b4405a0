"""`short_conv_qkv`: the three short convolutions in front of KDA as one operator, one launch forward, two backward on Hopper.

    q, k, v  --(4 taps each, SiLU)-->  q, k, v            halo of context parallelism in and out, packed documents kept apart

Called by a layer that holds q, k and v apart, or as views of one projection. Where the kernel can't run, each tensor goes
through `short_conv`; `SAMITE_KERNELS_CONV` forces either (`sm90`, `separate`).
"""

from typing import NamedTuple

import torch
from torch import Tensor

from samite_kernels.conv.qkv_sm90 import TAPS, short_conv_qkv_sm90
from samite_kernels.conv.reference import checked
from samite_kernels.conv.short import last_inputs, short_conv
from samite_kernels.runtime.choice import Choice, choose
from samite_kernels.runtime.launch import hopper_obstacle
from samite_kernels.runtime.tensors import check_devices

VARIABLE = "SAMITE_KERNELS_CONV"


class Qkv(NamedTuple):
    """One tensor for each of the three streams."""

    q: Tensor
    k: Tensor
    v: Tensor


def short_conv_qkv(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    weights: tuple[Tensor, Tensor, Tensor],
    *,
    cu_seqlens: Tensor | None = None,
    initial_states: tuple[Tensor, Tensor, Tensor] | None = None,
    output_final_states: bool = False,
    activation: bool = True,
) -> tuple[Qkv, Qkv | None]:
    """q, k, v [B, T, Dq], [B, T, Dk], [B, T, Dv]; weights, states and meaning of each as in `short_conv`.

    Returns the three results and the three final states [N, W - 1, D] (None unless asked for). Rows may lie apart, as those of views into
    one projection do. Raises ValueError for shapes or offsets that don't fit, and for a forced kernel that can't run.

        mixed, halo = short_conv_qkv(q, k, v, (q_taps, k_taps, v_taps), output_final_states=True)
    """
    streams = Qkv(q, k, v)
    check_devices(("q", q), k=k, v=v)
    if {x.shape[:2] for x in streams} != {q.shape[:2]}:
        raise ValueError(f"q, k and v must have the same [B, T], found {[list(x.shape) for x in streams]}")
    states = initial_states if initial_states is not None else (None, None, None)
    choice = explain_qkv(q, k, v, weights)
    if choice.backend != "sm90":
        pairs = [
            short_conv(x, taps, cu_seqlens=cu_seqlens, initial_state=state, output_final_state=output_final_states, activation=activation)
            for x, taps, state in zip(streams, weights, states, strict=True)
        ]
        lasts = [last for _, last in pairs if last is not None]
        return Qkv(*(y for y, _ in pairs)), Qkv(*lasts) if lasts else None
    found = [checked(x, taps, cu_seqlens=cu_seqlens, initial_state=state) for x, taps, state in zip(streams, weights, states, strict=True)]
    documents = found[0][1]
    y = short_conv_qkv_sm90(streams, [taps for taps, _ in found], initial_states, cu_seqlens, activation=activation)
    if not output_final_states:
        return Qkv(*y), None
    flat = zip(streams, states, strict=True)
    return Qkv(*y), Qkv(*(last_inputs(x.flatten(0, 1), documents, TAPS - 1, state) for x, state in flat))


def explain_qkv(q: Tensor, k: Tensor, v: Tensor, weights: tuple[Tensor, Tensor, Tensor]) -> Choice:
    """Which backend `short_conv_qkv` takes for such inputs, and why. Raises ValueError when a forced kernel can't run."""
    return choose("short convolution of q, k, v", VARIABLE, _obstacle((q, k, v), weights), reference="separate")


def _obstacle(streams: tuple[Tensor, Tensor, Tensor], weights: tuple[Tensor, Tensor, Tensor]) -> str | None:
    for name, x, taps in zip("qkv", streams, weights, strict=True):
        if x.dtype != torch.bfloat16:
            return f"{name} is {x.dtype}, it needs bfloat16"
        if taps.shape[-1] != TAPS:
            return f"{name} has {taps.shape[-1]} taps, it needs {TAPS}"
        if x.shape[-1] % 4:
            return f"{name} has {x.shape[-1]} channels, it needs a multiple of 4"
    return hopper_obstacle(streams[0].device)
