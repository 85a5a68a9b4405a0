# ruff: noqa: ARG001 - operators take their tensors in order, fakes look at shapes only
"""The convolutions of q, k and v on Hopper as two `torch.library` operators: memory, argument blocks and autograd.

Called by `qkv`. Four taps, bfloat16 tokens, float32 weights; saved for the backward: the inputs.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from samite_kernels.kda.documents import find_documents
from samite_kernels.kda.sm90_launch import chunk_table
from samite_kernels.runtime.launch import declare
from samite_kernels.runtime.tensors import aligned

TAPS = 4
STRIP = 256
"""Tokens that a thread slides over: fewer would cost more rows computed twice and more parts of the weight gradient."""
_TENSORS = ("x", "weight", "initial_state", "d_y", "y", "d_x", "d_initial_state", "d_weight")
Three = tuple[Tensor, Tensor, Tensor]


class QkvArguments(ctypes.Structure):
    """Mirrors `qkv::Arguments` of csrc/sm90_short_conv_qkv.cu; a test compares them."""

    _fields_ = [
        *((name, ctypes.c_void_p * 3) for name in _TENSORS),
        ("d_weight_parts", ctypes.c_void_p),
        ("strips", ctypes.c_void_p),
        ("x_stride", ctypes.c_int64 * 3),
        ("d_y_stride", ctypes.c_int64 * 3),
        ("num_channels", ctypes.c_int32 * 3),
        ("num_strips", ctypes.c_int32),
        ("activation", ctypes.c_int32),
    ]


_forward = declare("sm90_short_conv_qkv_forward")
_backward = declare("sm90_short_conv_qkv_backward")


def short_conv_qkv_sm90(
    streams: Sequence[Tensor],
    taps: Sequence[Tensor],
    states: Sequence[Tensor] | None,
    cu_seqlens: Tensor | None,
    *,
    activation: bool,
) -> Three:
    """The three results for streams [B, T, D] and taps [D, 4]; `states` [N, 3, D] each, or None."""
    weights = [x.float() for x in taps]
    befores = [None, None, None] if states is None else [x.to(torch.bfloat16) for x in states]
    return _forward_operator(*streams, *weights, *befores, cu_seqlens, activation)


@torch.library.custom_op("samite::short_conv_qkv_forward", mutates_args=(), device_types=("cuda", "cpu"))
def _forward_operator(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_taps: Tensor,
    k_taps: Tensor,
    v_taps: Tensor,
    q_state: Tensor | None,
    k_state: Tensor | None,
    v_state: Tensor | None,
    cu_seqlens: Tensor | None,
    activation: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    streams = [_rows(x) for x in (q, k, v)]
    y = (_like(q), _like(k), _like(v))
    tensors: dict[str, Sequence[Tensor]] = {"x": streams, "weight": [aligned(x) for x in (q_taps, k_taps, v_taps)], "y": y}
    _run(_forward, tensors | _states("initial_state", (q_state, k_state, v_state)), q, cu_seqlens, activation)
    return y


@_forward_operator.register_fake
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_taps: Tensor,
    k_taps: Tensor,
    v_taps: Tensor,
    q_state: Tensor | None,
    k_state: Tensor | None,
    v_state: Tensor | None,
    cu_seqlens: Tensor | None,
    activation: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    return _like(q), _like(k), _like(v)


@torch.library.custom_op("samite::short_conv_qkv_backward", mutates_args=(), device_types=("cuda", "cpu"))
def _backward_operator(
    streams: list[Tensor],
    taps: list[Tensor],
    states: list[Tensor],
    d_y: list[Tensor],
    cu_seqlens: Tensor | None,
    activation: bool,
) -> list[Tensor]:
    """Gradients of the three streams, of the three weights, and, if states were given, of the three states."""
    d_x = [_like(x) for x in streams]
    d_taps = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in taps]
    d_states = [torch.zeros_like(x, memory_format=torch.contiguous_format) for x in states]
    num_strips = _strips(streams[0], cu_seqlens).num_chunks
    parts = torch.empty(num_strips, sum(x.shape[0] for x in taps), TAPS, dtype=torch.float32, device=taps[0].device)
    tensors: dict[str, Sequence[Tensor]] = {
        "x": [_rows(x) for x in streams],
        "weight": [aligned(x) for x in taps],
        "d_y": [_rows(x) for x in d_y],
    }
    tensors |= {"d_x": d_x, "d_weight": d_taps} | _states("initial_state", states) | _states("d_initial_state", d_states)
    _run(_backward, tensors, streams[0], cu_seqlens, activation, parts=parts)
    return [*d_x, *d_taps, *d_states]


@_backward_operator.register_fake
def _(
    streams: list[Tensor],
    taps: list[Tensor],
    states: list[Tensor],
    d_y: list[Tensor],
    cu_seqlens: Tensor | None,
    activation: bool,
) -> list[Tensor]:
    return [*(_like(x) for x in streams), *(torch.empty_like(x, memory_format=torch.contiguous_format) for x in (*taps, *states))]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Three) -> None:
    ctx.save_for_backward(*inputs[:10])
    ctx.activation = inputs[10]


def _backward_of(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
    *tensors, cu_seqlens = ctx.saved_tensors
    states = [x for x in tensors[6:9] if x is not None]
    found = _backward_operator(tensors[:3], tensors[3:6], states, list(gradients), cu_seqlens, ctx.activation)
    return (*found[:6], *(found[6:] or (None, None, None)), None, None)


_forward_operator.register_autograd(_backward_of, setup_context=_setup_context)


def _like(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _rows(x: Tensor) -> Tensor:
    """[B, T, D] as rows a fixed distance apart that vector loads can take; a copy when it isn't."""
    rows = x.flatten(0, 1) if x.shape[0] == 1 or x.stride(0) == x.shape[1] * x.stride(1) else x.contiguous().flatten(0, 1)
    fits = rows.stride(1) == 1 and rows.stride(0) % 4 == 0 and rows.stride(0) >= rows.shape[1] and rows.data_ptr() % 8 == 0
    return rows if fits else aligned(rows)


def _states(field: str, states: Sequence[Tensor | None]) -> dict[str, Sequence[Tensor]]:
    given = [aligned(x) for x in states if x is not None]
    return {field: given} if given else {}


def _strips(x: Tensor, cu_seqlens: Tensor | None) -> Any:
    return chunk_table(find_documents(cu_seqlens, batch=x.shape[0], num_tokens=x.shape[1]), x.device, STRIP)


def _run(
    launch: Any,
    tensors: dict[str, Sequence[Tensor]],
    like: Tensor,
    cu_seqlens: Tensor | None,
    activation: bool,
    parts: Tensor | None = None,
) -> None:
    table = _strips(like, cu_seqlens)
    addresses = {name: (ctypes.c_void_p * 3)(*(x.data_ptr() for x in three)) for name, three in tensors.items()}
    arguments = QkvArguments(
        **addresses,
        d_weight_parts=None if parts is None else parts.data_ptr(),
        strips=table.chunks.data_ptr(),
        x_stride=(ctypes.c_int64 * 3)(*(x.stride(0) for x in tensors["x"])),
        d_y_stride=(ctypes.c_int64 * 3)(*(x.stride(0) for x in tensors.get("d_y", ()))),
        num_channels=(ctypes.c_int32 * 3)(*(x.shape[1] for x in tensors["x"])),
        num_strips=table.num_chunks,
        activation=int(activation),
    )
    launch(arguments, like.device)
