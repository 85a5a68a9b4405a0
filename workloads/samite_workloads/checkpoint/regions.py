"""Parts of a box, down to bytes: what a block of a row-major array has of what a rank wants. Pure; called by a restore that shares its reads.

A block begins and ends anywhere, in the middle of a row or of an element, so each is looked at as slabs: ranges along one dimension with the dimensions
before it fixed and those behind it whole. The bytes of an element are the last dimension.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from samite.checkpoint.index import Box

Region = tuple[slice, ...]


@dataclass(frozen=True, slots=True)
class Need:
    """What one rank needs of a stored box, the bytes of an element as the last dimension."""

    region: Region
    shift: tuple[int, ...]
    """From an index in the stored box to the index in that rank's target."""
    span: tuple[int, int]
    """First and last + 1 byte of the rows it lies in."""

    def in_target(self, where: Region) -> Region:
        """A place in the stored box as a place in the target."""
        return tuple(slice(one.start + by, one.stop + by) for one, by in zip(where, self.shift, strict=True))


@dataclass(frozen=True, slots=True)
class Part:
    """A slab of a block: bytes [begin, end) of it, their shape, and what of that is wanted."""

    begin: int
    end: int
    shape: tuple[int, ...]
    inner: Region


def slabs(sizes: Sequence[int], low: int, high: int) -> Iterator[tuple[tuple[int, ...], int, int]]:
    """Elements [low, high) of a row-major array as (fixed first indexes, begin, end) along the dimension after them; the rest of each is whole."""
    if low >= high:
        return
    inner = prod(sizes[1:])
    first, last = -(-low // inner), high // inner
    if first > last:
        row = low // inner
        yield from (((row, *fixed), begin, end) for fixed, begin, end in slabs(sizes[1:], low - row * inner, high - row * inner))
        return
    if low < first * inner:
        yield from (((first - 1, *fixed), begin, end) for fixed, begin, end in slabs(sizes[1:], low - (first - 1) * inner, inner))
    if first < last:
        yield (), first, last
    yield from (((last, *fixed), begin, end) for fixed, begin, end in slabs(sizes[1:], 0, high - last * inner))


def parts(sizes: Sequence[int], low: int, num_bytes: int, region: Region) -> Iterator[tuple[Region, Part]]:
    """What `region` shares with bytes [low, low + num_bytes) of a box of `sizes`, in order: where in the box, and where in those bytes."""
    position = 0
    for fixed, begin, end in slabs(sizes, low, low + num_bytes):
        depth = len(fixed)
        shape = (end - begin, *sizes[depth + 1 :])
        start, position = position, position + prod(shape)
        first, last = max(begin, region[depth].start), min(end, region[depth].stop)
        if first < last and all(one.start <= index < one.stop for index, one in zip(fixed, region, strict=False)):
            where = (*(slice(index, index + 1) for index in fixed), slice(first, last), *region[depth + 1 :])
            yield where, Part(start, position, shape, (slice(first - begin, last - begin), *region[depth + 1 :]))


def cut(content: Any, part: Part) -> Any:
    """The wanted bytes of one slab of a block's bytes; a view."""
    return content[part.begin : part.end].reshape(part.shape)[part.inner]


def overlapping(stored: Box, boxes: Any) -> list[int]:
    """Rows of `boxes` [rank, dimension, (offset, size)] that share an element with `stored`."""
    shares = np.ones(len(boxes), dtype=bool)
    for dim, (offset, size) in enumerate(stored):
        shares &= (boxes[:, dim, 0] < offset + size) & (boxes[:, dim, 0] + boxes[:, dim, 1] > offset)
    return [int(row) for row in np.flatnonzero(shares)]


def need_of(stored: Box, wanted: Sequence[Sequence[int]], item_bytes: int) -> Need:
    """What a rank that wants the box `wanted`, which overlaps, needs of the box `stored`."""
    region = [
        slice(max(0, w_offset - s_offset), min(s_size, w_offset + w_size - s_offset))
        for (s_offset, s_size), (w_offset, w_size) in zip(stored, wanted, strict=True)
    ]
    shift = [s_offset - w_offset for (s_offset, _), (w_offset, _) in zip(stored, wanted, strict=True)]
    row_bytes = prod(size for _, size in stored[1:]) * item_bytes
    span = (region[0].start * row_bytes, region[0].stop * row_bytes) if region else (0, item_bytes)
    return Need((*region, slice(0, item_bytes)), (*shift, 0), span)
