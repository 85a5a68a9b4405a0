"""`chunk_kda`: delta attention over whole sequences, forward and backward, from a layer's raw projections.

Called by the model. Checks the contract, finds the documents, asks `dispatch`, hands over. Decode is in `decode`, context
parallelism in `context`.

State layout: [N, H, K, V], key channel first, float32; one state per document (per batch row without `cu_seqlens`).
A state kept as [N, H, V, K] is converted with `.transpose(-1, -2)`.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from samite_kernels.kda import contract, dispatch
from samite_kernels.kda.chunkwise import chunkwise_core
from samite_kernels.kda.documents import Documents, check_cu_seqlens_form, find_documents
from samite_kernels.kda.fla import chunk_kda_fla
from samite_kernels.kda.gate import bounded_log_decay, compute_dtype, l2_normalize
from samite_kernels.kda.signals import DecayCounts, decay_counts
from samite_kernels.kda.sm90 import chunk_kda_sm90, counted_chunk_kda_sm90


def chunk_kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    *,
    scale: float | None = None,
    lower_bound: float = -5.0,
    cu_seqlens: Tensor | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    recompute_states: bool = False,
    backend: str | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Kimi Delta Attention with the lower-bounded gate of K3 (report section on KDA).

    q, k [B, T, H, K] and v [B, T, H, V] as they come out of the short convolution: not normalised. g [B, T, H, K] is the gate
    before `dt_bias`, beta [B, T, H] the write strength before its sigmoid. A_log [H], dt_bias [H * K] or [H, K].
    `scale` defaults to K ** -0.5. `cu_seqlens` [N + 1] packs N documents into one row (B = 1); given on the CPU it costs no
    synchronisation. `initial_state` [N, H, K, V]. `recompute_states` trades time in the backward for memory between the two (sm90
    keeps 1 KiB per token and head, with it next to nothing; the other backends recompute always or never).

    Returns o [B, T, H, V] in the dtype of v, and the final state [N, H, K, V] (float32; None unless asked for).
    Raises ValueError for inputs outside the contract and for a forced backend that can't run.

        o, state = chunk_kda(q, k, v, g, beta, A_log, dt_bias, output_final_state=True)
    """
    tensors = (q, k, v, g, beta, A_log, dt_bias)
    _check_raw(tensors, lower_bound=lower_bound, cu_seqlens=cu_seqlens, initial_state=initial_state)
    options = _Options(_scale_of(scale, q), lower_bound, cu_seqlens, initial_state)
    choice = dispatch.explain(q, v, lower_bound=lower_bound, backend=backend)
    if choice.backend == "sm90":
        o, final_state = chunk_kda_sm90(*tensors, **options._asdict(), recompute=recompute_states)
    else:
        run = chunk_kda_fla if choice.backend == "fla" else _chunk_kda_reference
        o, final_state = run(*tensors, **options._asdict())
    return o, final_state if output_final_state else None


def counted_chunk_kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    *,
    scale: float | None = None,
    lower_bound: float = -5.0,
    cu_seqlens: Tensor | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    recompute_states: bool = False,
    backend: str | None = None,
) -> tuple[Tensor, Tensor | None, DecayCounts]:
    """`chunk_kda` and the decay signals of its call, for sampled steps: chunks of 64, tiles of 16 with their start as anchor.

    On sm90 the kernels count beside their work: alarms (lossy flushes, values that are not finite) and beta everywhere, the rest in some
    chunks of a head (`sm90_counts`), as the totals say. Elsewhere `decay_counts` makes a pass of its own over everything.
    """
    tensors = (q, k, v, g, beta, A_log, dt_bias)
    _check_raw(tensors, lower_bound=lower_bound, cu_seqlens=cu_seqlens, initial_state=initial_state)
    options = _Options(_scale_of(scale, q), lower_bound, cu_seqlens, initial_state)
    if dispatch.explain(q, v, lower_bound=lower_bound, backend=backend).backend == "sm90":
        o, state, counts = counted_chunk_kda_sm90(*tensors, **options._asdict(), recompute=recompute_states)
        return o, state if output_final_state else None, counts
    o, last = chunk_kda(*tensors, **options._asdict(), output_final_state=output_final_state, backend=backend)
    counts = decay_counts(
        q, k, g, beta, A_log, dt_bias, lower_bound=lower_bound, cu_seqlens=cu_seqlens, anchor="start", scale=options.scale
    )
    return o, last, counts


class _Options(NamedTuple):
    """What every backend takes beside its tensors."""

    scale: float
    lower_bound: float
    cu_seqlens: Tensor | None
    initial_state: Tensor | None


def _scale_of(scale: float | None, q: Tensor) -> float:
    return float(q.shape[-1] ** -0.5) if scale is None else scale


def _check_raw(
    tensors: tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor],
    *,
    lower_bound: float,
    cu_seqlens: Tensor | None,
    initial_state: Tensor | None,
) -> None:
    q, k, v, g, beta, a_log, dt_bias = tensors
    contract.check_lower_bound(lower_bound)
    contract.check_tensors(q, k, v, g, beta)
    contract.check_gate_parameters(a_log, dt_bias, q=q)
    if cu_seqlens is not None:
        check_cu_seqlens_form(cu_seqlens, batch=q.shape[0])
    num_documents = q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    contract.check_initial_state(initial_state, wanted=(num_documents, q.shape[2], q.shape[3], v.shape[3]), q=q)


def _chunk_kda_reference(
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
    documents = find_documents(cu_seqlens, batch=q.shape[0], num_tokens=q.shape[1])
    dtype = compute_dtype(q, k, v, g, beta, initial_state)
    o, final_state = _on_tokens(
        l2_normalize(q.to(dtype)),
        l2_normalize(k.to(dtype)),
        v.to(dtype),
        bounded_log_decay(g.to(dtype), A_log, dt_bias, lower_bound=lower_bound),
        beta.to(dtype).sigmoid(),
        scale=scale,
        documents=documents,
        initial_state=initial_state,
    )
    return o.to(v.dtype), final_state


def chunk_kda_core(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    *,
    scale: float | None = None,
    lower_bound: float = -5.0,
    cu_seqlens: Tensor | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    check_decay: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """The same for prepared inputs: q and k normalised, `log_decay` [B, T, H, K] in [lower_bound, 0], beta in [0, 1].

    The tiles are safe only within the bound. `check_decay=True` looks at the values (one synchronisation on a GPU) and raises
    ValueError with the first offender. Plain torch on every device.
    """
    contract.check_lower_bound(lower_bound)
    contract.check_tensors(q, k, v, log_decay, beta)
    documents = find_documents(cu_seqlens, batch=q.shape[0], num_tokens=q.shape[1])
    contract.check_initial_state(initial_state, wanted=_state_shape(q, v, documents), q=q)
    if check_decay:
        _check_log_decay(log_decay, lower_bound)
    dtype = compute_dtype(q, k, v, log_decay, beta, initial_state)
    o, final_state = _on_tokens(
        q.to(dtype),
        k.to(dtype),
        v.to(dtype),
        log_decay.to(dtype),
        beta.to(dtype),
        scale=q.shape[-1] ** -0.5 if scale is None else scale,
        documents=documents,
        initial_state=initial_state,
    )
    return o.to(v.dtype), final_state if output_final_state else None


def _state_shape(q: Tensor, v: Tensor, documents: Documents) -> tuple[int, int, int, int]:
    return documents.count, q.shape[2], q.shape[3], v.shape[3]


def _on_tokens(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    *,
    scale: float,
    documents: Documents,
    initial_state: Tensor | None,
) -> tuple[Tensor, Tensor]:
    o, final_state = chunkwise_core(
        q.flatten(0, 1),
        k.flatten(0, 1),
        v.flatten(0, 1),
        log_decay.flatten(0, 1),
        beta.flatten(0, 1),
        scale=scale,
        documents=documents,
        initial_state=None if initial_state is None else initial_state.to(q.dtype),
    )
    return o.view(v.shape), final_state


def _check_log_decay(log_decay: Tensor, lower_bound: float) -> None:
    outside = torch.isnan(log_decay) | (log_decay < lower_bound) | (log_decay > 0)
    if bool(outside.any()):
        place = outside.nonzero()[0].tolist()
        found = float(log_decay[tuple(place)])
        raise ValueError(
            f"log_decay must lie in [{lower_bound:g}, 0], found {found:g} at [b, t, h, k] = {place}: "
            "pass the raw gate to chunk_kda, which applies the bound"
        )
