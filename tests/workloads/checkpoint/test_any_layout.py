"""Any cut of any tensors by any writers, loaded by any other cut: contents equal bit for bit, and every byte is read once (property-based)."""

import itertools
import secrets
from types import SimpleNamespace

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from samite.checkpoint import commit, open_store
from samite.checkpoint.commit import CommitRequest, build_manifest
from samite.checkpoint.index import TensorMeta
from samite.checkpoint.layout import SessionId
from samite_workloads.checkpoint import plan as planning
from samite_workloads.checkpoint.plan import own_ranges, write_plan
from samite_workloads.checkpoint.reader import StoredState
from samite_workloads.checkpoint.reshard import group_reads, overlap
from samite_workloads.checkpoint.shards import LocalShard
from samite_workloads.checkpoint.staging import Buffer
from samite_workloads.checkpoint.writer import describe, write_rank

torch.set_num_threads(1)


def cuts(draw, size: int, parts: int) -> list[tuple[int, int]]:
    """`size` cut into `parts` pieces, some perhaps empty."""
    borders = [0, *sorted(draw(st.lists(st.integers(0, size), min_size=parts - 1, max_size=parts - 1))), size]
    return [(begin, end - begin) for begin, end in itertools.pairwise(borders)]


@st.composite
def layouts(draw, shape: tuple[int, ...], world: int):
    """For each rank its box of a tensor of `shape`, which replica it is and of how many."""
    replicas = draw(st.sampled_from([r for r in range(1, world + 1) if world % r == 0]))
    shards = world // replicas
    if not shape:
        replicas, shards = world, 1
    dim = draw(st.integers(0, max(len(shape) - 1, 0)))
    pieces = cuts(draw, shape[dim], shards) if shape else [()]
    boxes = []
    for rank in range(world):
        box = [(0, size) for size in shape]
        if shape:
            box[dim] = pieces[rank % shards]
        boxes.append((tuple(box), rank // shards, replicas))
    return boxes


@st.composite
def states(draw):
    dtypes = st.sampled_from([torch.float32, torch.bfloat16, torch.uint8, torch.int64, torch.bool])
    shapes = st.lists(st.integers(0, 40), max_size=3).map(tuple)
    tensors = {}
    for number in range(draw(st.integers(1, 4))):
        shape, dtype = draw(shapes), draw(dtypes)
        tensors[f"t{number}"] = torch.randint(0, 2 if dtype is torch.bool else 100, shape).to(dtype)
    writers, readers = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    return SimpleNamespace(
        tensors=tensors,
        writers=writers,
        readers=readers,
        written={name: draw(layouts(tuple(tensor.shape), writers)) for name, tensor in tensors.items()},
        wanted={name: draw(layouts(tuple(tensor.shape), readers)) for name, tensor in tensors.items()},
        object_bytes=draw(st.sampled_from([4096, 70_000, 1 << 30])),
        split_bytes=draw(st.sampled_from([64, 4096, 1 << 20])),
        directory=draw(st.booleans()),
    )


def shards_of(rank: int, tensors, layout) -> list[LocalShard]:
    shards = []
    for name, tensor in sorted(tensors.items()):
        box, replica, replicas = layout[name][rank]
        part = tensor[tuple(slice(offset, offset + size) for offset, size in box)]
        meta = TensorMeta(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
        shards.append(LocalShard(meta=meta, box=box, data=part.clone(), replica=replica, num_replicas=replicas))
    return shards


@settings(max_examples=120, deadline=None)
@given(states())
def test_any_layout_is_loaded_from_any_other_bit_for_bit(state):
    store, one = open_store(f"memory://{secrets.token_hex(6)}"), "00000001-1-00000000"
    before, planning.SPLIT_BYTES = planning.SPLIT_BYTES, state.split_bytes
    try:
        for rank in range(state.writers):
            shards, buffer = shards_of(rank, state.tensors, state.written), Buffer()
            plan = write_plan(shards, object_bytes=state.object_bytes)
            buffer.fill(plan, shards)
            write_rank(store, one, rank, plan=plan, description=describe(shards, plan, ()), staged=buffer.view)
    finally:
        planning.SPLIT_BYTES = before
    request = CommitRequest(
        checkpoint_id=one, step=1, world_size=state.writers, session=SessionId(1, 0), run_uid="r", created_unix_s=0.0, extra={}
    )
    usual, commit.DIRECTORY_FROM_RANKS = commit.DIRECTORY_FROM_RANKS, 1 if state.directory else 1 << 30
    try:
        manifest = build_manifest(store, request)
    finally:
        commit.DIRECTORY_FROM_RANKS = usual
    assert (manifest.directory is not None) == state.directory
    stored = StoredState(store, manifest, threads=1)
    assert type(stored._table).__name__ == ("DirectoryTable" if state.directory else "IndexTable")
    for rank in range(state.readers):
        expected = shards_of(rank, state.tensors, state.wanted)
        empty = {name: torch.zeros_like(tensor) for name, tensor in state.tensors.items()}
        targets = shards_of(rank, empty, state.wanted)
        assert stored.problems(targets, allow_missing=()) == []
        stored.load(targets)
        for wanted, found in zip(expected, targets, strict=True):
            assert torch.equal(wanted.data, found.data), wanted.meta


@given(st.integers(0, 50_000_000), st.integers(1, 64), st.integers(0, 1000))
def test_replicas_cover_a_box_exactly_once(num_bytes: int, replicas: int, ordinal: int):
    ranges = sorted(
        r for replica in range(replicas) for r in own_ranges(num_bytes, replica=replica, num_replicas=replicas, ordinal=ordinal)
    )
    position = 0
    for begin, end in ranges:
        assert begin == position < end
        position = end
    assert position == num_bytes


@given(st.lists(st.tuples(st.integers(0, 10**9), st.integers(1, 10**7)), max_size=40))
def test_grouped_reads_take_every_range_once_and_stay_small(ranges):
    groups = group_reads(ranges)
    assert sorted(number for group in groups for number in group) == list(range(len(ranges)))
    for group in groups:
        begin, end = min(ranges[n][0] for n in group), max(sum(ranges[n]) for n in group)
        assert len(group) == 1 or end - begin <= 16 * 1024 * 1024


def test_row_resharding_reads_nothing_twice():
    stored = [((rank * 25, 25), (0, 1000)) for rank in range(4)]
    for readers in (1, 2, 3, 5):
        rows = [(100 * rank // readers, 100 * (rank + 1) // readers) for rank in range(readers)]
        shared = [overlap(box, ((low, high - low), (0, 1000)), "float32") for box in stored for low, high in rows]
        assert sum(one.byte_range[1] - one.byte_range[0] for one in shared if one) == 100 * 1000 * 4
        assert all(one.whole_rows for one in shared if one)
