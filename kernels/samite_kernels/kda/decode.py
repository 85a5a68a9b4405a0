"""`recurrent_kda`: one token after another. What decoding calls with T = 1, and the definition that everything is tested against.

The kernel has no gradient: calls that need one run in plain torch. `SAMITE_KERNELS_DECODE` forces either.
"""

import torch
from torch import Tensor

from samite_kernels.kda import contract
from samite_kernels.kda.decode_sm90 import kda_decode
from samite_kernels.kda.documents import find_documents
from samite_kernels.kda.gate import bounded_log_decay, compute_dtype, l2_normalize
from samite_kernels.kda.reference import recurrent_core
from samite_kernels.kda.sm90_launch import HEAD_DIM
from samite_kernels.runtime.choice import Choice, choose
from samite_kernels.runtime.launch import hopper_obstacle

VARIABLE = "SAMITE_KERNELS_DECODE"


def recurrent_kda(
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
) -> tuple[Tensor, Tensor | None]:
    """Arguments, result and errors as `chunk_kda`; cost grows with T one token at a time.

    o, state = recurrent_kda(q, k, v, g, beta, A_log, dt_bias, initial_state=state, output_final_state=True)
    """
    contract.check_lower_bound(lower_bound)
    contract.check_tensors(q, k, v, g, beta)
    num_heads, key_dim = q.shape[2:]
    contract.check_gate_parameters(A_log, dt_bias, q=q)
    documents = find_documents(cu_seqlens, batch=q.shape[0], num_tokens=q.shape[1])
    contract.check_initial_state(initial_state, wanted=(documents.count, num_heads, key_dim, v.shape[3]), q=q)
    scale = key_dim**-0.5 if scale is None else scale
    tensors = (q, k, v, g, beta, A_log, dt_bias, *(() if initial_state is None else (initial_state,)))
    needs_gradient = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    if explain_decode(q, v, needs_gradient=needs_gradient).backend == "sm90":
        o, state = kda_decode(q, k, v, g, beta, A_log, dt_bias, initial_state, cu_seqlens, scale, lower_bound)
        return o, state if output_final_state else None
    dtype = compute_dtype(q, k, v, g, beta, initial_state)
    o, final_state = recurrent_core(
        l2_normalize(q.to(dtype)).flatten(0, 1),
        l2_normalize(k.to(dtype)).flatten(0, 1),
        v.to(dtype).flatten(0, 1),
        bounded_log_decay(g.to(dtype), A_log, dt_bias, lower_bound=lower_bound).flatten(0, 1),
        beta.to(dtype).sigmoid().flatten(0, 1),
        scale=scale,
        documents=documents,
        initial_state=None if initial_state is None else initial_state.to(dtype),
    )
    return o.view(v.shape).to(v.dtype), final_state if output_final_state else None


def explain_decode(q: Tensor, v: Tensor, *, needs_gradient: bool = False) -> Choice:
    """Which backend `recurrent_kda` takes for such inputs, and why. Raises ValueError when a forced kernel can't run."""
    return choose("recurrent KDA", VARIABLE, _obstacle(q, v, needs_gradient=needs_gradient))


def _obstacle(q: Tensor, v: Tensor, *, needs_gradient: bool) -> str | None:
    if needs_gradient:
        return "a gradient is asked for, it has none"
    if q.dtype != torch.bfloat16 or v.dtype != torch.bfloat16:
        return f"q is {q.dtype} and v is {v.dtype}, it needs bfloat16"
    if q.shape[-1] != HEAD_DIM or v.shape[-1] != HEAD_DIM:
        return f"head dims are K={q.shape[-1]}, V={v.shape[-1]}, it needs {HEAD_DIM} and {HEAD_DIM}"
    return hopper_obstacle(q.device)
