"""What is kept, what is deleted and how; and the hand-over that protects its checkpoint."""

import contextlib
import secrets

import pytest

from samite.checkpoint import Catalog, Entry, Level, State
from samite.checkpoint.envelope import UnknownFormatError, seal, unseal
from samite.checkpoint.handover import commit_document, read_document
from samite.checkpoint.layout import SessionId, checkpoint_key
from samite.checkpoint.manifest import Manifest
from samite.checkpoint.retention import KeepPolicy, carry_out, delete_checkpoint, plan_for, retention_plan
from samite.checkpoint.store import MemoryStore, open_store
from samite.checkpoint.store.faulty import Action, Fault, FaultyStore
from samite.errors import CheckpointDamagedError, ConflictError, NotFoundError, TemporaryError


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(f"memory://{secrets.token_hex(6)}")


def entry(
    step: int, state: State = State.COMMITTED, *, pinned: bool = False, final: bool = False, epoch: int = 1, age_s: float = 0
) -> Entry:
    one = f"{step:08d}-{epoch}-0000abcd"
    manifest = None
    if state in {State.COMMITTED, State.VERIFIED, State.FENCED}:
        manifest = Manifest(
            checkpoint_id=one, step=step, session=SessionId(epoch, 0), run_uid="r", ranks=(), num_tensors=0, created_unix_s=0, final=final
        )
    return Entry(
        checkpoint_id=one, step=step, epoch=epoch, state=state, pinned=pinned, manifest=manifest, modified_unix_s=1_000_000 - age_s
    )


def deleted(*entries: Entry, referenced=(), newest_epoch: int = 1, **policy) -> list[int]:
    ordered = sorted(entries, key=lambda one: one.order, reverse=True)
    plan = retention_plan(ordered, KeepPolicy(**policy), referenced=referenced, newest_epoch=newest_epoch, now_unix_s=1_000_000)
    return sorted(verdict.entry.step for verdict in plan if verdict.delete)


def test_the_newest_are_kept():
    assert deleted(*map(entry, range(10, 60, 10)), last=2) == [10, 20, 30]


def test_the_newest_verified_one_is_kept_although_newer_unverified_ones_exist():
    assert deleted(entry(10), entry(20, State.VERIFIED), entry(30), entry(40), last=1) == [10, 30]


def test_pinned_final_and_referenced_ones_are_kept():
    entries = entry(10, pinned=True), entry(20, final=True), entry(30), entry(40), entry(50)
    assert deleted(*entries, referenced={"00000030-1-0000abcd"}, last=1) == [40]
    assert deleted(*entries, referenced={"00000030-1-0000abcd"}, last=1, stage_final=False) == [20, 40]


def test_the_first_of_each_so_many_steps_is_kept_even_if_steps_do_not_divide():
    assert deleted(*map(entry, (7, 13, 19, 104, 111, 205, 206)), last=1, every_steps=100) == [13, 19, 111, 205][:3]


def test_a_rolled_back_attempts_older_steps_count_as_newest():
    assert deleted(entry(100, epoch=1), entry(200, epoch=1), entry(120, epoch=2), last=1, newest_epoch=2) == [100, 200]


def test_quarantined_ones_stay_unless_asked_for_and_zombies_go_once_a_newer_attempt_has_committed():
    entries = entry(10), entry(20, State.QUARANTINED), entry(30, State.FENCED), entry(40, State.DAMAGED)
    assert deleted(*entries) == []
    assert deleted(*entries, entry(11, epoch=2)) == [30]
    assert deleted(*entries, entry(11, epoch=2), quarantined=False) == [20, 30]


def test_unfinished_writes_go_when_a_newer_attempt_has_begun_or_after_a_long_silence():
    entries = entry(10), entry(20, State.WRITING), entry(30, State.ABORTED), entry(40, State.WRITING, age_s=90_000)
    assert deleted(*entries, newest_epoch=1) == [40]
    assert deleted(*entries, newest_epoch=2) == [20, 30, 40]


def test_nothing_is_deleted_if_there_is_only_one():
    assert deleted(entry(10), last=1) == []
    with pytest.raises(ValueError, match="at least 1"):
        KeepPolicy(last=0)


def commit_some(store, *steps: int, epoch: int = 1) -> list[str]:
    from samite.checkpoint.commit import CommitRequest, build_manifest, commit
    from samite.checkpoint.fence import open_session
    from samite.checkpoint.index import RankIndex
    from samite.checkpoint.layout import index_name

    fence = open_session(store, run_uid="run", epoch=epoch, nonce=secrets.token_hex(4))
    ids = []
    for step in steps:
        one = f"{step:08d}-{epoch}-{secrets.token_hex(4)}"
        store.put(checkpoint_key(one, index_name(0)), RankIndex(checkpoint_id=one, rank=0, tensors=(), objects=(), chunks=()).to_bytes())
        request = CommitRequest(
            checkpoint_id=one, step=step, world_size=1, session=fence.session, run_uid="run", created_unix_s=0.0, extra={}
        )
        commit(store, build_manifest(store, request))
        ids.append(one)
    return ids


@pytest.mark.parametrize("crash_after", range(4))
def test_a_crash_at_any_point_of_a_deletion_leaves_it_unchosen_and_the_next_pass_finishes(store, crash_after: int):
    faulty = FaultyStore(store)
    old, new = commit_some(store, 1, 2)
    faulty.add(Fault("delete", "*", Action.UNAVAILABLE, skip=crash_after, times=1))
    catalog = Catalog(faulty)
    with pytest.raises(TemporaryError) if crash_after < 3 else contextlib.nullcontext():
        carry_out(catalog, plan_for(catalog, KeepPolicy(last=1)))
    assert [one.checkpoint_id for one in catalog.candidates()] == [new]
    faulty.clear()
    carry_out(catalog, plan_for(catalog, KeepPolicy(last=1)))
    assert [one.checkpoint_id for one in catalog.list()] == [new]
    assert not list(store.list(f"ckpt/{old}/"))


def test_one_that_was_pinned_between_plan_and_act_stays(store):
    old, _ = commit_some(store, 1, 2)
    catalog = Catalog(store)
    plan = plan_for(catalog, KeepPolicy(last=1))
    catalog.pin(old, "wanted")
    assert carry_out(catalog, plan) == []
    assert catalog.entry(old).pinned
    catalog.unpin(old)
    assert carry_out(catalog, plan_for(catalog, KeepPolicy(last=1))) == [old]


def test_fences_that_judge_nothing_any_more_are_removed_and_a_zombies_commit_stays_out(store):
    (first,) = commit_some(store, 1)
    (second,) = commit_some(store, 2, epoch=2)
    commit_some(store, 3, epoch=3)
    catalog = Catalog(store)
    catalog.quarantine(first, "test")
    carry_out(catalog, plan_for(catalog, KeepPolicy(last=1)))
    assert list(store.children("fence/")) == ["00000002-0000", "00000003-0000"]  # fence 2 still judges `first`
    carry_out(catalog, plan_for(catalog, KeepPolicy(last=1, quarantined=False)))
    carry_out(catalog, plan_for(catalog, KeepPolicy(last=1)))
    assert list(store.children("fence/")) == ["00000003-0000"]
    assert [one.step for one in catalog.list()] == [3]
    assert second not in [one.checkpoint_id for one in catalog.list()]


def test_newest_verified_quarantines_what_it_passes(store):
    first, second, third = commit_some(store, 1, 2, 3)
    store.delete([checkpoint_key(third, "rank/00000.idx")])
    store.corrupt(checkpoint_key(second, "MANIFEST"), truncate_to=50)
    catalog = Catalog(store)
    assert catalog.newest_verified(Level.FULL).checkpoint_id == first
    states = {one.checkpoint_id: (one.state, one.reason) for one in catalog.list()}
    assert states[first][0] is State.VERIFIED
    assert states[second][0] is states[third][0] is State.QUARANTINED
    assert "is missing" in states[third][1]


def handover(checkpoint_id: str, stage: str = "pretrain-8k") -> dict:
    return {"format": 1, "runUid": "run", "stageIndex": 0, "stage": stage, "checkpointId": checkpoint_id, "gate": []}


def test_a_handover_is_decided_once_and_again_only_the_same(store):
    first, second = commit_some(store, 1, 2)
    commit_document(store, "pretrain-8k", handover(first))
    commit_document(store, "pretrain-8k", handover(first))
    assert read_document(store, "pretrain-8k") == handover(first)
    with pytest.raises(ConflictError, match=f"already handed over with {first}"):
        commit_document(store, "pretrain-8k", handover(second))
    with pytest.raises(NotFoundError, match="must not start"):
        read_document(store, "extend-64k")


def test_a_handover_protects_its_checkpoint(store):
    first, second, _ = commit_some(store, 1, 2, 3)
    commit_document(store, "pretrain-8k", handover(first))
    catalog = Catalog(store)
    assert carry_out(catalog, plan_for(catalog, KeepPolicy(last=1))) == [second]
    assert catalog.entry(first).usable


def test_an_unreadable_handover_stops_retention_instead_of_losing_what_it_protects(store):
    commit_some(store, 1, 2, 3)
    store.put("handover/pretrain-8k.json", b"{")
    catalog = Catalog(store)
    with pytest.raises(CheckpointDamagedError, match="is no hand-over"):
        plan_for(catalog, KeepPolicy(last=1))


def test_a_newer_samites_checkpoint_is_neither_skipped_nor_deleted_nor_called_damaged(store):
    older, newer = commit_some(store, 1, 2)
    key = checkpoint_key(newer, "MANIFEST")
    body = unseal("MANIFEST", store.get(key), name=key)
    store.put(key, seal("MANIFEST", body, version=2))
    catalog = Catalog(store)
    assert [one.state for one in catalog.list()] == [State.FOREIGN, State.COMMITTED]
    with pytest.raises(UnknownFormatError, match="load it with the newer Samite"):
        catalog.newest_verified()
    assert carry_out(catalog, plan_for(catalog, KeepPolicy(last=1))) == []
    assert catalog.ever_committed()
    assert catalog.entry(older).usable


@pytest.mark.parametrize("action", [Action.FULL, Action.FORBIDDEN])
def test_a_marker_that_cannot_be_written_takes_nothing_from_the_verdict(store, action: Action):
    (checkpoint_id,) = commit_some(store, 1)
    catalog = Catalog(FaultyStore(store, [Fault("put", "*/VERIFIED", action)]))
    report = catalog.verify(checkpoint_id, Level.FULL)
    assert report.ok
    assert report.unmarked
    assert catalog.find(checkpoint_id).state is State.COMMITTED


def test_a_folder_that_storage_keeps_after_all_in_it_is_gone_is_no_checkpoint(tmp_path):
    place = open_store((tmp_path / "run").as_uri())
    first, second = commit_some(place, 1, 2)
    delete_checkpoint(place, first)
    (tmp_path / "run" / "ckpt" / first).mkdir(exist_ok=True)
    catalog = Catalog(place)
    assert [one.checkpoint_id for one in catalog.list()] == [second]
    assert [one.entry.checkpoint_id for one in plan_for(catalog, KeepPolicy(stale_after_s=0.0))] == [second]
    with pytest.raises(NotFoundError):
        catalog.entry(first)
