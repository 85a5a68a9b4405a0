"""The directory: one read instead of a thousand, the same answers, and nothing lost without it."""

import random
import secrets
import time

import pytest

from samite.checkpoint import open_store
from samite.checkpoint.commit import CommitRequest, build_manifest
from samite.checkpoint.directory import Directory
from samite.checkpoint.index import Chunk, DataObject, IndexColumns, RankIndex, TensorMeta
from samite.checkpoint.layout import DIRECTORY, SessionId, checkpoint_key, data_name, index_name
from samite.checkpoint.manifest import Manifest
from samite_workloads.checkpoint.chunk_tables import DirectoryTable, IndexTable, directory_table

ONE = "00000001-1-00000000"
TENSORS = (
    TensorMeta("rows", "float32", (64, 3)),
    TensorMeta("tied", "float32", (64, 3)),
    TensorMeta("one", "int64", ()),
    TensorMeta("big", "uint8", (16, 9 << 20)),
)


def index_of(rank: int, tensors=TENSORS, **changes) -> RankIndex:
    rng = random.Random(rank)
    blocks = tuple(rng.getrandbits(64) for _ in range(3))
    chunks = [Chunk(0, ((4 * rank, 4), (0, 3)), 0, 48, 0, 64 * rank, rank, (rank,))]
    if rank % 3 == 0:  # some ranks hold nothing but rows
        chunks.append(Chunk(3, ((rank, 1), (0, 9 << 20)), 0, 9 << 20, 1, 4096, 77, blocks))
    else:
        chunks.append(Chunk(3, ((rank, 1), (0, 9 << 20)), 0, 9 << 20, 0, 8192, 78, blocks))
    if rank == 5:
        chunks.append(Chunk(2, (), 0, 8, 0, 0, 5, (5,)))
    objects = (DataObject(data_name(rank, 0), 10, 1), DataObject(data_name(rank, 1), 10, 2))
    return RankIndex(
        checkpoint_id=ONE, rank=rank, tensors=tensors, objects=objects, chunks=tuple(chunks), **({"aliases": {"tied": "rows"}} | changes)
    )


def stored(world: int = 16, **changes):
    store = open_store(f"memory://{secrets.token_hex(6)}")
    for rank in range(world):
        store.put(checkpoint_key(ONE, index_name(rank)), index_of(rank, **changes).to_bytes())
    request = CommitRequest(checkpoint_id=ONE, step=1, world_size=world, session=SessionId(1, 0), run_uid="r", created_unix_s=0.0, extra={})
    return store, build_manifest(store, request)


def test_it_answers_as_the_indexes_do():
    store, manifest = stored()
    assert Manifest.from_bytes(manifest.to_bytes(), name="m") == manifest
    table, whole = directory_table(store, manifest), IndexTable(index_of(rank) for rank in range(16))
    assert table.tensors == whole.tensors
    for name, meta in whole.tensors.items():
        everything = tuple((0, size) for size in meta.shape)
        assert table.sources(name, everything) == whole.sources(name, everything)
        assert table.boxes(name) == whole.boxes(name)
    assert [source.chunk.box[0] for source in table.sources("tied", ((6, 3), (1, 1)))] == [(4, 4), (8, 4)]
    assert table.sources("rows", ((0, 0), (0, 3))) == []


@pytest.mark.parametrize("damage", ["missing", "flipped", "cut", "another's"])
def test_without_it_or_with_a_damaged_one_the_indexes_say_all(damage: str):
    store, manifest = stored()
    key = checkpoint_key(ONE, DIRECTORY)
    match damage:
        case "missing":
            store.delete([key])
        case "flipped":
            store.corrupt(key, flip_byte=200)
        case "cut":
            store.corrupt(key, truncate_to=100)
        case _:
            store.put(key, b"SAMITE-DIRECTORY 1 crc64=0000000000000000 bytes=0\n")
    assert directory_table(store, manifest) is None


def test_ranks_that_differ_in_their_tensors_or_aliases_get_none_and_few_ranks_need_none():
    columns = [IndexColumns.from_bytes(index_of(rank).to_bytes(), name="x") for rank in range(2)]
    assert Directory.of(columns) is not None
    other = IndexColumns.from_bytes(index_of(1, tensors=(*TENSORS, TensorMeta("more", "int8", (1,)))).to_bytes(), name="x")
    assert Directory.of([columns[0], other]) is None
    assert Directory.of([columns[0], IndexColumns.from_bytes(index_of(1, aliases={}).to_bytes(), name="x")]) is None


@pytest.mark.slow
def test_of_half_a_million_chunks_one_rank_finds_its_own_in_a_moment():
    world, count = 1024, 500
    dice = random.Random(1)
    tensors = tuple(TensorMeta(f"model.layers.{n // 10}.experts.{n % 10}.weight", "bfloat16", (world * 16, 256)) for n in range(count))
    columns, known = [], None
    for rank in range(world):
        box, chunks = ((rank * 16, 16), (0, 256)), []
        for number in range(count):
            checksum = dice.getrandbits(64)
            chunks.append(Chunk(number, box, 0, 8192, 0, number * 8192, checksum, (checksum,)))
        index = RankIndex(
            checkpoint_id=ONE, rank=rank, tensors=tensors, objects=(DataObject(data_name(rank, 0), 1, 0),), chunks=tuple(chunks)
        )
        known = IndexColumns.from_bytes(index.to_bytes(), name="x", known=known)
        columns.append(known)
    began_s = time.process_time()
    document = Directory.of(columns).to_bytes()
    built_s = time.process_time() - began_s
    assert len(document) < 16e6
    began_s = time.process_time()
    table = DirectoryTable(Directory.from_bytes(document, name="x"))
    mine = [table.sources(tensor.name, ((7 * 16, 16), (0, 256))) for tensor in tensors]
    found_s = time.process_time() - began_s
    assert [[source.key for source in sources] for sources in mine] == [[checkpoint_key(ONE, data_name(7, 0))]] * count
    print(f"directory {len(document) / 1e6:.1f} MB, built in {built_s:.2f} s, one rank's part in {found_s:.2f} s of CPU")
    assert built_s < 4
    assert found_s < 1.5
