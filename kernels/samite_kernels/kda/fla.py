"""KDA through flash-linear-attention (Triton), for CUDA devices that ours don't cover. Imported only when dispatch chose it."""

import torch
from torch import Tensor

from samite_kernels.kda.documents import find_documents


def chunk_kda_fla(
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
    """As `chunk_kda`; always returns the final state."""
    from fla.ops.kda import chunk_kda

    find_documents(cu_seqlens, batch=q.shape[0], num_tokens=q.shape[1])  # raises for offsets that would read elsewhere
    offsets = None if cu_seqlens is None else cu_seqlens.to(q.device, torch.int64).contiguous()
    o, final_state = chunk_kda(
        q,
        k,
        v,
        g,
        beta,
        scale=scale,
        initial_state=None if initial_state is None else initial_state.float(),
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
        use_gate_in_kernel=True,
        use_beta_sigmoid_in_kernel=True,
        safe_gate=True,
        lower_bound=lower_bound,
        cu_seqlens=offsets,
        A_log=A_log.float(),
        dt_bias=dt_bias.float().flatten(),
    )
    return o, final_state
