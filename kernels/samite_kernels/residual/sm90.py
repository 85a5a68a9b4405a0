# ruff: noqa: ARG001 - operators take their tensors in order, fakes look at shapes only
"""The block attention residual on Hopper: memory, argument blocks, and two `torch.library` operators for code without shared buffers.

Called by `mixture`. bfloat16 sources, float32 query and norm weight; saved for the backward: the sources, which are alive anyway, and three
numbers per token and source.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from samite_kernels.runtime.launch import declare, num_multiprocessors
from samite_kernels.runtime.tensors import aligned

MAX_SOURCES = 16
MAX_WIDTH = 7168
_CHANNELS_PER_THREAD = 16
_SHARED_BYTES = 232448
_FIXED_BYTES = 5120
_TURNS = 3
"""Tokens of which the ring holds rows, where the memory allows it."""
_MOST_BLOCKS = 4
Saved = tuple[Tensor, Tensor, Tensor, Tensor]


class ResidualArguments(ctypes.Structure):
    """Mirrors `residual::Arguments` of csrc/include/residual.cuh; a test compares them."""

    _fields_ = [
        ("values", ctypes.c_void_p * MAX_SOURCES),
        ("d_values", ctypes.c_void_p * MAX_SOURCES),
        *((name, ctypes.c_void_p) for name in ("query", "norm_weight", "d_y", "y", "weights", "scores", "inverses", "norm_inverse")),
        *((name, ctypes.c_void_p) for name in ("parts", "d_query", "d_norm_weight")),
        ("num_tokens", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("width", "num_sources", "num_slots", "num_consumers", "num_blocks", "accumulate")),
        ("eps", ctypes.c_float),
    ]


_forward = declare("sm90_attention_residual_forward")
_backward = declare("sm90_attention_residual_backward")


def size_obstacle(num_sources: int, width: int) -> str | None:
    """Why so many sources of such a width don't fit, in words, or None."""
    if width % 8 or width > MAX_WIDTH:
        return f"the width is {width}, it needs a multiple of 8 up to {MAX_WIDTH}"
    most = min(MAX_SOURCES, _slots_at_most(width) - 1)
    return None if num_sources <= most else f"there are {num_sources} sources, it needs at most {most} at width {width}"


def run_forward(values: Sequence[Tensor], query: Tensor, norm_weight: Tensor | None, eps: float) -> tuple[Tensor, Saved]:
    """y and what the backward needs: weights, scores and inverse root mean squares [T, N], and the inverse root mean square of h [T]."""
    values = [aligned(v) for v in values]
    num_tokens, count = values[0].shape[0], len(values)
    y = torch.empty_like(values[-1])
    weights, scores, inverses = (y.new_empty((num_tokens, count), dtype=torch.float32) for _ in range(3))
    norm_inverse = y.new_empty(num_tokens, dtype=torch.float32)
    tensors: dict[str, Tensor | None] = {"query": aligned(query.float()), "norm_weight": _float(norm_weight), "y": y}
    tensors |= {"weights": weights, "scores": scores, "inverses": inverses, "norm_inverse": norm_inverse}
    if num_tokens:
        _forward(_fill(values, tensors, eps, rows=count), y.device)
    return y, (weights, scores, inverses, norm_inverse)


def run_backward(
    values: Sequence[Tensor],
    query: Tensor,
    norm_weight: Tensor | None,
    eps: float,
    saved: Sequence[Tensor],
    d_y: Tensor,
    d_values: Sequence[Tensor],
    adds: Sequence[bool],
) -> tuple[Tensor, Tensor | None]:
    """Gradients of query and norm weight. Writes those of the sources to the contiguous `d_values`, or adds where `adds` says so."""
    values, d_y = [aligned(v) for v in values], aligned(d_y)
    weights, scores, inverses, norm_inverse = saved
    d_query = torch.zeros(query.shape, dtype=torch.float32, device=query.device)
    d_norm_weight = None if norm_weight is None else torch.zeros_like(d_query)
    tensors: dict[str, Tensor | None] = {"query": aligned(query.float()), "norm_weight": _float(norm_weight), "d_y": d_y}
    tensors |= {"weights": weights, "scores": scores, "inverses": inverses, "norm_inverse": norm_inverse}
    tensors |= {"d_query": d_query, "d_norm_weight": d_norm_weight}
    if d_y.shape[0]:
        arguments = _fill(values, tensors, eps, rows=len(values) + 1)
        parts = d_query.new_empty((arguments.num_blocks, 2, query.shape[0]))
        arguments.parts = parts.data_ptr()
        arguments.d_values = (ctypes.c_void_p * MAX_SOURCES)(*(x.data_ptr() for x in d_values))
        arguments.accumulate = sum(1 << i for i, add in enumerate(adds) if add)
        _backward(arguments, d_y.device)
    return d_query.to(query.dtype), None if norm_weight is None or d_norm_weight is None else d_norm_weight.to(norm_weight.dtype)


def _float(x: Tensor | None) -> Tensor | None:
    return None if x is None else aligned(x.float())


def _slots_at_most(width: int) -> int:
    return (_SHARED_BYTES - _FIXED_BYTES) // (2 * width + 16)


def _fill(values: Sequence[Tensor], tensors: dict[str, Tensor | None], eps: float, *, rows: int) -> ResidualArguments:
    """`rows`: of a token that the ring must hold at once. Keeps no tensor alive: the caller does."""
    num_tokens, width = values[0].shape
    slots = min(_slots_at_most(width), _TURNS * rows)
    per_multiprocessor = max(1, min(_MOST_BLOCKS, _SHARED_BYTES // (slots * (2 * width + 16) + _FIXED_BYTES + 1024)))
    warps = -(-width // (_CHANNELS_PER_THREAD * 32))
    return ResidualArguments(
        values=(ctypes.c_void_p * MAX_SOURCES)(*(v.data_ptr() for v in values)),
        **{name: x.data_ptr() for name, x in tensors.items() if x is not None},
        num_tokens=num_tokens,
        width=width,
        num_sources=len(values),
        num_slots=slots,
        num_consumers=32 * warps,
        num_blocks=min(num_tokens, per_multiprocessor * num_multiprocessors(values[0].device)),
        eps=eps,
    )


@torch.library.custom_op("samite::attention_residual_forward", mutates_args=(), device_types=("cuda", "cpu"))
def _forward_operator(
    values: list[Tensor], query: Tensor, norm_weight: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    y, saved = run_forward(values, query, norm_weight, eps)
    return y, *saved


@_forward_operator.register_fake
def _(values: list[Tensor], query: Tensor, norm_weight: Tensor | None, eps: float) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    num_tokens = values[0].shape[0]
    y = torch.empty_like(values[-1], memory_format=torch.contiguous_format)
    weights, scores, inverses = (y.new_empty((num_tokens, len(values)), dtype=torch.float32) for _ in range(3))
    return y, weights, scores, inverses, y.new_empty(num_tokens, dtype=torch.float32)


@torch.library.custom_op("samite::attention_residual_backward", mutates_args=(), device_types=("cuda", "cpu"))
def _backward_operator(
    values: list[Tensor], query: Tensor, norm_weight: Tensor | None, eps: float, saved: list[Tensor], d_y: Tensor
) -> list[Tensor]:
    """Gradients of the values, the query and, if there is one, the norm weight."""
    d_values = [torch.empty_like(v, memory_format=torch.contiguous_format) for v in values]
    d_query, d_norm_weight = run_backward(values, query, norm_weight, eps, saved, d_y, d_values, [False] * len(values))
    return [*d_values, d_query] if d_norm_weight is None else [*d_values, d_query, d_norm_weight]


@_backward_operator.register_fake
def _(values: list[Tensor], query: Tensor, norm_weight: Tensor | None, eps: float, saved: list[Tensor], d_y: Tensor) -> list[Tensor]:
    given = [*values, query] if norm_weight is None else [*values, query, norm_weight]
    return [torch.empty_like(x, memory_format=torch.contiguous_format) for x in given]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    values, query, norm_weight, eps = inputs
    ctx.save_for_backward(query, norm_weight, *values, *output[1:])
    ctx.mark_non_differentiable(*output[1:])
    ctx.count, ctx.eps = len(values), eps


def _backward_of(ctx: Any, d_y: Tensor, *_: Tensor) -> tuple[Any, ...]:
    query, norm_weight, *rest = ctx.saved_tensors
    values, saved = rest[: ctx.count], rest[ctx.count :]
    found = _backward_operator(values, query, norm_weight, ctx.eps, saved, d_y)
    return found[: ctx.count], found[ctx.count], found[ctx.count + 1] if norm_weight is not None else None, None


_forward_operator.register_autograd(_backward_of, setup_context=_setup_context)


def attention_residual_sm90(values: list[Tensor], query: Tensor, norm_weight: Tensor | None, eps: float) -> Tensor:
    """y [T, D] with gradients of its own for every source."""
    y, *_ = _forward_operator(values, query, norm_weight, eps)
    return y
