"""Where this rank's bytes go: chunks in data objects, laid out as in the staging buffer, so that an object is a slice of it.

Pure and local: no rank asks another. Replicas of a box share its bytes by arithmetic on their replica number.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from samite.checkpoint.layout import CHUNK_ALIGNMENT, align
from samite_workloads.checkpoint.shards import LocalShard

SPLIT_BYTES = 1024 * 1024
"""Replicas share a box only in pieces of at least this size; a smaller box is written by one of them."""


@dataclass(frozen=True, slots=True)
class PlannedChunk:
    """Bytes [start, start + num_bytes) of shard number `shard`, at `offset` of object `data_object`."""

    shard: int
    start: int
    num_bytes: int
    data_object: int
    offset: int


@dataclass(frozen=True, kw_only=True, slots=True)
class WritePlan:
    """One rank's part of a save."""

    chunks: tuple[PlannedChunk, ...]
    object_bytes: tuple[int, ...]
    aliases: tuple[tuple[int, int], ...]
    """(shard, shard): the first is the same memory as the second and is not written."""

    @property
    def object_starts(self) -> tuple[int, ...]:
        """Where each object begins in the staging buffer."""
        starts, position = [], 0
        for size in self.object_bytes:
            starts.append(position)
            position += -(-size // CHUNK_ALIGNMENT) * CHUNK_ALIGNMENT
        return tuple(starts)

    @property
    def staging_bytes(self) -> int:
        """Size of the staging buffer it needs."""
        return sum(-(-size // CHUNK_ALIGNMENT) * CHUNK_ALIGNMENT for size in self.object_bytes)


def write_plan(shards: Sequence[LocalShard], *, object_bytes: int) -> WritePlan:
    """Lay out `shards` into objects of at most `object_bytes`."""
    aliases = aliases_of(shards)
    skipped = {shard for shard, _ in aliases}
    chunks: list[PlannedChunk] = []
    objects = [0]
    for number, shard in enumerate(shards):
        if number in skipped:
            continue
        for begin, end in own_ranges(shard.num_bytes, replica=shard.replica, num_replicas=shard.num_replicas, ordinal=number):
            start = begin
            while start < end:
                num_bytes = min(end - start, object_bytes)
                offset = align(objects[-1], num_bytes)
                if offset + num_bytes > object_bytes and objects[-1]:
                    objects.append(0)
                    offset = 0
                chunks.append(PlannedChunk(number, start, num_bytes, len(objects) - 1, offset))
                objects[-1] = offset + num_bytes
                start += num_bytes
    return WritePlan(chunks=tuple(chunks), object_bytes=tuple(size for size in objects if size), aliases=tuple(aliases))


def own_ranges(num_bytes: int, *, replica: int, num_replicas: int, ordinal: int) -> list[tuple[int, int]]:
    """Byte ranges of a box that this replica writes; over all replicas they cover the box once. `ordinal` spreads small boxes over the replicas."""
    pieces = max(1, min(num_replicas, num_bytes // SPLIT_BYTES))
    piece = (replica + ordinal) % num_replicas
    if piece >= pieces or num_bytes == 0:
        return []
    borders = [num_bytes * number // pieces // CHUNK_ALIGNMENT * CHUNK_ALIGNMENT for number in range(pieces)] + [num_bytes]
    return [(borders[piece], borders[piece + 1])]


def aliases_of(shards: Sequence[LocalShard]) -> list[tuple[int, int]]:
    """Shards that are one piece of memory under several names (tied weights)."""
    seen: dict[tuple[object, ...], int] = {}
    aliases = []
    for number, shard in enumerate(shards):
        if shard.data.numel() == 0 or shard.data.data_ptr() == 0:
            continue
        identity = (shard.data.data_ptr(), shard.meta.dtype, shard.meta.shape, shard.box, shard.data.stride())
        first = seen.setdefault(identity, number)
        if first != number:
            aliases.append((number, first))
    return aliases
