"""Which stored bytes a rank needs for what it holds now: boxes against boxes, down to verified 4 MiB blocks. Pure.

stored box   [ rows ............ ]  row-major bytes, cut into chunks (byte ranges), each in an object
wanted box        [ rows ... ]      any other cut of the same tensor
-> rows of the stored box           -> byte range -> blocks of chunks -> reads
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from samite.checkpoint.checksum import BLOCK_BYTES
from samite.checkpoint.index import Box, Chunk
from samite.checkpoint.layout import ITEM_BYTES

LARGEST_READ_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class Overlap:
    """What one stored box gives to one wanted box."""

    rows: tuple[int, int]
    """First and last + 1 row of the stored box (in its first dimension) that are needed."""
    row_bytes: int
    source: tuple[slice, ...]
    """Where the shared elements lie in those rows."""
    target: tuple[slice, ...]
    """Where they go in the wanted box."""
    whole_rows: bool
    """The shared elements are whole rows of both boxes: bytes can go straight to their place."""

    @property
    def byte_range(self) -> tuple[int, int]:
        """Bytes of the stored box that are needed."""
        return self.rows[0] * self.row_bytes, self.rows[1] * self.row_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockRead:
    """Blocks of one chunk to read: [offset, offset + num_bytes) of the chunk's object, whose parts have these checksums."""

    offset: int
    num_bytes: int
    blocks: tuple[int, ...]
    keep: tuple[int, int]
    """The bytes wanted among those read."""
    place: int
    """Where the kept bytes go, relative to the start of the wanted byte range."""


def overlap(stored: Box, wanted: Box, dtype: str) -> Overlap | None:
    """What `stored` gives to `wanted`, None if they share no element. 0-d tensors are one row of one element."""
    stored, wanted = stored or ((0, 1),), wanted or ((0, 1),)
    source, target = [], []
    for (s_offset, s_size), (w_offset, w_size) in zip(stored, wanted, strict=True):
        low, high = max(s_offset, w_offset), min(s_offset + s_size, w_offset + w_size)
        if low >= high:
            return None
        source.append(slice(low - s_offset, high - s_offset))
        target.append(slice(low - w_offset, high - w_offset))
    rows = (source[0].start, source[0].stop)
    inner_whole = all(
        piece == slice(0, s_size) and s_size == w_size
        for piece, (_, s_size), (_, w_size) in zip(source[1:], stored[1:], wanted[1:], strict=True)
    )
    return Overlap(
        rows=rows,
        row_bytes=prod(size for _, size in stored[1:]) * ITEM_BYTES[dtype],
        source=(slice(0, rows[1] - rows[0]), *source[1:]),
        target=tuple(target),
        whole_rows=inner_whole,
    )


def block_reads(chunk: Chunk, wanted: tuple[int, int]) -> Iterable[BlockRead]:
    """Reads that bring the bytes `wanted` (of the stored box) as far as `chunk` holds them, in whole blocks, each at most 16 MiB."""
    low, high = max(wanted[0], chunk.start), min(wanted[1], chunk.start + chunk.num_bytes)
    if low >= high:
        return
    first, last = (low - chunk.start) // BLOCK_BYTES, -(-(high - chunk.start) // BLOCK_BYTES)
    step = LARGEST_READ_BYTES // BLOCK_BYTES
    for block in range(first, last, step):
        end_block = min(block + step, last)
        begin, end = block * BLOCK_BYTES, min(end_block * BLOCK_BYTES, chunk.num_bytes)
        keep_low, keep_high = max(low, chunk.start + begin), min(high, chunk.start + end)
        yield BlockRead(
            offset=chunk.offset + begin,
            num_bytes=end - begin,
            blocks=chunk.blocks[block:end_block],
            keep=(keep_low - chunk.start - begin, keep_high - chunk.start - begin),
            place=keep_low - wanted[0],
        )


def group_reads(ranges: Sequence[tuple[int, int]], *, gap_bytes: int = 65536) -> list[list[int]]:
    """Group byte ranges (offset, length) of one object so that neighbours are fetched by one request of at most 16 MiB. Returns their numbers."""
    groups: list[list[int]] = []
    begin, end = 0, 0
    for number in sorted(range(len(ranges)), key=lambda one: ranges[one]):
        offset, length = ranges[number]
        if groups and offset - end <= gap_bytes and offset + length - begin <= LARGEST_READ_BYTES:
            groups[-1].append(number)
            end = max(end, offset + length)
        else:
            groups.append([number])
            begin, end = offset, offset + length
    return groups
