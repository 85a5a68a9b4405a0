"""KDA by definition: one token at a time, in plain torch, differentiable, in float32 or float64.

The oracle of every other form, and the decode step. Slow by design; `chunkwise` is the form to train with on a CPU.

    S <- Diag(exp g_t) S ;  S <- S + beta_t k_t (v_t - S^T k_t)^T ;  o_t = scale * S^T q_t        S in [K, V]
"""

import torch
from torch import Tensor

from samite_kernels.kda.documents import Documents


def recurrent_core(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    *,
    scale: float,
    documents: Documents,
    initial_state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Prepared inputs on a flat token axis: q, k, log_decay [N, H, K], v [N, H, V], beta [N, H], one dtype.

    Returns o [N, H, V] and the state after each document, [documents, H, K, V].
    """
    num_heads, key_dim = q.shape[1:]
    value_dim = v.shape[-1]
    outputs: list[Tensor] = []
    states: list[Tensor] = []
    for document in range(documents.count):
        state = q.new_zeros(num_heads, key_dim, value_dim) if initial_state is None else initial_state[document]
        for t in range(documents.offsets[document], documents.offsets[document + 1]):
            state = log_decay[t].exp().unsqueeze(-1) * state
            error = v[t] - torch.einsum("hkv,hk->hv", state, k[t])
            state = state + torch.einsum("hk,hv->hkv", beta[t].unsqueeze(-1) * k[t], error)
            outputs.append(scale * torch.einsum("hkv,hk->hv", state, q[t]))
        states.append(state)
    o = torch.stack(outputs) if outputs else torch.zeros_like(v)
    return o, torch.stack(states)
