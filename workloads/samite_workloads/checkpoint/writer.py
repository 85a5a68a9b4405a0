"""One rank's upload: data objects out of the staging buffer, then the index that describes them. Runs in the manager's background thread."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from samite.checkpoint.checksum import BLOCK_BYTES, Checksums, crc64
from samite.checkpoint.index import Chunk, DataObject, RankIndex, TensorMeta, Witness
from samite.checkpoint.layout import checkpoint_key, data_name, index_name
from samite.checkpoint.store import Store
from samite.errors import CheckpointDamagedError
from samite_workloads.checkpoint.plan import PlannedChunk, WritePlan
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
    index = write_objects(store, checkpoint_id, rank, plan=plan, description=description, staged=staged, read_back=read_back)
    publish(store, index)
    return index.data_bytes


def write_objects(
    store: Store, checkpoint_id: str, rank: int, *, plan: WritePlan, description: Description, staged: memoryview, read_back: bool = False
) -> RankIndex:
    """Put every data object and return the index that describes them, which is not published yet."""
    chunks: list[Chunk] = []
    objects = []
    for number, (start, size) in enumerate(zip(plan.object_starts, plan.object_bytes, strict=True)):
        view, name = staged[start : start + size], data_name(rank, number)
        planned = [chunk for chunk in plan.chunks if chunk.data_object == number]
        borders = [border for one in planned for border in range(one.offset, one.offset + one.num_bytes, BLOCK_BYTES)]
        sums = Checksums(view, (*borders, *(one.offset + one.num_bytes for one in planned)))
        store.put(checkpoint_key(checkpoint_id, name), view, crc64=sums)  # a store that sends parts has summed all of it afterwards
        found, total = _describe_object(sums, planned, description), sums.whole
        if read_back:
            _compare(store, checkpoint_key(checkpoint_id, name), size, total)
        chunks += found
        objects.append(DataObject(name, size, total))
    return RankIndex(
        checkpoint_id=checkpoint_id,
        rank=rank,
        tensors=description.tensors,
        objects=tuple(objects),
        chunks=tuple(chunks),
        witnesses=description.witnesses,
        aliases=description.aliases,
    )


def with_opaque_bytes(store: Store, index: RankIndex, name: str, content: bytes, *, read_back: bool = False) -> RankIndex:
    """`index` with one more tensor of bytes in an object of its own, which is put at once."""
    sums = Checksums(memoryview(content), range(0, len(content), BLOCK_BYTES))
    blocks, checksum = sums.blocks(0, len(content)), sums.whole
    number = len(index.objects)
    name_of_object = data_name(index.rank, number)
    key = checkpoint_key(index.checkpoint_id, name_of_object)
    store.put(key, content, crc64=checksum)
    if read_back:
        _compare(store, key, len(content), checksum)
    chunk = Chunk(len(index.tensors), ((0, len(content)),), 0, len(content), number, 0, checksum, tuple(blocks))
    return replace(
        index,
        tensors=(*index.tensors, TensorMeta(name, "uint8", (len(content),))),
        objects=(*index.objects, DataObject(name_of_object, len(content), checksum)),
        chunks=(*index.chunks, chunk),
    )


def publish(store: Store, index: RankIndex) -> None:
    """Put the index: from now on this rank's part counts as written."""
    store.put(checkpoint_key(index.checkpoint_id, index_name(index.rank)), index.to_bytes())


def _describe_object(sums: Checksums, planned: Sequence[PlannedChunk], description: Description) -> list[Chunk]:
    """The chunks of one object with their checksums."""
    chunks = []
    for one in planned:
        begin, end = one.offset, one.offset + one.num_bytes
        blocks = tuple(sums.blocks(begin, end))
        box = description.boxes[one.shard]
        chunks.append(Chunk(one.shard, box, one.start, one.num_bytes, one.data_object, one.offset, sums.of(begin, end), blocks))
    return chunks


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
