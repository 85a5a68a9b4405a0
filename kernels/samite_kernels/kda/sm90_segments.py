"""How long inputs are cut into segments, whose kernels `sm90_schedule` runs beside each other."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from samite_kernels.kda.documents import Documents
from samite_kernels.kda.sm90_launch import CHUNK
from samite_kernels.runtime.tables import shared_table

_SHARES: tuple[tuple[tuple[int, ...], int], ...] = (((1, 2, 2, 2, 2, 2, 2, 1), 16384), ((1, 2, 2, 1), 4096))
"""Relative sizes of the segments, finest first, and the tiles (chunks times heads) from which they pay for their launches."""
_LEAST_CHUNKS = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """Chunks `start` to `stop`, which belong to `num_documents` documents from `first_document` on."""

    start: int
    stop: int
    first_document: int
    num_documents: int
    first_chunk: Tensor
    """[num_documents + 1] int32 on the device: where each document begins, counted from `start`."""


@shared_table
def segments_of(documents: Documents, num_heads: int, device: torch.device) -> tuple[Segment, ...]:
    """One segment for short inputs, else several. Those at the ends are small: there a kernel runs alone."""
    counts = documents.num_chunks(CHUNK)
    total = sum(counts)
    shares = next((shares for shares, tiles in _SHARES if total >= _LEAST_CHUNKS and total * num_heads >= tiles), (1,))
    wanted = len(shares)
    if wanted == 1:
        return (whole_of(documents, device),)
    if documents.count == 1:
        bounds = [total * share // sum(shares) for share in accumulate(shares, initial=0)]
        return tuple(_segment(start, stop, 0, (stop - start,), device) for start, stop in pairwise(bounds))
    segments: list[Segment] = []
    start = first = chunks = 0
    for document, count in enumerate(counts):
        chunks += count
        if chunks * wanted >= total or document == documents.count - 1:
            segments.append(_segment(start, start + chunks, first, counts[first : document + 1], device))
            start, first, chunks = start + chunks, document + 1, 0
    return tuple(segments)


def _segment(start: int, stop: int, first_document: int, counts: tuple[int, ...], device: torch.device) -> Segment:
    return Segment(
        start=start,
        stop=stop,
        first_document=first_document,
        num_documents=len(counts),
        first_chunk=first_chunks(counts).to(device, torch.int32),
    )


@shared_table
def whole_of(documents: Documents, device: torch.device) -> Segment:
    """All documents as one segment."""
    counts = documents.num_chunks(CHUNK)
    return _segment(0, sum(counts), 0, counts, device)


def first_chunks(counts: Sequence[int]) -> Tensor:
    """Where each of neighbouring runs begins, and the end of the last: [runs + 1] int64."""
    first = torch.zeros(len(counts) + 1, dtype=torch.int64)
    first[1:] = torch.tensor(counts, dtype=torch.int64).cumsum(0)
    return first
