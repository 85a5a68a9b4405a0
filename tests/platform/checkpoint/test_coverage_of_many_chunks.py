"""The short way through half a million chunks says the same as looking at each: complete is complete, and every fault is found."""

import itertools
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samite.checkpoint.commit import CommitRequest, SaveRefusedError, build_manifest
from samite.checkpoint.coverage import _complete, _tensor_problems, coverage_problems
from samite.checkpoint.index import Chunk, DataObject, IndexColumns, RankIndex, TensorMeta
from samite.checkpoint.layout import SessionId, checkpoint_key, data_name, index_name
from samite.checkpoint.store import MemoryStore

ONE = "00000001-1-00000000"


def index_of(rank: int, tensors, chunks) -> RankIndex:
    return RankIndex(
        checkpoint_id=ONE, rank=rank, tensors=tuple(tensors), objects=(DataObject(data_name(rank, 0), 1, 0),), chunks=tuple(chunks)
    )


def chunk(tensor: int, box, num_bytes: int, start: int = 0) -> Chunk:
    return Chunk(tensor, box, start, num_bytes, 0, 0, 7, (7,))


@st.composite
def cuts(draw):
    """A tensor cut along one dimension, whole or spoiled in some way, as (shape, {flat box: windows})."""
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=3)))
    dim = draw(st.integers(0, len(shape) - 1))
    borders = sorted({0, shape[dim], *draw(st.lists(st.integers(0, shape[dim]), max_size=4))})
    boxes = {}
    for low, high in itertools.pairwise(borders):
        box = [number for size in shape for number in (0, size)]
        box[2 * dim : 2 * dim + 2] = [low, high - low]
        size = 4 * (high - low)
        for other, extent in enumerate(shape):
            size *= extent if other != dim else 1
        boxes[tuple(box)] = [(0, size, 0)]
    for _ in range(draw(st.integers(0, 2))):
        box = draw(st.sampled_from(sorted(boxes)))
        windows = boxes.pop(box)
        match draw(st.sampled_from(["drop", "shift", "double", "shorten", "split", "keep"])):
            case "shift":
                moved = list(box)
                place = draw(st.integers(0, len(box) - 1))
                moved[place] = max(0, moved[place] + draw(st.sampled_from([-1, 1])))
                boxes[tuple(moved)] = windows
            case "double":
                boxes[box] = windows * 2
            case "shorten":
                boxes[box] = [(0, windows[0][1] - 4, 0)]
            case "split":
                half = windows[0][1] // 2
                boxes[box] = [(0, half, 0), (half, windows[0][1] - half, 1)]
            case "keep":
                boxes[box] = windows
        if not boxes:
            break
    return shape, boxes


@settings(max_examples=400, deadline=None)
@given(cuts())
def test_what_the_short_way_calls_complete_the_long_way_finds_no_fault_in(found):
    shape, boxes = found
    meta = TensorMeta("w", "float32", shape)
    if _complete(meta, boxes):
        assert list(_tensor_problems(meta, {tuple(zip(box[::2], box[1::2], strict=True)): windows for box, windows in boxes.items()})) == []


def test_columns_and_objects_of_an_index_tell_the_same(tmp_path):
    tensors = [TensorMeta("a", "float32", (4, 3)), TensorMeta("s", "int64", ()), TensorMeta("none", "float32", (0, 2))]
    indexes = [
        index_of(rank, tensors, [chunk(0, ((2 * rank, 2), (0, 3)), 24), *([chunk(1, (), 8)] if rank == 0 else [])]) for rank in range(2)
    ]
    columns = [IndexColumns.from_bytes(one.to_bytes(), name="x") for one in indexes]
    assert coverage_problems(indexes) == coverage_problems(columns) == []
    assert [one.index(name="x") for one in columns] == indexes
    assert coverage_problems(indexes[:1]) == coverage_problems(columns[:1]) == ["a: 6 of 12 elements are in no rank's part"]
    assert coverage_problems([*columns, columns[0]]) == coverage_problems([*indexes, indexes[0]]) != []


def test_a_rank_that_disagrees_on_a_dtype_is_found_whether_or_not_ranks_share_their_tables():
    one = index_of(0, [TensorMeta("a", "float32", (2,))], [chunk(0, ((0, 1),), 4)])
    other = index_of(1, [TensorMeta("a", "int32", (2,))], [chunk(0, ((1, 1),), 4)])
    columns = [IndexColumns.from_bytes(found.to_bytes(), name="x") for found in (one, other)]
    for indexes in ([one, other], columns):
        assert coverage_problems(indexes) == ["a: rank 1 has int32 [2], an earlier rank float32 [2]"]


@pytest.mark.slow
def test_a_thousand_ranks_with_five_hundred_tensors_each_are_checked_and_committed_in_seconds_and_little_space():
    store, world, count = MemoryStore("memory://thousand-ranks"), 1024, 500
    dice = random.Random(1)
    tensors = tuple(TensorMeta(f"model.layers.{n // 10}.experts.{n % 10}.weight", "bfloat16", (world * 16, 256)) for n in range(count))
    stored = 0
    for rank in range(world):
        rows = ((rank * 16, 16), (0, 256))
        chunks = []
        for number in range(count):
            checksum = dice.getrandbits(64)
            chunks.append(Chunk(number, rows, 0, 8192, 0, number * 8192, checksum, (checksum,)))
        document = index_of(rank, tensors, chunks).to_bytes()
        stored += len(document)
        store.put(checkpoint_key(ONE, index_name(rank)), document)
    assert stored < 16e6
    request = CommitRequest(checkpoint_id=ONE, step=1, world_size=world, session=SessionId(1, 0), run_uid="r", created_unix_s=0.0, extra={})
    began_s = time.process_time()
    manifest = build_manifest(store, request)
    assert time.process_time() - began_s < 10.0  # 3.5 measured; twice that for the noise of other processes
    assert sum(record.num_chunks for record in manifest.ranks) == world * count
    assert len(manifest.to_bytes()) < 100_000
    spoiled = index_of(700, tensors, [chunk(number, ((700 * 16, 16), (0, 256)), 8192) for number in range(count) if number != 123])
    store.put(checkpoint_key(ONE, index_name(700)), spoiled.to_bytes())
    with pytest.raises(SaveRefusedError, match=r"model\.layers\.12\.experts\.3\.weight: 4096 of 4194304 elements"):
        build_manifest(store, request)
