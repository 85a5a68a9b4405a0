"""What training waits for in a save: a plan that is known, memory that is there, no other rank. And that none of it is kept when the state changes."""

import mmap
import secrets
import threading
import time
from pathlib import Path

import pytest
import torch

from samite.checkpoint import open_store
from samite.errors import SamiteError
from samite_workloads.checkpoint import CheckpointManager, CheckpointOptions
from samite_workloads.checkpoint.agreement import Alone
from samite_workloads.checkpoint.plan_cache import PlanCache
from samite_workloads.checkpoint.shards import local_shards
from samite_workloads.checkpoint.snapshot import Readiness, agreement
from samite_workloads.checkpoint.staging import Buffer, BufferPool


def cache() -> PlanCache:
    return PlanCache(rank=0, world_size=1, object_bytes=1 << 30)


def state(**changes) -> dict[str, torch.Tensor]:
    shared = torch.arange(12.0)
    return {"a": torch.ones(3, 4), "tied": shared, "also tied": shared, "empty": torch.empty(0)} | changes


def test_a_state_of_the_same_structure_gets_the_same_plan_with_its_own_tensors():
    plans, first, second = cache(), state(), state()
    before, after = plans.look(first), plans.look(second)
    assert (before.unchanged, after.unchanged) == (False, True)
    assert after.plan is before.plan
    assert after.digest == before.digest
    fresh = local_shards(second, rank=0, world_size=1)
    assert [(one.meta, one.box, one.replica, one.num_replicas) for one in after.shards] == [
        (one.meta, one.box, one.replica, one.num_replicas) for one in fresh
    ]
    assert [one.data.data_ptr() for one in after.shards] == [one.data.data_ptr() for one in fresh]


@pytest.mark.parametrize(
    "changes",
    [
        {"a": torch.ones(4, 3)},
        {"a": torch.ones(3, 4).half()},
        {"new": torch.ones(1)},
        {"tied": torch.ones(12)},
        {"empty": torch.empty(0, 2)},
    ],
)
def test_any_other_structure_is_planned_anew(changes):
    plans = cache()
    old = plans.look(state())
    new = plans.look(state(**changes))
    assert not new.unchanged
    assert new.plan == cache().look(state(**changes)).plan
    assert plans.look(state(**changes)).unchanged
    assert not plans.look(state()).unchanged
    assert plans.look(state()).plan == old.plan


def test_a_tensor_that_cannot_be_stored_is_refused_however_often_it_is_tried():
    plans = cache()
    plans.look(state())
    for _ in range(2):
        with pytest.raises(Exception, match="wanted a dense tensor"):
            plans.look(state(a=torch.ones(3, 4).to_sparse()))
    assert not plans.look(state()).unchanged


def test_no_tensor_is_kept_between_saves():
    plans, tensors = cache(), state()
    plans.look(tensors)
    assert all(one is None or one.data.numel() == 0 for one in plans._known.values())


def test_five_hundred_tensors_a_rank_are_planned_in_a_moment_from_the_second_save_on():
    tensors = {f"model.layers.{n // 10}.experts.{n % 10}.weight": torch.ones(64, 8) for n in range(500)}
    plans = cache()
    plans.look(tensors)
    times = []
    for _ in range(5):
        began_s = time.thread_time()
        assert plans.look(tensors).unchanged
        times.append(time.thread_time() - began_s)
    assert min(times) < 0.05


def test_memory_is_touched_before_it_is_needed():
    pool = BufferPool(2)
    thread = pool.prepare(64 << 20, pinned=False)
    thread.join(30)
    taken = [pool.take(1.0), pool.take(1.0)]
    for buffer in taken:
        assert len(buffer.view) == 64 << 20
        before = faults()
        torch.frombuffer(buffer.view, dtype=torch.uint8).fill_(1)
        assert faults() - before < (64 << 20) // mmap.PAGESIZE // 20


def faults() -> int:
    """Page faults of this process so far, without those that waited for a disk."""
    return int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[7])


def test_a_buffer_grows_only_when_it_must():
    buffer = Buffer()
    buffer.reserve(1000, pinned=False)
    view = buffer.view
    assert bytes(view) == bytes(1000)
    buffer.reserve(10, pinned=False)
    assert buffer.view is view
    buffer.reserve(5_000_000, pinned=False)
    assert len(buffer.view) == 5_000_000


def test_a_prepared_manager_saves_what_it_is_given_and_not_what_it_prepared_for():
    manager = CheckpointManager(
        open_store(f"memory://{secrets.token_hex(6)}"), run_uid="run", epoch=1, options=CheckpointOptions(probe=False)
    )
    manager.prepare({"a": torch.zeros(1000)})
    for step, size in enumerate((1000, 1000, 300_000, 5)):
        manager.save(step, {"a": torch.full((size,), float(step))})
        manager.wait(20)
        target = {"a": torch.zeros(size)}
        assert manager.restore("latest", target).step == step
        assert torch.equal(target["a"], torch.full((size,), float(step)))
    manager.close()
    assert not any(thread.name == "samite-staging" and thread.is_alive() for thread in threading.enumerate())


def test_a_readiness_fits_its_record_whatever_the_problem():
    for problem in ("", "short", "ä" * 1000, "x" * 481, "x" * 482):
        one = Readiness(step=7, problem=problem, buffer_free=True, num_tensors=500, digest=bytes(16))
        record = one.to_bytes()
        assert len(record) == 512
        found = Readiness.from_bytes(record)
        assert found.step == 7
        assert found.problem == problem or (found.problem.endswith(" ...") and problem.startswith(found.problem[:-4]))
    assert Alone().begin_gather(record)(1.0) == [record]
    records = [Readiness(step=step, problem="", buffer_free=True, num_tensors=500, digest=bytes(16)).to_bytes() for step in (7, 8)]
    with pytest.raises(SamiteError, match="different steps"):
        agreement(records, CheckpointOptions(), "")
