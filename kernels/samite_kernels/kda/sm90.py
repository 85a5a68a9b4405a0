# ruff: noqa: ARG001 - operators take their tensors in order, fakes look at shapes only
"""KDA on Hopper: memory and autograd around the CUDA kernels, as two `torch.library` operators.

    forward    prepare (chunk factors, parallel) -> scan (state and outputs, serial over chunks)
    backward   rebuild (factors again) -> reverse scan (gradient of the state) -> gradient (everything of a chunk, parallel) -> reduce

Kept for the backward beside the inputs, per token and head: the state before each chunk in bfloat16 (512 bytes), the values after the delta
rule (256), inverse and scores (128 each). Or, to recompute all that, the few states between segments (`sm90_schedule`). Nothing
synchronises with the host unless `cu_seqlens` lies on the GPU; with it on the CPU, or absent, the operators can be captured in a CUDA graph
after one warm-up call.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from samite_kernels.kda import sm90_launch as kernels
from samite_kernels.kda.documents import find_documents
from samite_kernels.kda.signals import DecayCounts
from samite_kernels.kda.sm90_counts import Tally, counts_of
from samite_kernels.kda.sm90_launch import CHUNK, HEAD_DIM, SQUARE_IMAGE, STATE_IMAGE, TOKEN_IMAGE, fill
from samite_kernels.kda.sm90_pieces import run_forward_in_pieces, wanted_pieces
from samite_kernels.kda.sm90_schedule import KEPT, States, run_backward, run_forward
from samite_kernels.kda.sm90_segments import segments_of, whole_of
from samite_kernels.runtime.tensors import aligned

_KEPT_ELEMENTS = dict(zip(KEPT, (STATE_IMAGE, TOKEN_IMAGE, SQUARE_IMAGE, SQUARE_IMAGE), strict=True))
_ALL_KEPT = sum(_KEPT_ELEMENTS.values())
Forward = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
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
    keep: str,
    count: bool,
) -> Forward:
    """o, final state, what the backward needs, and the sums and maxima of decay signals; the last three empty unless asked for.

    `keep`: "nothing", "all" [tiles, elements] bfloat16, or "ends" [segments - 1, H, K, V] float32, from which the backward recomputes.
    """
    q, k, v, g, beta, A_log, dt_bias = (aligned(x) for x in (q, k, v, g, beta, A_log, dt_bias))
    initial_state = None if initial_state is None else aligned(initial_state)
    documents = find_documents(cu_seqlens, batch=q.shape[0], num_tokens=q.shape[1])
    table = kernels.chunk_table(documents, q.device)
    tiles = table.num_chunks * q.shape[2]
    o, final_state = torch.empty_like(v), _states_like(q, documents.count)
    tally = Tally(q.shape[2] if count else 0, q.device)
    inputs = _addresses(q, k, v, g, beta, A_log, dt_bias, table) | kernels.addresses_of({"o": o})
    inputs |= kernels.addresses_of({"counts": tally.rows}) if count else {}
    numbers = {"num_heads": q.shape[2], "scale": scale, "lower_bound": lower_bound}
    pieces = None if keep == "ends" else wanted_pieces(documents, q.shape[2], q.device)
    segments = segments_of(documents, q.shape[2], q.device) if pieces is None else (whole_of(documents, q.device),)
    states = States.passing(segments, initial_state, final_state)
    if keep == "all":
        kept = torch.empty(tiles, _ALL_KEPT, dtype=torch.bfloat16, device=q.device)
        inputs |= _kept_addresses(kept)
    else:
        kept = states.between if keep == "ends" else q.new_empty((0, _ALL_KEPT))
    if pieces is None:
        run_forward(segments, inputs, numbers, states, prepared=tally.sum_up)
    else:
        run_forward_in_pieces(pieces, segments[0], inputs, numbers, states, prepared=tally.sum_up)
    return o, final_state, kept, *tally.sums


def _kept_addresses(kept: Tensor) -> kernels.Addresses:
    """One array after the other, each over all tiles."""
    addresses, start = {}, kept.data_ptr()
    for name, elements in _KEPT_ELEMENTS.items():
        addresses[name] = start
        start += 2 * elements * kept.shape[0]
    return addresses


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
    keep: str,
    count: bool,
) -> Forward:
    batch, num_tokens, num_heads = q.shape[:3]
    num_documents = batch if cu_seqlens is None else cu_seqlens.shape[0] - 1
    final_state = q.new_empty((num_documents, num_heads, HEAD_DIM, HEAD_DIM), dtype=torch.float32)
    kept: Tensor
    if keep == "ends":
        between = torch.library.get_ctx().new_dynamic_size()
        kept = q.new_empty((between, num_heads, HEAD_DIM, HEAD_DIM), dtype=torch.float32)
    else:
        tiles: Any = 0
        if keep == "all" and cu_seqlens is None:
            tiles = batch * ((num_tokens + CHUNK - 1) // CHUNK) * num_heads
        elif keep == "all":
            tiles = torch.library.get_ctx().new_dynamic_size()
        kept = q.new_empty((tiles, _ALL_KEPT), dtype=torch.bfloat16)
    return torch.empty_like(v.contiguous()), final_state, kept, *Tally(num_heads if count else 0, q.device).sums


def kda_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    initial_state: Tensor | None,
    kept: Tensor,
    d_o: Tensor,
    d_final_state: Tensor | None,
    cu_seqlens: Tensor | None,
    scale: float,
    lower_bound: float,
    keep: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v, g, beta, A_log, dt_bias and the initial state; `kept` as the forward returned it for `keep`."""
    q, k, v, g, beta, d_o, A_log, dt_bias = (aligned(x) for x in (q, k, v, g, beta, d_o, A_log, dt_bias))
    d_final_state = None if d_final_state is None else aligned(d_final_state)
    initial_state = None if initial_state is None else aligned(initial_state)
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
    inputs |= _kept_addresses(kept) if keep == "all" else {}
    inputs |= kernels.addresses_of({"d_o": d_o, "d_q": d_q, "d_k": d_k, "d_v": d_v, "d_g": d_g, "d_beta": d_beta})
    numbers = {"num_heads": q.shape[2], "scale": scale, "lower_bound": lower_bound}
    segments = segments_of(documents, q.shape[2], q.device)
    again = None if keep == "all" else States(first=initial_state, last=d_initial_state, between=kept)
    run_backward(segments, inputs, numbers, States.passing(segments, d_final_state, d_initial_state), forward=again)
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
    initial_state: Tensor | None,
    kept: Tensor,
    d_o: Tensor,
    d_final_state: Tensor | None,
    cu_seqlens: Tensor | None,
    scale: float,
    lower_bound: float,
    keep: str,
) -> Gradients:
    num_documents = q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    d_initial_state = q.new_empty((num_documents, q.shape[2], HEAD_DIM, HEAD_DIM), dtype=torch.float32)
    d_q, d_k, d_v, d_g, d_beta = (torch.empty_like(x.contiguous()) for x in (q, k, v, g, beta))
    return d_q, d_k, d_v, d_g, d_beta, torch.empty_like(A_log), torch.empty_like(dt_bias), d_initial_state


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    q, k, v, g, beta, a_log, dt_bias, initial_state, cu_seqlens, scale, lower_bound, keep, _ = inputs
    _, _, kept, *counts = output
    ctx.save_for_backward(q, k, v, g, beta, a_log, dt_bias, initial_state if keep == "ends" else None, kept, cu_seqlens)
    ctx.mark_non_differentiable(kept, *counts)
    ctx.set_materialize_grads(False)
    ctx.scale, ctx.lower_bound, ctx.has_state, ctx.keep = scale, lower_bound, initial_state is not None, keep


def _backward(ctx: Any, d_o: Tensor | None, d_final_state: Tensor | None, *_: Tensor | None) -> tuple[Tensor | None, ...]:
    return _gradients(_backward_operator, ctx, d_o, d_final_state)


def _gradients(run: Callable[..., Any], ctx: Any, d_o: Tensor | None, d_final_state: Tensor | None) -> tuple[Tensor | None, ...]:
    q, k, v, g, beta, a_log, dt_bias, state, kept, cu_seqlens = ctx.saved_tensors
    d_o = torch.zeros_like(v) if d_o is None else d_o
    gradients = run(q, k, v, g, beta, a_log, dt_bias, state, kept, d_o, d_final_state, cu_seqlens, ctx.scale, ctx.lower_bound, ctx.keep)
    return (*gradients[:7], gradients[7] if ctx.has_state else None, None, None, None, None, None)


_forward_operator.register_autograd(_backward, setup_context=_setup_context)


class _Eager(torch.autograd.Function):
    """The same without the operator registry, which costs more host time than a short sequence takes on the device."""

    @staticmethod
    def forward(*inputs: Any) -> Forward:
        return kda_forward(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        _setup_context(ctx, inputs, output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        return _gradients(kda_backward, ctx, gradients[0], gradients[1])


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
    recompute: bool = False,
) -> tuple[Tensor, Tensor]:
    """As `chunk_kda`, on a Hopper device with 128 channels and bfloat16 q, k, v."""
    return _run((q, k, v, g, beta, A_log, dt_bias), scale, lower_bound, cu_seqlens, initial_state, recompute=recompute)[:2]


def counted_chunk_kda_sm90(
    *tensors: Tensor, scale: float, lower_bound: float, cu_seqlens: Tensor | None, initial_state: Tensor | None, recompute: bool = False
) -> tuple[Tensor, Tensor, DecayCounts]:
    """The same with the decay signals, which the prepare kernel counts beside its work."""
    q = tensors[0]
    o, state, *sums = _run(tensors, scale, lower_bound, cu_seqlens, initial_state, recompute=recompute, count=True)
    return o, state, counts_of(*sums, num_tokens=q.shape[0] * q.shape[1], num_heads=q.shape[2])


def _run(
    tensors: tuple[Tensor, ...],
    scale: float,
    lower_bound: float,
    cu_seqlens: Tensor | None,
    initial_state: Tensor | None,
    *,
    recompute: bool,
    count: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """o, final state, and the sums and maxima of decay signals."""
    q, k, v, g, beta, a_log, dt_bias = tensors
    inputs = (q, k, v, g.to(torch.bfloat16), beta.to(torch.bfloat16), a_log.float(), dt_bias.float())
    state = None if initial_state is None else initial_state.float()
    save = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (*inputs, state))
    keep = "nothing" if not save else "ends" if recompute else "all"
    run = _forward_operator if torch.compiler.is_compiling() else _Eager.apply if save else kda_forward
    o, final_state, _, sums, maxima = run(*inputs, state, cu_seqlens, scale, lower_bound, keep, count)
    return o, final_state, sums, maxima


def _addresses(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, A_log: Tensor, dt_bias: Tensor, table: kernels.ChunkTable
) -> kernels.Addresses:
    tensors = {"q": q, "k": k, "v": v, "g": g, "beta": beta, "a_log": A_log, "dt_bias": dt_bias, "chunks": table.chunks}
    return kernels.addresses_of(tensors)
