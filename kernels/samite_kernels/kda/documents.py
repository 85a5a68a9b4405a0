"""Where documents begin and end in a packed row: checked once, then a value that every backend reads.

Called by the chunked and recurrent entry points. A batch without `cu_seqlens` is a set of documents of equal length.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor

_INTEGER_TYPES = (torch.int32, torch.int64)


@dataclass(frozen=True)
class Documents:
    """Token offsets of every document in the flattened `[B * T]` token axis; `offsets[i] <= offsets[i + 1]`."""

    offsets: tuple[int, ...]

    @property
    def count(self) -> int:
        """Number of documents, empty ones included."""
        return len(self.offsets) - 1

    @property
    def num_tokens(self) -> int:
        """Tokens in all documents together."""
        return self.offsets[-1]

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """Tokens per document."""
        return tuple(end - start for start, end in pairwise(self.offsets))

    def num_chunks(self, chunk_size: int) -> tuple[int, ...]:
        """Chunks per document; the last one of a document may be partly filled."""
        return tuple(-(-length // chunk_size) for length in self.lengths)


def find_documents(cu_seqlens: Tensor | None, *, batch: int, num_tokens: int) -> Documents:
    """The documents of a `[batch, num_tokens]` call. Reads `cu_seqlens` on the host.

    Raises ValueError when `cu_seqlens` isn't a rising list of offsets from 0 to `num_tokens`, or the batch isn't 1.
    """
    if cu_seqlens is None:
        return Documents(tuple(index * num_tokens for index in range(batch + 1)))
    check_cu_seqlens_form(cu_seqlens, batch=batch)
    offsets = tuple(int(offset) for offset in cu_seqlens.tolist())
    if offsets[0] != 0:
        raise ValueError(f"cu_seqlens must start at 0, found {offsets[0]}: give the offsets of all documents of the row")
    for index, (start, end) in enumerate(pairwise(offsets)):
        if end < start:
            raise ValueError(
                f"cu_seqlens must not fall, found {start} then {end} at index {index + 1}: give cumulative offsets, not lengths"
            )
    if offsets[-1] != num_tokens:
        raise ValueError(
            f"cu_seqlens must end at the number of tokens, {num_tokens}, found {offsets[-1]}: cut the row or add the missing document"
        )
    return Documents(offsets)


def check_cu_seqlens_form(cu_seqlens: Tensor, *, batch: int) -> None:
    """The checks that need no look at the values."""
    if not isinstance(cu_seqlens, Tensor):
        raise ValueError(f"cu_seqlens must be a tensor, found {type(cu_seqlens).__name__}: give torch.tensor(...) on the CPU")
    if cu_seqlens.device.type == "meta":
        raise ValueError("cu_seqlens must hold values, found a tensor on meta: give it on the CPU")
    if cu_seqlens.dtype not in _INTEGER_TYPES:
        raise ValueError(f"cu_seqlens must be int32 or int64, found {cu_seqlens.dtype}: convert it with .to(torch.int32)")
    if cu_seqlens.dim() != 1 or cu_seqlens.numel() < 2:
        raise ValueError(
            f"cu_seqlens must be one-dimensional with at least 2 entries, found shape {tuple(cu_seqlens.shape)}: "
            "one document of T tokens is [0, T]"
        )
    if batch != 1:
        raise ValueError(f"cu_seqlens needs a batch of 1, found {batch}: flatten the batch into one row of tokens")
