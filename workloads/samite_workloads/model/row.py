"""Where the documents of a packed row lie, on the host and on the device: made once per forward pass, read by every layer."""

from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor

from samite_workloads.batch import PackedBatch


@dataclass(frozen=True, kw_only=True, slots=True)
class RowLayout:
    """Documents of one row of T tokens."""

    offsets: tuple[int, ...]
    """First token of each document, and T at the end."""
    cu_seqlens_host: Tensor
    """The same as int32 on the CPU: reading it costs no synchronisation."""
    cu_seqlens: Tensor
    """The same on the device of the model."""
    is_padding_T: Tensor
    """bool [T]; these positions take no part in routing, counts and losses."""

    @classmethod
    def of(cls, batch: PackedBatch) -> "RowLayout":
        """Reads `cu_seqlens` on the host: the one synchronisation of a forward pass on a GPU."""
        on_host = batch.cu_seqlens_N1.cpu()
        return cls(
            offsets=tuple(on_host.tolist()),
            cu_seqlens_host=on_host,
            cu_seqlens=batch.cu_seqlens_N1,
            is_padding_T=batch.is_padding_T,
        )

    @property
    def spans(self) -> list[tuple[int, int]]:
        """Half-open token ranges of the documents that are not empty."""
        return [(start, end) for start, end in pairwise(self.offsets) if end > start]

    @property
    def max_seqlen(self) -> int:
        """Tokens of the longest document."""
        return max((end - start for start, end in pairwise(self.offsets)), default=0)
