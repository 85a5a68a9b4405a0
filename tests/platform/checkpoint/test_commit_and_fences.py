"""Commits decided by storage alone: races, zombies, contradictory ranks."""

import secrets
import threading

import pytest

from samite.checkpoint import Catalog, State
from samite.checkpoint.checksum import block_checksums, combine_blocks
from samite.checkpoint.commit import CommitRequest, SaveRefusedError, arrivals, build_manifest, commit, move_hint
from samite.checkpoint.fence import FencedError, counts, open_session, read_fences
from samite.checkpoint.index import Chunk, DataObject, RankIndex, TensorMeta, Witness
from samite.checkpoint.layout import CheckpointId, SessionId, checkpoint_key, data_name, index_name
from samite.checkpoint.store import MemoryStore
from samite.errors import CheckpointDamagedError, ConflictError


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(f"memory://{secrets.token_hex(6)}")


def session(store, epoch: int = 1):
    return open_session(store, run_uid="run", epoch=epoch, nonce=secrets.token_hex(8))


def write_rank(store, checkpoint_id: str, rank: int, world: int, *, rows=None, witnesses=(), dtype="float32", rank_says=None) -> None:
    """One rank's part of a [world * 2, 3] tensor `w`: two rows, unless told otherwise."""
    begin, end = rows or (rank * 2, rank * 2 + 2)
    data = bytes(range(256))[: (end - begin) * 12]
    checksum = combine_blocks(block_checksums(memoryview(data)), len(data))
    store.put(checkpoint_key(checkpoint_id, data_name(rank, 0)), data)
    index = RankIndex(
        checkpoint_id=checkpoint_id,
        rank=rank if rank_says is None else rank_says,
        tensors=(TensorMeta("w", dtype, (world * 2, 3)),),
        objects=(DataObject(data_name(rank, 0), len(data), checksum),),
        chunks=(Chunk(0, ((begin, end - begin), (0, 3)), 0, len(data), 0, 0, checksum, (checksum,)),),
        witnesses=tuple(witnesses),
    )
    store.put(checkpoint_key(checkpoint_id, index_name(rank)), index.to_bytes())


def request(checkpoint_id: str, fence, world: int = 2, **extra) -> CommitRequest:
    parsed = CheckpointId.parse(checkpoint_id)
    return CommitRequest(
        checkpoint_id=checkpoint_id,
        step=parsed.step,
        world_size=world,
        session=fence.session,
        run_uid="run",
        created_unix_s=1.0,
        extra=extra,
    )


def new_id(step: int = 5, epoch: int = 1) -> str:
    return str(CheckpointId(step=step, epoch=epoch, attempt=secrets.token_hex(4)))


def committed(store, fence, step: int = 5, **extra) -> str:
    checkpoint_id = new_id(step, fence.session.epoch)
    for rank in (0, 1):
        write_rank(store, checkpoint_id, rank, 2)
    commit(store, build_manifest(store, request(checkpoint_id, fence, **extra)))
    return checkpoint_id


def test_a_checkpoint_exists_from_the_manifest_on_and_not_before(store):
    fence, one = session(store), new_id()
    write_rank(store, one, 0, 2)
    assert arrivals(store, one, 2).present == {0}
    write_rank(store, one, 1, 2)
    assert arrivals(store, one, 2).present == {0, 1}
    assert Catalog(store).newest_committed() is None
    commit(store, build_manifest(store, request(one, fence)))
    assert Catalog(store).newest_committed().checkpoint_id == one


def test_of_sixteen_coordinators_exactly_one_commits(store):
    fence, one = session(store), new_id()
    for rank in (0, 1):
        write_rank(store, one, rank, 2)
    outcomes = []

    def try_commit(number: int) -> None:
        manifest = build_manifest(store, request(one, fence, coordinator=number))
        try:
            commit(store, manifest)
            outcomes.append(number)
        except ConflictError:
            outcomes.append(None)

    threads = [threading.Thread(target=try_commit, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = [number for number in outcomes if number is not None]
    assert len(outcomes) == 16
    assert Catalog(store).manifest(one).extra == {"coordinator": winner}


def test_a_manifest_that_storage_tears_is_called_torn_and_set_aside_at_once(store):
    fence, one = session(store), new_id()
    before = committed(store, fence, step=4)
    for rank in (0, 1):
        write_rank(store, one, rank, 2)
    manifest = build_manifest(store, request(one, fence))
    store.put(checkpoint_key(one, "MANIFEST"), manifest.to_bytes()[:100])  # a create-once that failed half way
    with pytest.raises(CheckpointDamagedError, match=r"the commit was cut short: .*its header promises [0-9]+ bytes, [0-9]+ are there"):
        commit(store, manifest)
    assert Catalog(store).entry(one).state is State.QUARANTINED
    assert [entry.checkpoint_id for entry in Catalog(store).candidates()] == [before]


def test_of_sixteen_sessions_that_begin_at_once_each_gets_its_own_place(store):
    found = []
    threads = [threading.Thread(target=lambda: found.append(session(store).session)) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [SessionId(1, seq) for seq in range(16)]


def test_an_older_attempt_is_refused_at_its_start_and_at_its_commit(store):
    old = session(store, 1)
    session(store, 2)
    with pytest.raises(FencedError, match="attempt 2 has begun"):
        session(store, 1)
    with pytest.raises(FencedError, match="must not commit"):
        committed(store, old)


def test_a_commit_that_arrives_after_the_fence_never_counts_however_long_it_was_under_way(store):
    old, one = session(store, 1), new_id()
    before = committed(store, old, step=4)
    for rank in (0, 1):
        write_rank(store, one, rank, 2)
    manifest = build_manifest(store, request(one, old))
    newer = session(store, 2)
    store.put(checkpoint_key(one, "MANIFEST"), manifest.to_bytes())  # the delayed request arrives
    states = {entry.checkpoint_id: entry.state for entry in Catalog(store).list()}
    assert states == {before: State.COMMITTED, one: State.FENCED}
    session(store, 3)  # a still later session sees both, which must not bring the zombie's back
    assert Catalog(store).newest_committed().checkpoint_id == before
    after = committed(store, session(store, 3), step=2)
    assert Catalog(store).newest_committed().checkpoint_id == after
    assert counts(before, newer.session, read_fences(store))


def test_a_checkpoint_whose_run_is_another_is_refused(store):
    session(store)
    with pytest.raises(ConflictError, match="holds checkpoints of run run, this is run other"):
        open_session(store, run_uid="other", epoch=9, nonce="n")


@pytest.mark.parametrize(
    ("second_rank", "problem"),
    [
        ({"rows": (2, 3)}, "3 of 12 elements are in no rank's part"),
        ({"rows": (1, 3)}, "overlap"),
        ({"rows": (0, 2)}, "written twice"),
        ({"rows": (3, 5)}, "lies outside of shape"),
        ({"dtype": "int32"}, "rank 1 has int32"),
    ],
)
def test_parts_that_do_not_make_one_state_are_not_committed(store, second_rank, problem):
    fence, one = session(store), new_id()
    write_rank(store, one, 0, 2)
    write_rank(store, one, 1, 2, **second_rank)
    with pytest.raises(SaveRefusedError, match=problem):
        build_manifest(store, request(one, fence))


def test_replicas_that_disagree_are_not_committed(store):
    fence, one = session(store), new_id()
    for rank in (0, 1):
        write_rank(store, one, rank, 2, witnesses=[Witness(0, ((0, 4), (0, 3)), rank)])
    with pytest.raises(SaveRefusedError, match="w: ranks 0 and 1 hold different values"):
        build_manifest(store, request(one, fence))


def test_an_index_in_the_wrong_place_is_damage(store):
    fence, one = session(store), new_id()
    write_rank(store, one, 0, 2)
    write_rank(store, one, 1, 2, rank_says=0)
    with pytest.raises(CheckpointDamagedError, match="belongs to rank 0"):
        build_manifest(store, request(one, fence))


def test_the_hint_moves_but_the_listing_is_the_truth(store):
    fence = session(store)
    first, second = committed(store, fence, 1), committed(store, fence, 2)
    assert move_hint(store, first)
    store.put("LATEST", b"garbage")
    assert Catalog(store).newest_committed().checkpoint_id == second
