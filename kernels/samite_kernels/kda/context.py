"""The context-parallel message: what a segment of a sequence does to the state that enters it.

A rank's segment maps S to M S + b. Ranks exchange (M, b) once, fold what lies before them, and run their segment from there.
The backward needs only M transposed and the segment's own state gradient: autograd through `fold_segments` gives exactly that.
"""

import torch
from torch import Tensor

from samite_kernels.kda import contract
from samite_kernels.kda.chunkwise import chunkwise_core
from samite_kernels.kda.dispatch import explain
from samite_kernels.kda.documents import find_documents
from samite_kernels.kda.gate import bounded_log_decay, compute_dtype, l2_normalize
from samite_kernels.kda.sm90 import chunk_kda_sm90


def segment_map(
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    *,
    lower_bound: float = -5.0,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """(M [N, H, K, K], b [N, H, K, V]), float32, for each of the N documents (or batch rows) of the segment.

    Raw inputs as `chunk_kda`. State after the document = M @ state before + b. Across ranks only the last local document
    matters; when it begins on this rank, nothing from before may pass and its M is to be ignored.
    """
    contract.check_lower_bound(lower_bound)
    contract.check_tensors(k, k, v, g, beta)
    num_heads, key_dim = k.shape[2:]
    contract.check_gate_parameters(A_log, dt_bias, q=k)
    documents = find_documents(cu_seqlens, batch=k.shape[0], num_tokens=k.shape[1])
    value_dim = v.shape[-1]
    identity = torch.eye(key_dim, dtype=torch.float32, device=k.device)
    if explain(k, v, lower_bound=lower_bound).backend == "sm90":
        # Twice through the kernels: once with an identity to start from and no values, once with the values.
        start = identity.expand(documents.count, num_heads, key_dim, key_dim).contiguous()

        def last_state(values: Tensor, initial_state: Tensor | None) -> Tensor:
            _, state = chunk_kda_sm90(
                k,
                k,
                values,
                g,
                beta,
                A_log,
                dt_bias,
                scale=1.0,
                lower_bound=lower_bound,
                cu_seqlens=cu_seqlens,
                initial_state=initial_state,
            )
            return state

        return last_state(torch.zeros_like(v), start), last_state(v, None)
    dtype = compute_dtype(k, v, g, beta)
    # Columns of the state never mix, so the transition rides along as K more of them: no values, and an identity to start from.
    start = identity.to(dtype).expand(documents.count, num_heads, key_dim, key_dim)
    start = torch.cat([start.new_zeros(documents.count, num_heads, key_dim, value_dim), start], -1)
    key = l2_normalize(k.to(dtype)).flatten(0, 1)
    _, final = chunkwise_core(
        key,
        key,
        torch.nn.functional.pad(v.to(dtype), (0, key_dim)).flatten(0, 1),
        bounded_log_decay(g.to(dtype), A_log, dt_bias, lower_bound=lower_bound).flatten(0, 1),
        beta.to(dtype).sigmoid().flatten(0, 1),
        scale=1.0,
        documents=documents,
        initial_state=start,
    )
    return final[..., value_dim:], final[..., :value_dim]


def compose_segments(later: tuple[Tensor, Tensor], earlier: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The map of two neighbouring segments together; associative, so ranks may combine in any tree."""
    later_map, later_state = later
    earlier_map, earlier_state = earlier
    return later_map @ earlier_map, later_map @ earlier_state + later_state


def fold_segments(maps: Tensor, states: Tensor, initial_state: Tensor | None = None) -> Tensor:
    """The state that enters after the given segments: maps [R, ..., K, K], states [R, ..., K, V], earliest first."""
    state = torch.zeros_like(states[0]) if initial_state is None else initial_state
    for segment_matrix, segment_state in zip(maps, states, strict=True):
        state = segment_matrix @ state + segment_state
    return state
