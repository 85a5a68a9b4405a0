"""`attention_residual`: what a sublayer reads of the earlier blocks and the running sum, after its norm.

    blocks = [freeze(b) for b in completed]           gradients of a block's readers meet in one buffer, in place
    y = attention_residual([*blocks, partial], query, norm_weight_D=weight)

Called in front of every sublayer. Without `freeze` autograd keeps one gradient per reader and adds them, which moves as many bytes as the
backward itself. `SAMITE_KERNELS_RESIDUAL` forces the kernel or plain torch. Legend: T tokens, D width, N sources.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from samite_kernels.residual import sm90
from samite_kernels.residual.reference import attention_residual_reference
from samite_kernels.runtime.choice import Choice, choose
from samite_kernels.runtime.launch import hopper_obstacle
from samite_kernels.runtime.tensors import check_devices

VARIABLE = "SAMITE_KERNELS_RESIDUAL"


@dataclass(slots=True)
class GradientBuffer:
    """The gradient of a frozen block so far; None before the first reader's backward."""

    total: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Frozen:
    """A completed block, [T, D], and where the gradients of its readers meet."""

    value_TD: Tensor
    gradient: GradientBuffer = field(default_factory=GradientBuffer)


def freeze(value_TD: Tensor) -> Frozen:
    """A block that several sublayers will read. Its gradient is the sum over them, in the type of the block, added up in backward order."""
    buffer = GradientBuffer()
    if torch.compiler.is_compiling():
        return Frozen(value_TD, buffer)
    frozen: Tensor = _Freeze.apply(value_TD, buffer)
    return Frozen(frozen, buffer)


def attention_residual(
    sources: Sequence[Frozen | Tensor], query_D: Tensor, *, norm_weight_D: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """y [T, D] in the type of the last source: the softmax mixture of the sources [T, D], normed if a weight is given.

    Gradients go to the query, the norm weight and the sources; those of frozen blocks arrive where they were frozen. In compiled code
    blocks have no common buffer. Raises ValueError for shapes that don't fit and for a forced kernel that can't run.
    """
    values = [source.value_TD if isinstance(source, Frozen) else source for source in sources]
    _check(values, query_D, norm_weight_D)
    backend = explain_residual(values).backend
    buffers = [source.gradient if isinstance(source, Frozen) else None for source in sources]
    if torch.compiler.is_compiling() or not any(buffers):
        if backend == "sm90":
            return sm90.attention_residual_sm90(values, query_D, norm_weight_D, eps)
        return attention_residual_reference(values, query_D, norm_weight_D, eps)
    mixed: Tensor = _Read.apply(query_D, norm_weight_D, eps, buffers, backend, *values)
    return mixed


def explain_residual(values: Sequence[Tensor]) -> Choice:
    """Which backend runs for such sources, and why. Raises ValueError when a forced kernel can't run."""
    return choose("block attention residual", VARIABLE, _obstacle(values))


def _check(values: Sequence[Tensor], query_D: Tensor, norm_weight_D: Tensor | None) -> None:
    if not values or values[0].dim() != 2 or any(v.shape != values[0].shape for v in values):
        raise ValueError(f"sources must be one or more tensors of one shape [T, D], found {[list(v.shape) for v in values]}")
    width = values[0].shape[1]
    for name, weight in (("query", query_D), ("norm_weight", norm_weight_D)):
        if weight is not None and tuple(weight.shape) != (width,):
            raise ValueError(f"{name} must have shape [{width}], found {list(weight.shape)}")
    more = {f"source {i}": v for i, v in enumerate(values[1:], 1)}
    check_devices(("source 0", values[0]), query=query_D, norm_weight=norm_weight_D, **more)


def _obstacle(values: Sequence[Tensor]) -> str | None:
    types = {v.dtype for v in values}
    if types != {torch.bfloat16}:
        return f"the sources are {', '.join(sorted(map(str, types)))}, it needs bfloat16"
    return sm90.size_obstacle(len(values), values[0].shape[1]) or hopper_obstacle(values[0].device)


class _Freeze(torch.autograd.Function):
    """The block itself; its backward runs after those of all its readers and hands on what they added up."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, buffer: GradientBuffer) -> Tensor:
        ctx.buffer = buffer
        ctx.set_materialize_grads(False)
        return value.view_as(value)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, None]:
        total, ctx.buffer.total = ctx.buffer.total, None
        direct = gradients[0]
        if total is not None and direct is not None:
            total += direct
        return total if total is not None else direct, None


class _Read(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        norm_weight: Tensor | None,
        eps: float,
        buffers: list[GradientBuffer | None],
        backend: str,
        *values: Tensor,
    ) -> Tensor:
        ctx.eps, ctx.buffers, ctx.backend = eps, buffers, backend
        saved: tuple[Tensor, ...]
        if backend == "sm90":
            y, saved = sm90.run_forward(values, query, norm_weight, eps)
        else:
            y, saved = attention_residual_reference(values, query, norm_weight, eps), ()
        ctx.save_for_backward(query, norm_weight, *values, *saved)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        query, norm_weight, *rest = ctx.saved_tensors
        count = len(ctx.buffers)
        values, saved = rest[:count], rest[count:]
        kept = [buffer if needed else None for buffer, needed in zip(ctx.buffers, ctx.needs_input_grad[5:], strict=True)]
        before = [None if buffer is None else buffer.total for buffer in kept]
        adds = [total is not None for total in before]
        totals = [
            torch.empty_like(v, memory_format=torch.contiguous_format) if total is None else total
            for v, total in zip(values, before, strict=True)
        ]
        if ctx.backend == "sm90":
            d_query, d_norm_weight = sm90.run_backward(values, query, norm_weight, ctx.eps, saved, gradients[0], totals, adds)
        else:
            d_query, d_norm_weight = _reference_backward(values, query, norm_weight, ctx.eps, gradients[0], totals, adds)
        for buffer, total in zip(kept, totals, strict=True):
            if buffer is not None:
                buffer.total = total
        d_values = [None if buffer is not None else total for buffer, total in zip(ctx.buffers, totals, strict=True)]
        return d_query, d_norm_weight, None, None, None, *d_values


def _reference_backward(
    values: Sequence[Tensor],
    query: Tensor,
    norm_weight: Tensor | None,
    eps: float,
    d_y: Tensor,
    totals: Sequence[Tensor],
    adds: Sequence[bool],
) -> tuple[Tensor, Tensor | None]:
    leaves = [x.detach().requires_grad_() for x in (*values, query, *(() if norm_weight is None else (norm_weight,)))]
    count = len(values)
    with torch.enable_grad():
        y = attention_residual_reference(leaves[:count], leaves[count], leaves[count + 1] if norm_weight is not None else None, eps)
    found = torch.autograd.grad(y, leaves, d_y)
    for total, add, d_value in zip(totals, adds, found, strict=False):
        total.add_(d_value) if add else total.copy_(d_value)
    return found[count], found[count + 1] if norm_weight is not None else None
