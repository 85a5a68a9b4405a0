# ruff: noqa: ARG001 - operators take their tensors in order, fakes look at shapes only
"""The router on Hopper as three `torch.library` operators: choice with weights, its gradient, and the counts.

Called by `route`. float32 logits and bias; saved for the backward: the logits, and the choice.
"""

import ctypes
from typing import Any

import torch
from torch import Tensor

from samite_kernels.runtime.launch import declare, num_multiprocessors
from samite_kernels.runtime.tensors import aligned

MOST_EXPERTS = 1024
MOST_K = 31
MOST_BINS = 3000
"""16-bit counters of 32 experts must fit into shared memory."""
_SLICE = 32
_BLOCKS_PER_MULTIPROCESSOR = 3
_LEAST_TOKENS = 256
_MOST_TOKENS = 65535
"""Of a segment: what a 16-bit counter holds."""


class RouterArguments(ctypes.Structure):
    """Mirrors `router::Arguments` of csrc/sm90_router.cu; a test compares them."""

    _fields_ = [
        *(
            (name, ctypes.c_void_p)
            for name in ("logits", "bias", "d_weight", "padding", "chosen", "weight", "threshold", "d_logits", "counts")
        ),
        ("num_tokens", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("num_experts", "top_k", "num_bins", "num_segments")),
        ("factor", ctypes.c_float),
    ]


_choose = declare("sm90_router_choose")
_count = declare("sm90_router_count")
_backward = declare("sm90_router_backward")


def _fill(logits: Tensor, top_k: int, tensors: dict[str, Tensor | None], **numbers: float) -> RouterArguments:
    addresses = {name: x.data_ptr() for name, x in tensors.items() if x is not None}
    sizes = {"num_tokens": logits.shape[0], "num_experts": logits.shape[1], "top_k": top_k}
    return RouterArguments(logits=logits.data_ptr(), **addresses, **sizes, **numbers)


def num_segments_of(num_tokens: int, num_experts: int, device: torch.device) -> int:
    """Into how many segments the tokens are cut for counting: enough blocks to fill the device, few enough sums at the end."""
    wanted = _BLOCKS_PER_MULTIPROCESSOR * num_multiprocessors(device) // (num_experts // _SLICE)
    useful = -(-num_tokens // _LEAST_TOKENS)
    return max(1, min(wanted, useful), -(-num_tokens // _MOST_TOKENS))


@torch.library.custom_op("samite::router_choose", mutates_args=(), device_types=("cuda", "cpu"))
def _choose_operator(logits: Tensor, bias: Tensor, top_k: int, factor: float) -> tuple[Tensor, Tensor, Tensor]:
    logits, bias = aligned(logits), aligned(bias.float())
    chosen = logits.new_empty((logits.shape[0], top_k), dtype=torch.int64)
    weight, threshold = logits.new_empty((logits.shape[0], top_k)), logits.new_empty(logits.shape[0])
    tensors: dict[str, Tensor | None] = {"bias": bias, "chosen": chosen, "weight": weight, "threshold": threshold}
    _choose(_fill(logits, top_k, tensors, factor=factor), logits.device)
    return chosen, weight, threshold


@_choose_operator.register_fake
def _(logits: Tensor, bias: Tensor, top_k: int, factor: float) -> tuple[Tensor, Tensor, Tensor]:
    shape = (logits.shape[0], top_k)
    return logits.new_empty(shape, dtype=torch.int64), logits.new_empty(shape), logits.new_empty(logits.shape[0])


@torch.library.custom_op("samite::router_backward", mutates_args=(), device_types=("cuda", "cpu"))
def _backward_operator(logits: Tensor, chosen: Tensor, d_weight: Tensor, factor: float) -> Tensor:
    logits, chosen, d_weight = (aligned(x) for x in (logits, chosen, d_weight))
    d_logits = torch.empty_like(logits)
    tensors: dict[str, Tensor | None] = {"chosen": chosen, "d_weight": d_weight, "d_logits": d_logits}
    _backward(_fill(logits, chosen.shape[1], tensors, factor=factor), logits.device)
    return d_logits


@_backward_operator.register_fake
def _(logits: Tensor, chosen: Tensor, d_weight: Tensor, factor: float) -> Tensor:
    return torch.empty_like(logits, memory_format=torch.contiguous_format)


@torch.library.custom_op("samite::router_count", mutates_args=("counts",), device_types=("cuda", "cpu"))
def _count_operator(logits: Tensor, bias: Tensor, threshold: Tensor, chosen: Tensor, counts: Tensor, padding: Tensor | None) -> None:
    logits, bias, threshold, chosen = (aligned(x) for x in (logits, bias.float(), threshold, chosen))
    padding = None if padding is None else aligned(padding.to(torch.uint8))
    tensors = {"bias": bias, "threshold": threshold, "chosen": chosen, "counts": counts, "padding": padding}
    segments = num_segments_of(logits.shape[0], logits.shape[1], logits.device)
    sizes = {"num_bins": counts.shape[1] - 1, "num_segments": segments}
    _count(_fill(logits, chosen.shape[1], tensors, **sizes), logits.device)


@_count_operator.register_fake
def _(logits: Tensor, bias: Tensor, threshold: Tensor, chosen: Tensor, counts: Tensor, padding: Tensor | None) -> None:
    return None


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    logits, _, _, factor = inputs
    chosen, _, threshold = output
    ctx.save_for_backward(logits, chosen)
    ctx.mark_non_differentiable(chosen, threshold)
    ctx.factor = factor


def _backward_of(ctx: Any, _d_chosen: Tensor, d_weight: Tensor, _d_threshold: Tensor) -> tuple[Tensor | None, ...]:
    logits, chosen = ctx.saved_tensors
    return _backward_operator(logits, chosen, d_weight, ctx.factor), None, None, None


_choose_operator.register_autograd(_backward_of, setup_context=_setup_context)


def route_sm90(logits: Tensor, bias: Tensor, top_k: int, factor: float) -> tuple[Tensor, Tensor, Tensor]:
    """chosen [T, K] int64, weight [T, K], threshold [T] for float32 logits [T, E]."""
    return _choose_operator(logits, bias, top_k, factor)


def count_margins_sm90(logits: Tensor, bias: Tensor, threshold: Tensor, chosen: Tensor, counts: Tensor, padding: Tensor | None) -> None:
    """Adds to contiguous int32 counts [E, B + 1] in place."""
    _count_operator(logits, bias, threshold, chosen, counts, padding)
