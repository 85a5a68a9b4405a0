"""Each stored byte is read once by a group of ranks that restores together, whatever the cut, and a rank that dies meanwhile is noticed by all others."""

import itertools
import secrets
import threading
from math import prod
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from restoring_threads import Seat, Table

from samite.checkpoint import open_store
from samite.checkpoint.commit import CommitRequest, build_manifest
from samite.checkpoint.index import TensorMeta
from samite.checkpoint.layout import ITEM_BYTES, SessionId
from samite_workloads.checkpoint import reader as reading
from samite_workloads.checkpoint import sharing
from samite_workloads.checkpoint.plan import write_plan
from samite_workloads.checkpoint.reader import StoredState
from samite_workloads.checkpoint.regions import slabs
from samite_workloads.checkpoint.shards import LocalShard, as_bytes, raw
from samite_workloads.checkpoint.staging import Buffer
from samite_workloads.checkpoint.writer import describe, write_rank

torch.set_num_threads(1)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.data())
def test_slabs_are_exactly_the_elements_of_a_range_in_order(sizes, data):
    total = prod(sizes)
    low = data.draw(st.integers(0, total))
    high = data.draw(st.integers(low, total))
    grid = torch.arange(total).view(sizes)
    found = [grid[(*fixed, slice(begin, end))].reshape(-1) for fixed, begin, end in slabs(sizes, low, high)]
    assert torch.cat(found).tolist() == list(range(low, high)) if found else low == high


class Counting:
    """A store that counts the bytes it is asked for."""

    def __init__(self, inner) -> None:
        self.inner, self.asked, self.lock = inner, 0, threading.Lock()

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def read_into(self, key, offset, target) -> None:
        with self.lock:
            self.asked += len(target)
        self.inner.read_into(key, offset, target)


def grids(draw, shape, world: int):
    """A box for each rank: the tensor cut along one or two dimensions, or copies."""
    counts = [1] * len(shape)
    left = world
    for dim in draw(st.permutations(range(len(shape)))):
        counts[dim] = draw(st.sampled_from([n for n in range(1, left + 1) if left % n == 0]))
        left //= counts[dim]
    sides = []
    for size, count in zip(shape, counts, strict=True):
        step = -(-size // count)
        sides.append([(min(size, n * step), max(0, min(step, size - n * step))) for n in range(count)])
    boxes = list(itertools.product(*sides))
    return [(boxes[rank % len(boxes)], rank // len(boxes), world // len(boxes)) for rank in range(world)]


@st.composite
def cases(draw):
    tensors, written, wanted = {}, {}, {}
    writers, readers = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    for number in range(draw(st.integers(1, 3))):
        shape = tuple(draw(st.lists(st.integers(0, 9), max_size=3)))
        dtype, name = draw(st.sampled_from(sorted(ITEM_BYTES))), f"t{number}"
        content = torch.randint(0, 2 if dtype == "bool" else 256, (*shape, ITEM_BYTES[dtype]), dtype=torch.uint8)
        tensors[name] = content.view(getattr(torch, dtype)).reshape(shape)
        written[name], wanted[name] = grids(draw, shape, writers), grids(draw, shape, readers)
    return (
        tensors,
        writers,
        written,
        readers,
        wanted,
        draw(st.sampled_from([16, 48, 4096])),
        draw(st.sampled_from([37, 1 << 20])),
        draw(st.booleans()),
    )


def blank(tensor: torch.Tensor) -> torch.Tensor:
    return torch.zeros((*tensor.shape, tensor.element_size()), dtype=torch.uint8).view(tensor.dtype).reshape(tensor.shape)


def shards_of(rank: int, tensors, layout, *, turned: bool = False) -> list[LocalShard]:
    shards = []
    for name, tensor in sorted(tensors.items()):
        box, replica, replicas = layout[name][rank]
        part = raw(tensor)[tuple(slice(offset, offset + size) for offset, size in box)].clone()
        if turned and part.dim() > 1:
            part = part.transpose(0, -1).contiguous().transpose(0, -1)
        meta = TensorMeta(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
        shards.append(LocalShard(meta=meta, box=box, data=part.view(tensor.dtype), replica=replica, num_replicas=replicas))
    return shards


@settings(max_examples=100, deadline=None)
@given(cases())
def test_any_cut_is_loaded_from_any_other_with_every_byte_read_once_by_the_group(case):
    tensors, writers, written, readers, wanted, block_bytes, object_bytes, turned = case
    with pytest.MonkeyPatch.context() as patch:
        for module in ("samite.checkpoint.checksum", "samite_workloads.checkpoint.sharing", "samite_workloads.checkpoint.reshard",
                       "samite_workloads.checkpoint.reader", "samite.checkpoint.index"):  # fmt: skip
            patch.setattr(f"{module}.BLOCK_BYTES", block_bytes)
        patch.setattr(sharing, "BATCH_BYTES", 600)
        patch.setattr(reading, "group_reads", lambda ranges: [[number] for number in range(len(ranges))])
        store, one = Counting(open_store(f"memory://{secrets.token_hex(6)}")), "00000001-1-00000000"
        for rank in range(writers):
            shards, buffer = shards_of(rank, tensors, written), Buffer()
            plan = write_plan(shards, object_bytes=object_bytes)
            buffer.fill(plan, shards)
            write_rank(store, one, rank, plan=plan, description=describe(shards, plan, ()), staged=buffer.view)
        request = CommitRequest(
            checkpoint_id=one, step=1, world_size=writers, session=SessionId(1, 0), run_uid="r", created_unix_s=0.0, extra={}
        )
        manifest, table, wrong, read = build_manifest(store, request), Table(readers), [], [0] * readers
        targets = [shards_of(rank, {name: blank(t) for name, t in tensors.items()}, wanted, turned=turned) for rank in range(readers)]
        boxes = [sharing.boxes_of(shards) for shards in targets]

        def restore(rank: int) -> None:
            try:
                state = StoredState(store, manifest, threads=1)
                read[rank], failures = sharing.load_together(state, targets[rank], boxes, Seat(table, rank, readers))
                wrong.extend(map(str, failures))
            except Exception as error:  # noqa: BLE001  told below, on the main thread
                wrong.append(repr(error))
                table._barrier.abort()

        threads = [threading.Thread(target=restore, args=(rank,)) for rank in range(readers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    assert wrong == []
    for rank in range(readers):
        for shard, other in zip(targets[rank], shards_of(rank, tensors, wanted), strict=True):
            assert as_bytes(raw(shard.data).contiguous()) == as_bytes(raw(other.data).contiguous()), shard.meta
    assert store.asked == sum(read) == sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


@pytest.mark.parametrize("target", ["columns", "square", "halves", "copies"])
def test_four_ranks_read_each_byte_once_whatever_they_cut(ranks, tmp_path: Path, target: str):
    reports = ranks("shared_reads", 4, uri=str(tmp_path / "store"), target=target, share=True)
    assert [report["wrong"] for report in reports] == [[]] * 4
    asked, stored = sum(report["asked"] for report in reports), reports[0]["stored"]
    assert stored <= asked <= 1.02 * stored
    assert max(report["asked"] for report in reports) < 0.6 * stored


def test_without_sharing_columns_cost_every_rank_the_whole_and_load_the_same(ranks, tmp_path: Path):
    reports = ranks("shared_reads", 4, uri=str(tmp_path / "store"), target="columns", share=False)
    assert [report["wrong"] for report in reports] == [[]] * 4
    assert sum(report["asked"] for report in reports) > 3.9 * reports[0]["stored"]


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_rank_that_dies_or_stops_during_a_restore_is_told_to_all_others_within_ten_seconds(ranks, tmp_path: Path, how: str):
    reports = ranks("restore_with_a_lost_peer", 4, uri=str(tmp_path / "store"), how=how, expect_exit=False, limit_s=50)
    assert ranks.exit_codes == [0, 0, -9, 0]
    for rank in (0, 1, 3):
        assert "another rank has ended, or has not answered" in reports[rank]["error"]
        assert reports[rank]["seconds"] < 10


def test_a_rank_whose_storage_is_slow_is_waited_for(ranks, tmp_path: Path):
    reports = ranks("restore_with_a_slow_rank", 3, uri=str(tmp_path / "store"), silence_s=2.0, slow_s=5.0)
    assert [report["wrong"] for report in reports] == [[]] * 3
    assert all(report["seconds"] > 5 for report in reports)
