"""A near tier beside the store: saves go where it is their turn, a restore takes the newest whole one of any tier, and a lost tier costs little."""

import secrets
from pathlib import Path

import pytest
import torch

from samite.checkpoint import Catalog, State, open_store
from samite.checkpoint.layout import MANIFEST, checkpoint_key
from samite.checkpoint.store.faulty import Action, Fault, FaultyStore
from samite.errors import CheckpointDamagedError, NotAllowedError, NotFoundError, UsageError
from samite_workloads.checkpoint import CheckpointOptions, SaveFailedError
from samite_workloads.checkpoint.tiers import TieredManager

torch.set_num_threads(1)


@pytest.fixture
def near() -> FaultyStore:
    return FaultyStore(open_store(f"memory://near-{secrets.token_hex(6)}"))


@pytest.fixture
def far() -> FaultyStore:
    return FaultyStore(open_store(f"memory://far-{secrets.token_hex(6)}"))


def manager(near, far, *, epoch: int = 1, **changes) -> TieredManager:
    settings = {"store_every": 3, "keep_near": 2, **changes}
    return TieredManager(near, far, run_uid="run", epoch=epoch, options=CheckpointOptions(deadline_s=5.0, load_deadline_s=1.0), **settings)


def state(step: float) -> dict[str, torch.Tensor]:
    return {"w": torch.arange(2000.0) + step, "n": torch.tensor(int(step))}


def save(saver: TieredManager, *steps: int, **changes) -> list[str]:
    for step in steps:
        saver.save(step, state(step), {"cursor": step}, asynchronous=False, **changes)
    return [commit.checkpoint_id for commit in sorted(saver.poll(), key=lambda commit: commit.step)]


def loaded(saver: TieredManager, which: str = "latest", **changes) -> int:
    targets = state(-1)
    restored = saver.restore(which, targets, **changes)
    assert restored.extra == {"cursor": restored.step}
    assert all(torch.equal(targets[name], tensor) for name, tensor in state(restored.step).items())
    return restored.step


def steps(store) -> list[int]:
    return sorted(entry.step for entry in Catalog(store).list() if entry.usable)


def lose(store: FaultyStore) -> None:
    store.inner.delete([info.key for info in list(store.inner.list(""))])


def test_each_third_save_goes_to_the_store_and_the_near_tier_keeps_the_last_two(near, far):
    save(manager(near, far), *range(1, 9))
    assert steps(far) == [1, 4, 7]
    assert steps(near) == [6, 8]


def test_a_final_save_always_goes_to_the_store(near, far):
    saver = manager(near, far)
    save(saver, 1, 2)
    save(saver, 3, final=True)
    assert steps(far) == [1, 3]
    assert Catalog(far).find("3").manifest.final


@pytest.mark.parametrize("count", range(1, 9))
def test_the_newest_of_any_tier_is_restored_by_the_next_attempt(near, far, count: int):
    save(manager(near, far), *range(1, count + 1))
    assert loaded(manager(near, far, epoch=2)) == count


@pytest.mark.parametrize("count", range(1, 9))
def test_a_near_tier_that_is_lost_costs_no_more_than_the_saves_since_the_newest_in_the_store(near, far, count: int):
    save(manager(near, far), *range(1, count + 1))
    lose(near)
    second = manager(near, far, epoch=2)
    step = loaded(second)
    assert step == 1 + 3 * ((count - 1) // 3)
    save(second, step + 1, step + 2)
    assert loaded(manager(near, far, epoch=3)) == step + 2


def test_damage_in_the_near_tier_leads_to_the_next_newest_of_any_tier_and_is_set_aside(near, far):
    ids = save(manager(near, far, keep_near=5), *range(1, 7))
    for one, place in ((ids[5], 0), (ids[4], 1)):
        near.inner.corrupt(checkpoint_key(one, "data/00000-0.bin"), flip_byte=500 + place)
    second, targets = manager(near, far, epoch=2), state(-1)
    restored = second.restore("latest", targets)
    assert restored.step == 4
    assert [one for one, _ in restored.walked_past] == [ids[5], ids[4]]
    assert torch.equal(targets["w"], state(4)["w"])
    assert {entry.step: entry.state for entry in Catalog(near).list()}[6] is State.QUARANTINED


def test_damage_everywhere_is_told_and_never_taken_for_a_first_start(near, far):
    for one in save(manager(near, far), 1, 2):
        for store in (near, far):
            if store.inner.head(checkpoint_key(one, MANIFEST)) is not None:
                store.inner.corrupt(checkpoint_key(one, "data/00000-0.bin"), flip_byte=900)
    with pytest.raises(CheckpointDamagedError):
        manager(near, far, epoch=2).restore("latest", state(-1))
    with pytest.raises(CheckpointDamagedError):
        manager(near, far, epoch=3).restore("latest", state(-1))


def test_a_later_attempt_wins_over_a_larger_step_of_an_older_one_whatever_the_tier(near, far):
    save(manager(near, far), *range(1, 7))
    second = manager(near, far, epoch=2)
    save(second, 3)  # it rolled back on purpose; its first save goes to the store
    assert loaded(manager(near, far, epoch=3)) == 3


def test_a_named_checkpoint_is_found_in_either_tier_and_the_own_newer_one_may_win(near, far):
    saver = manager(near, far)
    ids = save(saver, 1, 2, 3, 4)
    assert [loaded(saver, one) for one in (ids[0], ids[2], ids[3])] == [1, 3, 4]
    assert loaded(saver, ids[0], own_first=True) == 4
    assert loaded(manager(near, far, epoch=2), ids[0], own_first=True) == 1
    with pytest.raises(NotFoundError):
        saver.restore("00000099-1-00000000", state(-1))


def test_a_full_near_tier_is_a_failure_that_is_told_while_the_store_still_gets_its_own(near, far):
    saver = manager(near, far)
    near.add(Fault("put", "*", Action.FULL))
    for step in range(1, 8):
        saver.save(step, state(step), {"cursor": step})
        saver.wait(10)
    assert sorted(failure.step for failure in saver.take_failures()) == [2, 3, 5, 6]
    assert loaded(manager(near, far, epoch=2)) == 7


def test_a_store_that_fails_is_raised_by_wait_although_the_near_tier_works(near, far):
    saver = manager(near, far)
    save(saver, 1)
    far.add(Fault("put", "*/data/*", Action.FULL))
    for step in (2, 3, 4):
        saver.save(step, state(step), {"cursor": step})
    with pytest.raises(SaveFailedError, match="step 4"):
        saver.wait(10)
    assert loaded(saver) == 3


def test_a_near_tier_that_cannot_be_used_leaves_all_to_the_store_and_says_why(near, far):
    near.add(Fault("put", "*", Action.FORBIDDEN))
    saver = manager(near, far)
    assert "403" in saver.near_problem
    save(saver, 1, 2, 3)
    assert steps(far) == [1, 2, 3]


def test_a_refusal_of_the_store_is_raised_although_the_near_tier_has_something(near, far):
    saver = manager(near, far)
    save(saver, 1, 2)
    far.add(Fault("children", "*", Action.FORBIDDEN))
    with pytest.raises(NotAllowedError):
        saver.restore("latest", state(-1))


@pytest.mark.parametrize(
    ("operation", "action"), [("children", Action.FORBIDDEN), ("read_into", Action.FORBIDDEN), ("read_into", Action.UNAVAILABLE)]
)
def test_a_near_tier_that_refuses_or_does_not_answer_during_a_restore_counts_as_lost(near, far, operation: str, action: Action):
    saver = manager(near, far)
    save(saver, 1, 2)
    near.add(Fault(operation, "*", action))
    assert loaded(saver) == 1
    near.clear()
    assert loaded(saver) == 2, "nothing was set aside for it"


def test_counts_that_make_no_sense_are_refused(near, far):
    with pytest.raises(UsageError, match="at least 1"):
        manager(near, far, store_every=0)


@pytest.mark.parametrize("shared", [True, False])
def test_several_ranks_use_a_near_folder_only_if_all_of_them_see_it(ranks, tmp_path: Path, shared: bool):
    for report in ranks("tiers_of_ranks", 3, uri=str(tmp_path / "store"), near=str(tmp_path / "near"), shared=shared):
        assert report["wrong"] == []
        assert report["step"] == 5
        assert bool(report["problem"]) != shared
        assert report["stored"] == ([1, 3, 5] if shared else [1, 2, 3, 4, 5])
