"""One rank's upload: data objects out of the staging buffer, then the index that describes them. Runs in the manager's background thread."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from samite.checkpoint.checksum import block_checksums, combine_blocks, combine_crc64, crc64
from samite.checkpoint.index import Chunk, DataObject, RankIndex, TensorMeta, Witness
from samite.checkpoint.layout import checkpoint_key, data_name, index_name
from samite.checkpoint.store import Store
from samite.errors import CheckpointDamagedError
from samite_workloads.checkpoint.plan import WritePlan
from samite_workloads.checkpoint.shards import LocalShard

_READ_BACK_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class Description:
    """What the index says about the shards besides their bytes; taken with the snapshot, so that no tensor is touched afterwards."""

    tensors: tuple[TensorMeta, ...]
    boxes: tuple[tuple[tuple[int, int], ...], ...]
    witnesses: tuple[Witness, ...]
    aliases: Mapping[str, str]


def describe(shards: Sequence[LocalShard], plan: WritePlan, witnesses: Sequence[Witness]) -> Description:
    """The description of `shards`."""
    return Description(
        tensors=tuple(shard.meta for shard in shards),
        boxes=tuple(shard.box for shard in shards),
        witnesses=tuple(witnesses),
        aliases={shards[one].meta.name: shards[other].meta.name for one, other in plan.aliases},
    )


def write_rank(
    store: Store, checkpoint_id: str, rank: int, *, plan: WritePlan, description: Description, staged: memoryview, read_back: bool = False
) -> int:
    """Put every data object, then the index. Returns the bytes written. `read_back` compares what storage kept before the index says it is there."""
    chunks, objects = [], []
    for number, (start, size) in enumerate(zip(plan.object_starts, plan.object_bytes, strict=True)):
        view = staged[start : start + size]
        total, end = 0, 0
        for planned in plan.chunks:
            if planned.data_object != number:
                continue
            data = view[planned.offset : planned.offset + planned.num_bytes]
            blocks = block_checksums(data)
            checksum = combine_blocks(blocks, len(data))
            total = combine_crc64(crc64(view[end : planned.offset], total), checksum, len(data))
            end = planned.offset + planned.num_bytes
            chunks.append(
                Chunk(
                    planned.shard,
                    description.boxes[planned.shard],
                    planned.start,
                    planned.num_bytes,
                    number,
                    planned.offset,
                    checksum,
                    tuple(blocks),
                )
            )
        name = data_name(rank, number)
        store.put(checkpoint_key(checkpoint_id, name), view, crc64=total)
        if read_back:
            _compare(store, checkpoint_key(checkpoint_id, name), size, total)
        objects.append(DataObject(name, size, total))
    index = RankIndex(
        checkpoint_id=checkpoint_id,
        rank=rank,
        tensors=description.tensors,
        objects=tuple(objects),
        chunks=tuple(chunks),
        witnesses=description.witnesses,
        aliases=description.aliases,
    )
    store.put(checkpoint_key(checkpoint_id, index_name(rank)), index.to_bytes())
    return index.data_bytes


def _compare(store: Store, key: str, size: int, wanted: int) -> None:
    buffer = memoryview(bytearray(min(size, _READ_BACK_BYTES)))
    total = 0
    for start in range(0, size, _READ_BACK_BYTES):
        view = buffer[: min(len(buffer), size - start)]
        store.read_into(key, start, view)
        total = crc64(view, total)
    if total != wanted:
        raise CheckpointDamagedError(
            f"{store.uri}/{key}: read back with CRC64 {total:016x}, {wanted:016x} was written; this storage alters bytes"
        )
