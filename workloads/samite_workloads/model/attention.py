"""Softmax attention within the documents of a packed row, causal or full, behind one seam.

On a GPU in bfloat16 this is torch's variable-length flash attention; elsewhere one exact call per document (or per group of equally long
ones). Called by the MLA layer and by the vision tower.
"""

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def document_attention(
    q_THK: Tensor,
    k_THK: Tensor,
    v_THV: Tensor,
    *,
    offsets: Sequence[int],
    cu_seqlens: Tensor,
    causal: bool,
) -> Tensor:
    """softmax(K^-1/2 q k^T + mask) v with a mask of documents (and of the future, if causal). Returns [T, H, V] in the type of v.

    `offsets` are the N+1 document borders on the host, `cu_seqlens` the same as int32 on the device of q. Widths K and V may differ.
    """
    width, value_width = q_THK.shape[-1], v_THV.shape[-1]
    if value_width < width:
        # Every fast backend wants one width for all three; zeros change nothing and are half the price of the plain path.
        v_THV = functional.pad(v_THV, (0, width - value_width))
    if q_THK.is_cuda and q_THK.dtype in (torch.bfloat16, torch.float16):
        longest = max(end - start for start, end in pairwise(offsets))
        attended = _varlen(q_THK, k_THK, v_THV, (cu_seqlens, longest), causal)
    else:
        attended = _by_length(q_THK, k_THK, v_THV, offsets, causal)
    return attended[..., :value_width]


def _by_length(q_THK: Tensor, k_THK: Tensor, v_THV: Tensor, offsets: Sequence[int], causal: bool) -> Tensor:
    """Runs of neighbouring documents of one length share a call."""
    pieces = []
    for start, length, count in _runs(offsets):
        stop = start + length * count
        q, k, v = (x[start:stop].unflatten(0, (count, length)).transpose(1, 2) for x in (q_THK, k_THK, v_THV))
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        pieces.append(attended.transpose(1, 2).flatten(0, 1))
    return torch.cat(pieces) if pieces else v_THV


def _runs(offsets: Sequence[int]) -> list[tuple[int, int, int]]:
    """(start, length, count) of runs of equally long documents, empty ones skipped."""
    runs: list[tuple[int, int, int]] = []
    for start, end in pairwise(offsets):
        if end == start:
            continue
        if runs and runs[-1][1] == end - start:
            first, length, count = runs[-1]
            runs[-1] = (first, length, count + 1)
        else:
            runs.append((start, end - start, 1))
    return runs


def _varlen(q_THK: Tensor, k_THK: Tensor, v_THV: Tensor, documents: tuple[Tensor, int], causal: bool) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    cu_seqlens, longest = documents
    attended: Any = varlen_attn(
        q_THK.contiguous(), k_THK.contiguous(), v_THV.contiguous(), cu_seqlens, cu_seqlens, longest, longest, **_direction(causal)
    )
    return attended


@cache
def _direction(causal: bool) -> dict[str, Any]:
    """The causal switch of `varlen_attn`, which changed its name between torch versions."""
    import inspect

    from torch.nn.attention.varlen import varlen_attn

    if "is_causal" in inspect.signature(varlen_attn).parameters:
        return {"is_causal": causal}
    return {"window_size": (-1, 0) if causal else (-1, -1)}
