"""One rank's restore: byte ranges of any layout into the tensors this rank holds now, every block verified before it counts.

Called by the manager on every rank. Strict: every difference between checkpoint and targets is found before the first byte is read.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch

from samite.checkpoint.checksum import BLOCK_BYTES, crc64
from samite.checkpoint.index import Box
from samite.checkpoint.layout import RESERVED
from samite.checkpoint.manifest import Manifest
from samite.checkpoint.store import MissingKeyError, Store
from samite.checkpoint.verify import read_index
from samite.errors import CheckpointDamagedError
from samite_workloads.checkpoint.chunk_tables import ChunkTable, IndexTable, Source, directory_table
from samite_workloads.checkpoint.reshard import BlockRead, block_reads, group_reads, overlap
from samite_workloads.checkpoint.shards import LocalShard, as_bytes, raw

_BATCH_BYTES = 256 * 1024 * 1024
_TRIES = 3


@dataclass(frozen=True, slots=True)
class Piece:
    """One read: where from, and where its kept bytes go."""

    read: BlockRead
    target: memoryview


class StoredState:
    """Everything a committed checkpoint holds, from its indexes."""

    def __init__(self, store: Store, manifest: Manifest, *, threads: int = 4) -> None:
        self._store = store
        self._threads = threads
        self.manifest = manifest
        table: ChunkTable | None = directory_table(store, manifest)
        if table is None:
            with ThreadPoolExecutor(threads, thread_name_prefix="samite-index") as pool:
                indexes = list(pool.map(lambda record: read_index(store, manifest.checkpoint_id, record), manifest.ranks))
            table = IndexTable(indexes)
        self._table = table
        self.tensors = table.tensors

    def problems(self, shards: Sequence[LocalShard], *, allow_missing: Sequence[str]) -> list[str]:
        """Every target that this checkpoint cannot fill, except those that match a pattern of `allow_missing`."""
        found = []
        for shard in shards:
            wanted, stored = shard.meta, self.tensors.get(shard.meta.name)
            if stored is None:
                if not _matches(wanted.name, allow_missing):
                    found.append(f"{wanted.name}: is not in the checkpoint")
            elif (stored.dtype, stored.shape) != (wanted.dtype, wanted.shape):
                found.append(
                    f"{wanted.name}: wanted {wanted.dtype} {list(wanted.shape)}, the checkpoint has {stored.dtype} {list(stored.shape)}"
                )
        return found

    def unused(self, shards: Sequence[LocalShard], *, allow_unused: Sequence[str]) -> list[str]:
        """Stored tensors for which this rank has no target, except those that match a pattern of `allow_unused`."""
        wanted = {shard.meta.name for shard in shards}
        return [name for name in self.tensors if not (name in wanted or name.startswith(RESERVED) or _matches(name, allow_unused))]

    def sources(self, name: str, wanted: Box) -> list[Source]:
        """Chunks of `name` that may share elements with `wanted`."""
        return self._table.sources(name, wanted)

    def boxes(self, name: str) -> list[Box]:
        """The boxes that `name` was cut into, none for an empty tensor."""
        return self._table.boxes(name)

    def load(self, shards: Sequence[LocalShard]) -> int:
        """Fill the targets in place. Returns the bytes read. Raises CheckpointDamagedError; the targets are then partly overwritten."""
        read = 0
        batch: list[tuple[LocalShard, list[tuple[str, Piece]], list[tuple[torch.Tensor, tuple[slice, ...], tuple[slice, ...]]]]] = []
        pending = 0
        with torch.no_grad():
            for shard in shards:
                if shard.num_bytes == 0 or shard.meta.name not in self.tensors:
                    continue
                batch.append((shard, *self._work(shard)))
                pending += shard.num_bytes
                if pending >= _BATCH_BYTES:
                    read += self._run(batch)
                    batch, pending = [], 0
            read += self._run(batch)
        return read

    def fetch(self, pieces: Iterable[tuple[str, Piece]]) -> int:
        """Read and verify pieces of objects, neighbours together. Returns the bytes read. Raises CheckpointDamagedError."""
        by_key: dict[str, list[Piece]] = defaultdict(list)
        for key, piece in pieces:
            by_key[key].append(piece)
        requests = [
            (key, [found[number] for number in group])
            for key, found in by_key.items()
            for group in group_reads([(piece.read.offset, piece.read.num_bytes) for piece in found])
        ]
        if not requests:
            return 0
        with ThreadPoolExecutor(self._threads, thread_name_prefix="samite-read") as pool:
            return sum(pool.map(lambda request: self._fetch(*request), requests))

    def _work(self, shard: LocalShard) -> tuple[list[tuple[str, Piece]], list[tuple[torch.Tensor, tuple[slice, ...], tuple[slice, ...]]]]:
        """Reads for one target, and the copies that follow them where bytes cannot go straight to their place."""
        pieces, copies = [], []
        direct = shard.data.device.type == "cpu" and shard.data.is_contiguous()
        target_bytes = as_bytes(shard.data) if direct else memoryview(b"")
        by_box: dict[Box, list[Source]] = defaultdict(list)
        for source in self._table.sources(shard.meta.name, shard.box):
            by_box[source.chunk.box].append(source)
        for box, sources in by_box.items():
            shared = overlap(box, shard.box, shard.meta.dtype)
            if shared is None:
                continue
            low, high = shared.byte_range
            if direct and shared.whole_rows:
                begin = shared.target[0].start * shared.row_bytes
                view = target_bytes[begin : begin + high - low]
            else:
                rows = torch.empty((shared.rows[1] - shared.rows[0], *(size for _, size in box[1:])), dtype=shard.data.dtype)
                view = as_bytes(rows)
                copies.append((rows, shared.source, shared.target))
            for source in sources:
                pieces += [
                    (source.key, Piece(read, view[read.place : read.place + read.keep[1] - read.keep[0]]))
                    for read in block_reads(source.chunk, (low, high))
                ]
        return pieces, copies

    def _run(
        self, batch: Sequence[tuple[LocalShard, list[tuple[str, Piece]], list[tuple[torch.Tensor, tuple[slice, ...], tuple[slice, ...]]]]]
    ) -> int:
        read = self.fetch(piece for _, pieces, _ in batch for piece in pieces)
        for shard, _, copies in batch:
            target = raw(shard.data)
            if target.dim() == 0:
                target = target.reshape(1)
            for rows, source, place in copies:
                target[place].copy_(raw(rows)[source])
        return read

    def _fetch(self, key: str, pieces: Sequence[Piece]) -> int:
        """One request, its blocks verified, its bytes put in place. Reads again before it calls anything damaged."""
        begin = min(piece.read.offset for piece in pieces)
        end = max(piece.read.offset + piece.read.num_bytes for piece in pieces)
        straight = len(pieces) == 1 and len(pieces[0].target) == end - begin
        view = pieces[0].target if straight else memoryview(bytearray(end - begin))
        problem = ""
        for _ in range(_TRIES):
            try:
                self._store.read_into(key, begin, view)
            except (MissingKeyError, CheckpointDamagedError) as error:
                problem = str(error)
                continue
            problem = self._first_damage(key, view, begin, pieces)
            if not problem:
                break
        if problem:
            raise CheckpointDamagedError(problem)
        if not straight:
            for piece in pieces:
                start = piece.read.offset - begin
                piece.target[:] = view[start + piece.read.keep[0] : start + piece.read.keep[1]]
        return end - begin

    def _first_damage(self, key: str, view: memoryview, begin: int, pieces: Sequence[Piece]) -> str:
        for piece in pieces:
            data = view[piece.read.offset - begin : piece.read.offset - begin + piece.read.num_bytes]
            for number, wanted in enumerate(piece.read.blocks):
                block = data[number * BLOCK_BYTES : (number + 1) * BLOCK_BYTES]
                if crc64(block) != wanted:
                    place = piece.read.offset + number * BLOCK_BYTES
                    return f"{self._store.uri}/{key}: bytes {place} to {place + len(block)} do not have the checksum {wanted:016x} that was written"
        return ""


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
