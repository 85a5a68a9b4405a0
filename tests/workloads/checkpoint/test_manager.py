"""One process and its manager: snapshots, faults of storage, and choosing what to load."""

import gc
import json
import threading
import time
from pathlib import Path

import pytest
import torch

from samite.checkpoint import Catalog, State, open_store
from samite.checkpoint.fence import FencedError
from samite.checkpoint.layout import LATEST, MANIFEST, checkpoint_key
from samite.checkpoint.store.faulty import Action, Fault, FaultyStore
from samite.errors import CheckpointDamagedError, ConflictError, NotAllowedError, NotFoundError, SamiteError
from samite_workloads.checkpoint import CheckpointManager, CheckpointOptions, RestoreMismatchError, SaveFailedError

torch.set_num_threads(1)


@pytest.fixture
def store(request) -> FaultyStore:
    return FaultyStore(open_store(f"memory://{request.node.name}"))


def manager(store, *, epoch: int = 1, run_uid: str = "run", **options) -> CheckpointManager:
    settings = {"deadline_s": 10.0, "stall_s": 0.2, "load_deadline_s": 1.0, **options}
    return CheckpointManager(store, run_uid=run_uid, epoch=epoch, options=CheckpointOptions(**settings))


def state(value: float = 1.0) -> dict[str, torch.Tensor]:
    return {"weight": torch.full((40, 50), float(value)), "step": torch.tensor(int(value))}


def save(saver: CheckpointManager, *steps: int) -> list[str]:
    for step in steps:
        saver.save(step, state(step), {"cursor": step}, asynchronous=False)
    return [commit.checkpoint_id for commit in saver.poll()]


def loaded(saver: CheckpointManager, which: str = "latest", **options) -> float:
    targets = state(0.0)
    saver.restore(which, targets, **options)
    return targets["weight"][0, 0].item()


def test_the_snapshot_is_taken_before_save_returns(store):
    saver = manager(store)
    store.add(Fault("put", "*/data/*", Action.SLOW, seconds=0.2))
    tensors = state(5)
    saver.save(5, tensors)
    tensors["weight"].zero_()
    saver.wait(5)
    assert loaded(saver) == 5


def test_nothing_committed_means_none_and_leaves_the_targets_alone(store):
    assert manager(store).restore("latest", {"weight": torch.ones(2)}) is None


def test_a_refused_listing_is_never_taken_for_an_empty_store(store):
    saver = manager(store)
    save(saver, 1)
    store.add(Fault("children", "*", Action.FORBIDDEN))
    with pytest.raises(NotAllowedError, match="403"):
        saver.restore("latest", state())


def test_a_store_that_does_not_answer_is_never_taken_for_an_empty_store(store):
    saver = manager(store, load_deadline_s=0.5)
    store.add(Fault("children", "*", Action.UNAVAILABLE))
    with pytest.raises(Exception, match="503"):
        saver.restore("latest", state())


def test_forbidden_storage_fails_the_opening_and_not_the_first_commit(store):
    store.add(Fault("put_if_absent", "*", Action.FORBIDDEN))
    with pytest.raises(NotAllowedError, match="put_if_absent"):
        manager(store)


def test_training_goes_on_through_503_and_the_commit_comes_late(store):
    saver = manager(store)
    store.add(Fault("put", "*/data/*", Action.UNAVAILABLE, times=4))
    began_s = time.monotonic()
    saver.save(1, state())
    assert time.monotonic() - began_s < 0.2
    (commit,) = saver.wait(8)
    assert commit.retries == 4
    assert commit.stall_s < 0.2 < commit.seconds


def test_a_stall_without_an_error_holds_up_saves_but_never_training(store):
    saver = manager(store, deadline_s=0.5)
    store.add(Fault("put", "*/data/*", Action.STALL))
    began_s = time.monotonic()
    for step in (1, 2, 3):
        saver.save(step, state())
    assert time.monotonic() - began_s < 1.0
    assert saver.health().pending == 2
    time.sleep(0.7)
    reasons = {failure.step: failure.reason for failure in saver.take_failures()}
    assert "staging buffers" in reasons[3]
    assert "upload has not finished" in reasons[1]
    store.clear()
    time.sleep(0.2)
    save(saver, 4)
    assert loaded(saver) == 1 or loaded(saver) == 4
    assert Catalog(store).newest_committed().step == 4


def test_health_names_the_storage_error_while_a_save_is_late(store):
    saver = manager(store)
    store.add(Fault("put", "*/data/*", Action.UNAVAILABLE, times=3))
    saver.save(1, state())
    time.sleep(0.1)
    assert "503" in saver.health().last_error
    assert saver.health().oldest_pending_s > 0
    saver.wait(8)
    assert saver.health().last_error == ""


def test_a_full_disk_at_the_pointer_write_leaves_the_old_pointer_and_the_next_save_works(store):
    saver = manager(store)
    (first,) = save(saver, 1)
    store.add(Fault("compare_and_swap", LATEST, Action.FULL), Fault("put_if_absent", f"*/{MANIFEST}", Action.FULL))
    saver.save(2, state(2))
    with pytest.raises(SaveFailedError, match="no space left"):
        saver.wait(5)
    assert json.loads(store.get(LATEST))["id"] == first
    assert loaded(saver) == 1
    store.clear()
    (third,) = save(saver, 3)
    assert json.loads(store.get(LATEST))["id"] == third
    assert loaded(saver) == 3


def test_a_full_disk_at_the_hint_alone_does_not_undo_the_commit(store):
    saver = manager(store)
    store.add(Fault("compare_and_swap", LATEST, Action.FULL))
    save(saver, 2)
    assert loaded(saver) == 2


def test_a_lost_answer_to_the_commit_is_found_to_be_our_own_commit(store):
    saver = manager(store)
    store.add(Fault("put_if_absent", f"*/{MANIFEST}", Action.LOST_REPLY, times=1))
    assert len(save(saver, 1)) == 1


def test_a_torn_data_object_is_written_again_before_the_commit(store):
    saver = manager(store)
    store.add(Fault("put", "*/data/*", Action.TORN, times=1))
    save(saver, 1)
    assert loaded(saver) == 1


def test_storage_that_alters_bytes_is_caught_before_the_commit_when_saves_are_read_back(store):
    class Altering(FaultyStore):
        def put(self, key, data, *, crc64=None):
            super().put(key, bytes([*data[:-1], data[-1] ^ 1]) if "/data/" in key else data)

    saver = manager(Altering(store), verify_on_save=True)
    saver.save(1, state())
    with pytest.raises(SaveFailedError, match="alters bytes"):
        saver.wait(5)
    assert Catalog(store).newest_committed() is None


@pytest.mark.parametrize(
    ("victim", "damage", "reason"),
    [
        ("data/00000-0.bin", {"flip_byte": 100}, "checksum"),
        ("data/00000-0.bin", {"truncate_to": 50}, "it has only 50"),
        ("data/00000-0.bin", None, "no such object"),
        ("rank/00000.idx", {"flip_byte": 60}, "others are there"),
        ("rank/00000.idx", {"truncate_to": 70}, "others are there"),
        ("rank/00000.idx", None, "is missing"),
        ("MANIFEST", {"truncate_to": 30}, "SAMITE-MANIFEST header"),
        ("MANIFEST", {"truncate_to": 90}, "are there"),
        ("MANIFEST", {"flip_byte": 120}, "checksum"),
    ],
)
def test_damage_of_any_part_falls_back_to_the_older_checkpoint_and_is_quarantined_with_its_reason(store, victim, damage, reason):
    saver = manager(store)
    older, newer = save(saver, 1, 2)
    if damage is None:
        store.delete([checkpoint_key(newer, victim)])
    else:
        store.inner.corrupt(checkpoint_key(newer, victim), **damage)
    targets = state(0.0)
    restored = saver.restore("latest", targets)
    assert (restored.checkpoint_id, restored.step, restored.extra) == (older, 1, {"cursor": 1})
    assert targets["weight"].eq(1).all()
    assert reason in restored.walked_past[0][1]
    entry = Catalog(store).entry(newer)
    assert entry.state is State.QUARANTINED
    assert reason in entry.reason


def test_when_nothing_usable_is_left_the_run_does_not_start_from_scratch(store):
    saver = manager(store)
    (only,) = save(saver, 1)
    store.inner.corrupt(checkpoint_key(only, "data/00000-0.bin"), flip_byte=0)
    for _ in range(2):
        with pytest.raises(CheckpointDamagedError, match="no usable checkpoint is left"):
            saver.restore("latest", state())


def test_a_named_checkpoint_that_is_damaged_is_an_error_and_not_replaced_by_another(store):
    saver = manager(store)
    _, newer = save(saver, 1, 2)
    store.inner.corrupt(checkpoint_key(newer, "data/00000-0.bin"), flip_byte=0)
    with pytest.raises(CheckpointDamagedError, match=newer):
        saver.restore(newer, state())


def test_an_unknown_checkpoint_is_named_with_those_that_exist(store):
    saver = manager(store)
    (only,) = save(saver, 1)
    with pytest.raises(NotFoundError, match=only):
        saver.restore("00000099-1-deadbeef", state())


def test_a_partial_write_is_never_chosen(store):
    saver = manager(store)
    save(saver, 1)
    store.add(Fault("put_if_absent", f"*/{MANIFEST}", Action.FORBIDDEN))
    with pytest.raises(SaveFailedError):
        saver.save(2, state(2), asynchronous=False)
    assert loaded(saver) == 1


def test_a_zombie_of_an_older_attempt_cannot_commit(store):
    zombie = manager(store, epoch=1)
    save(zombie, 1)
    successor = manager(store, epoch=2)
    zombie.save(50, state(50))
    with pytest.raises(SaveFailedError, match="must not commit"):
        zombie.wait(5)
    assert loaded(successor) == 1
    with pytest.raises(FencedError, match="attempt 2 has begun"):
        manager(store, epoch=1)


def test_a_zombie_whose_commit_was_already_on_its_way_does_not_count_either(store):
    zombie = manager(store, epoch=1)
    save(zombie, 1)
    store.add(Fault("put_if_absent", f"*/{MANIFEST}", Action.STALL, times=1))
    zombie.save(50, state(50))
    time.sleep(0.3)
    successor = manager(store, epoch=2)
    store.clear()
    with pytest.raises(SaveFailedError, match="does not count"):
        zombie.wait(5)
    assert loaded(successor) == 1
    assert [entry.state for entry in Catalog(store).list() if entry.step == 50] == [State.FENCED]


def test_a_later_attempt_that_rolled_back_wins_over_a_larger_step_of_an_older_one(store):
    save(manager(store, epoch=1), 10, 20)
    second = manager(store, epoch=2)
    save(second, 15)
    assert loaded(manager(store, epoch=3)) == 15


def test_a_restarted_worker_group_goes_on_from_its_own_attempt(store):
    first = manager(store, epoch=1)
    start, _ = save(first, 10, 20)
    assert loaded(manager(store, epoch=2), start, own_first=True) == 10
    save(manager(store, epoch=2), 12)
    assert loaded(manager(store, epoch=2), start, own_first=True) == 12


def test_another_runs_prefix_is_refused(store):
    save(manager(store), 1)
    with pytest.raises(ConflictError, match="holds checkpoints of run run"):
        manager(store, run_uid="other", epoch=9)


def test_extra_targets_and_unused_tensors_are_allowed_only_by_name(store):
    saver = manager(store)
    save(saver, 1)
    targets = {"weight": torch.zeros(40, 50), "new.bias": torch.ones(3)}
    with pytest.raises(RestoreMismatchError, match=r"new\.bias.*\n.*step"):
        saver.restore("latest", targets)
    restored = saver.restore("latest", targets, allow_missing=["new.*"], allow_unused=["step"])
    assert restored.step == 1
    assert targets["weight"].eq(1).all()
    assert targets["new.bias"].eq(1).all()


@pytest.mark.parametrize(("bad", "said"), [(object(), "not JSON serializable"), (float("nan"), "not JSON compliant"), ({1, 2}, "not JSON")])
def test_extra_must_be_json_and_says_so_at_once(store, bad, said: str):
    with pytest.raises(SamiteError, match=said):
        manager(store).save(1, state(), {"bad": bad})


def test_staging_buffers_are_reused_and_not_allocated_again(store):
    saver = manager(store, buffers=1)
    save(saver, 1)
    (buffer,) = saver._pool._free
    address = buffer._tensor.data_ptr()
    save(saver, 2, 3)
    assert buffer._tensor.data_ptr() == address


def test_files_survive_and_a_new_process_would_find_them(tmp_path: Path):
    uri = f"file://{tmp_path}/a folder/run"
    save(manager(uri), 1, 2)
    assert loaded(manager(uri, epoch=2)) == 2


def test_a_synchronous_save_raises_for_itself_and_not_for_an_earlier_one(store):
    saver = manager(store)
    store.add(Fault("put", "*/data/*", Action.FULL, times=1))
    saver.save(1, state(1))
    saver.drain(5)
    saver.save(2, state(2), asynchronous=False)
    assert [failure.step for failure in saver.take_failures()] == [1]
    store.add(Fault("put", "*/data/*", Action.FORBIDDEN))
    with pytest.raises(SaveFailedError, match="step 3"):
        saver.save(3, state(3), asynchronous=False)
    assert saver.take_failures() == []


def test_a_save_ends_by_its_deadline_even_if_storage_holds_every_thread(store, monkeypatch):
    monkeypatch.setattr("samite_workloads.checkpoint.jobs.LAST_RESORT_S", 0.2)
    saver = manager(store, deadline_s=0.3)
    store.add(Fault("children", "*/rank/", Action.STALL))
    with pytest.raises(SaveFailedError, match="has not answered"):
        saver.save(1, state(1), asynchronous=False)
    store.clear()


def test_a_manager_that_is_dropped_finishes_its_save_and_leaves_no_thread(store):
    before = set(threading.enumerate())
    saver = manager(store)
    saver.save(1, state(3.0))
    mine = [thread for thread in threading.enumerate() if thread not in before and thread.name.startswith("samite-")]
    assert {thread.name for thread in mine} >= {"samite-upload", "samite-commit"}
    del saver
    gc.collect()
    for thread in mine:
        thread.join(timeout=10.0)
        assert not thread.is_alive()
    assert loaded(manager(store, epoch=2)) == 3.0
