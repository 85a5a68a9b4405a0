# ruff: noqa: ARG001 - operators take their tensors in order, fakes look at shapes only
"""The decode kernel on Hopper as one `torch.library` operator without a gradient. Called by `decode`, which chooses it."""

import torch
from torch import Tensor

from samite_kernels.kda.documents import Documents, find_documents
from samite_kernels.kda.sm90_launch import HEAD_DIM, addresses_of, block, fill
from samite_kernels.runtime.launch import declare
from samite_kernels.runtime.tables import shared_table
from samite_kernels.runtime.tensors import aligned

DecodeArguments = block(
    "DecodeArguments",
    "q k v g beta a_log dt_bias initial_state offsets final_state o",
    "num_documents num_heads",
    "scale lower_bound",
)
"""Mirrors `decode::Arguments` of csrc/sm90_kda_decode.cu; a test compares them."""
_decode = declare("sm90_kda_decode")


@torch.library.custom_op("samite::kda_sm90_decode", mutates_args=(), device_types=("cuda", "cpu"))
def kda_decode(
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
) -> tuple[Tensor, Tensor]:
    """o like v, and the state after each document [N, H, 128, 128] float32; bfloat16 tokens, float32 parameters and states."""
    q, k, v, g, beta = (aligned(x.to(torch.bfloat16)) for x in (q, k, v, g, beta))
    documents = find_documents(cu_seqlens, batch=q.shape[0], num_tokens=q.shape[1])
    num_heads = q.shape[2]
    o = torch.empty_like(v)
    final_state = torch.empty(documents.count, num_heads, HEAD_DIM, HEAD_DIM, dtype=torch.float32, device=q.device)
    state = None if initial_state is None else aligned(initial_state.float())
    tensors = {"q": q, "k": k, "v": v, "g": g, "beta": beta, "a_log": aligned(A_log.float()), "initial_state": state}
    tensors |= {"dt_bias": aligned(dt_bias.float()), "offsets": _offsets(documents, q.device), "final_state": final_state, "o": o}
    numbers = {"num_documents": documents.count, "num_heads": num_heads, "scale": scale, "lower_bound": lower_bound}
    _decode(fill(DecodeArguments, addresses_of(tensors), **numbers), q.device)
    return o, final_state


@kda_decode.register_fake
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
) -> tuple[Tensor, Tensor]:
    count = q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    state = q.new_empty((count, q.shape[2], HEAD_DIM, HEAD_DIM), dtype=torch.float32)
    return torch.empty_like(v, memory_format=torch.contiguous_format), state


@shared_table
def _offsets(documents: Documents, device: torch.device) -> Tensor:
    return torch.tensor(documents.offsets, dtype=torch.int32, device=device)
