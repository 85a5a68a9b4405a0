# ruff: noqa: ARG001 - operators take their tensors in order, fakes look at shapes only
"""KDA on Hopper: memory and autograd around the CUDA kernels, as two `torch.library` operators.

    forward    prepare (chunk factors, parallel) -> scan (state and outputs, serial over chunks)
    backward   prepare -> reverse scan (gradient of the state) -> gradient (everything of a chunk, parallel) -> reduce

Saved for the backward: the inputs, the state before each chunk in bfloat16 (512 bytes per token and head) and the values after the
delta rule (256 bytes). Nothing synchronises with the host unless `cu_seqlens` lies on the GPU; with it on the CPU, or absent, the
operators can be captured in a CUDA graph after one warm-up call.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from samite_kernels.kda import sm90_launch as kernels
from samite_kernels.kda.documents import find_documents
from samite_kernels.kda.sm90_launch import CHUNK, HEAD_DIM, STATE_IMAGE, TOKEN_IMAGE, fill
from samite_kernels.kda.sm90_schedule import run_backward, run_forward, segments_of

Gradients = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def kda_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    scale: float,
    lower_bound: float,
    save: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """o, final state, and with `save` the states and values that the backward needs (else two empty tensors)."""
    q, k, v, g, beta = (x.contiguous() for x in (q, k, v, g, beta))
    A_log, dt_bias = A_log.contiguous(), dt_bias.contiguous()
    initial_state = None if initial_state is None else initial_state.contiguous()
    documents = find_documents(cu_seqlens, batch=q.shape[0], num_tokens=q.shape[1])
    table = kernels.chunk_table(documents, q.device)
    tiles = table.num_chunks * q.shape[2]
    o, final_state = torch.empty_like(v), _states_like(q, documents.count)
    states = _images(q, tiles if save else 0, STATE_IMAGE)
    v_new = _images(q, tiles if save else 0, TOKEN_IMAGE)
    inputs = _addresses(q, k, v, g, beta, A_log, dt_bias, table)
    inputs |= kernels.addresses_of({"o": o, "states": states, "v_new": v_new} if save else {"o": o})
    numbers = {"num_heads": q.shape[2], "scale": scale, "lower_bound": lower_bound}
    run_forward(segments_of(documents, q.shape[2], q.device), inputs, numbers, initial_state=initial_state, final_state=final_state)
    return o, final_state, states, v_new


_forward_operator = torch.library.custom_op("samite::kda_sm90_forward", kda_forward, mutates_args=(), device_types="cuda")


@_forward_operator.register_fake
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    scale: float,
    lower_bound: float,
    save: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    batch, num_tokens, num_heads = q.shape[:3]
    num_documents = batch if cu_seqlens is None else cu_seqlens.shape[0] - 1
    final_state = q.new_empty((num_documents, num_heads, HEAD_DIM, HEAD_DIM), dtype=torch.float32)
    tiles: Any = 0
    if save and cu_seqlens is None:
        tiles = batch * ((num_tokens + CHUNK - 1) // CHUNK) * num_heads
    elif save:
        tiles = torch.library.get_ctx().new_dynamic_size()
    return torch.empty_like(v.contiguous()), final_state, q.new_empty((tiles, STATE_IMAGE)), q.new_empty((tiles, TOKEN_IMAGE))


def kda_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    states: Tensor,
    v_new: Tensor,
    d_o: Tensor,
    d_final_state: Tensor | None,
    cu_seqlens: Tensor | None,
    scale: float,
    lower_bound: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v, g, beta, A_log, dt_bias and the initial state."""
    q, k, v, g, beta, d_o = (x.contiguous() for x in (q, k, v, g, beta, d_o))
    A_log, dt_bias = A_log.contiguous(), dt_bias.contiguous()
    d_final_state = None if d_final_state is None else d_final_state.contiguous()
    documents = find_documents(cu_seqlens, batch=q.shape[0], num_tokens=q.shape[1])
    table = kernels.chunk_table(documents, q.device)
    tiles = table.num_chunks * q.shape[2]
    d_initial_state = _states_like(q, documents.count)
    d_q, d_k, d_v, d_g, d_beta = (torch.empty_like(x) for x in (q, k, v, g, beta))
    d_a_log_parts = torch.empty(tiles, dtype=torch.float32, device=q.device)
    d_dt_bias_parts = torch.empty(tiles, HEAD_DIM, dtype=torch.float32, device=q.device)
    d_a_log, d_dt_bias = torch.empty_like(A_log), torch.empty_like(dt_bias)
    parts = kernels.addresses_of({"d_a_log_parts": d_a_log_parts, "d_dt_bias_parts": d_dt_bias_parts})
    inputs = _addresses(q, k, v, g, beta, A_log, dt_bias, table) | parts
    inputs |= kernels.addresses_of({"states": states, "v_new": v_new, "d_o": d_o})
    inputs |= kernels.addresses_of({"d_q": d_q, "d_k": d_k, "d_v": d_v, "d_g": d_g, "d_beta": d_beta})
    numbers = {"num_heads": q.shape[2], "scale": scale, "lower_bound": lower_bound}
    segments = segments_of(documents, q.shape[2], q.device)
    run_backward(segments, inputs, numbers, d_final_state=d_final_state, d_initial_state=d_initial_state)
    sums = parts | kernels.addresses_of({"d_a_log": d_a_log, "d_dt_bias": d_dt_bias})
    kernels.reduce(fill(kernels.ReduceArguments, sums, num_chunks=table.num_chunks, num_heads=q.shape[2]), q.device)
    return d_q, d_k, d_v, d_g, d_beta, d_a_log, d_dt_bias, d_initial_state


_backward_operator = torch.library.custom_op("samite::kda_sm90_backward", kda_backward, mutates_args=(), device_types="cuda")


@_backward_operator.register_fake
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    states: Tensor,
    v_new: Tensor,
    d_o: Tensor,
    d_final_state: Tensor | None,
    cu_seqlens: Tensor | None,
    scale: float,
    lower_bound: float,
) -> Gradients:
    num_documents = q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    d_initial_state = q.new_empty((num_documents, q.shape[2], HEAD_DIM, HEAD_DIM), dtype=torch.float32)
    d_q, d_k, d_v, d_g, d_beta = (torch.empty_like(x.contiguous()) for x in (q, k, v, g, beta))
    return d_q, d_k, d_v, d_g, d_beta, torch.empty_like(A_log), torch.empty_like(dt_bias), d_initial_state


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    q, k, v, g, beta, a_log, dt_bias, initial_state, cu_seqlens, scale, lower_bound, _ = inputs
    _, _, states, v_new = output
    ctx.save_for_backward(q, k, v, g, beta, a_log, dt_bias, states, v_new, cu_seqlens)
    ctx.mark_non_differentiable(states, v_new)
    ctx.set_materialize_grads(False)
    ctx.scale, ctx.lower_bound, ctx.has_state = scale, lower_bound, initial_state is not None


def _backward(ctx: Any, d_o: Tensor | None, d_final_state: Tensor | None, *_: Tensor | None) -> tuple[Tensor | None, ...]:
    return _gradients(_backward_operator, ctx, d_o, d_final_state)


def _gradients(run: Callable[..., Any], ctx: Any, d_o: Tensor | None, d_final_state: Tensor | None) -> tuple[Tensor | None, ...]:
    q, k, v, g, beta, a_log, dt_bias, states, v_new, cu_seqlens = ctx.saved_tensors
    d_o = torch.zeros_like(v) if d_o is None else d_o
    gradients = run(q, k, v, g, beta, a_log, dt_bias, states, v_new, d_o, d_final_state, cu_seqlens, ctx.scale, ctx.lower_bound)
    return (*gradients[:7], gradients[7] if ctx.has_state else None, None, None, None, None)


_forward_operator.register_autograd(_backward, setup_context=_setup_context)


class _Eager(torch.autograd.Function):
    """The same without the operator registry, which costs more host time than a short sequence takes on the device."""

    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return kda_forward(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        _setup_context(ctx, inputs, output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        return _gradients(kda_backward, ctx, gradients[0], gradients[1])


def _images(like: Tensor, tiles: int, elements: int) -> Tensor:
    return torch.empty(tiles, elements, dtype=torch.bfloat16, device=like.device)


def _states_like(q: Tensor, num_documents: int) -> Tensor:
    return torch.empty(num_documents, q.shape[2], HEAD_DIM, HEAD_DIM, dtype=torch.float32, device=q.device)


def chunk_kda_sm90(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    *,
    scale: float,
    lower_bound: float,
    cu_seqlens: Tensor | None,
    initial_state: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """As `chunk_kda`, on a Hopper device with 128 channels and bfloat16 q, k, v."""
    inputs = (q, k, v, g.to(torch.bfloat16), beta.to(torch.bfloat16), A_log.float(), dt_bias.float())
    state = None if initial_state is None else initial_state.float()
    save = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (*inputs, state))
    arguments = (*inputs, state, cu_seqlens, scale, lower_bound, save)
    if torch.compiler.is_compiling():
        o, final_state, _, _ = _forward_operator(*arguments)
    elif save:
        o, final_state, _, _ = _Eager.apply(*arguments)
    else:
        o, final_state, _, _ = kda_forward(*arguments)
    return o, final_state


def _addresses(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, A_log: Tensor, dt_bias: Tensor, table: kernels.ChunkTable
) -> kernels.Addresses:
    tensors = {"q": q, "k": k, "v": v, "g": g, "beta": beta, "a_log": A_log, "dt_bias": dt_bias, "chunks": table.chunks}
    return kernels.addresses_of(tensors)
