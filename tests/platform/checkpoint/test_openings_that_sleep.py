"""A session whose opener is held up between two of its requests, while others commit or open: no acknowledged commit is lost, no newer session undone."""

import contextlib
import secrets

import pytest

from samite.checkpoint import Catalog
from samite.checkpoint.commit import commit
from samite.checkpoint.fence import Fence, FencedError, open_session
from samite.checkpoint.layout import FENCES, CheckpointId, SessionId
from samite.checkpoint.manifest import Manifest
from samite.checkpoint.retention import KeepPolicy, carry_out, plan_for
from samite.checkpoint.store import MemoryStore
from samite.checkpoint.store.faulty import FaultyStore


class SleepingStore(FaultyStore):
    """Does `meanwhile` before its request number `at`."""

    def __init__(self, inner, at: int, meanwhile) -> None:
        super().__init__(inner)
        self._at, self._meanwhile = at, meanwhile

    def _do(self, operation, key, call, data=None):
        self._at -= 1
        if self._at == 0:
            self._meanwhile()
        return call()


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(f"memory://{secrets.token_hex(6)}")


def opened(store, epoch: int) -> Fence:
    return open_session(store, run_uid="run", epoch=epoch, nonce=secrets.token_hex(8))


def save(store, fence: Fence, step: int) -> str:
    """A commit and the retention after it, as a writer does them that keeps one."""
    one = str(CheckpointId(step=step, epoch=fence.session.epoch, attempt=secrets.token_hex(4)))
    commit(store, Manifest(checkpoint_id=one, step=step, session=fence.session, run_uid="run", ranks=(), num_tensors=0, created_unix_s=1.0))
    carry_out(Catalog(store), plan_for(Catalog(store), KeepPolicy(last=1)))
    return one


REQUESTS = range(1, 30)


@pytest.mark.parametrize("at", REQUESTS)
def test_what_an_older_attempt_commits_while_a_newer_one_opens_is_inherited_or_refused_but_never_lost(store, at: int):
    old = opened(store, 1)
    kept = [save(store, old, 1)]

    def goes_on() -> None:
        for step in (2, 3):
            try:
                kept.append(save(store, old, step))
            except FencedError:
                return

    fence = opened(SleepingStore(store, at, goes_on), 2)
    newest = Catalog(store).newest_committed()
    assert newest is not None, "everything was deleted or does not count"
    assert newest.checkpoint_id == kept[-1]
    late = Manifest(
        checkpoint_id="00000099-1-00000000", step=99, session=old.session, run_uid="run", ranks=(), num_tensors=0, created_unix_s=1.0
    )
    with pytest.raises(FencedError):
        commit(store, late)
    assert save(store, fence, 4) == Catalog(store).newest_committed().checkpoint_id


@pytest.mark.parametrize("at", REQUESTS)
def test_an_opener_that_wakes_up_after_a_newer_one_withdraws_and_undoes_nothing(store, at: int):
    old = opened(store, 1)
    kept, newer = [save(store, old, 1)], []

    def newer_attempt() -> None:
        with contextlib.suppress(FencedError):
            kept.append(save(store, old, 2))
        newer.append(opened(store, 3))

    try:
        opened(SleepingStore(store, at, newer_attempt), 2)
    except FencedError:
        assert [SessionId.parse(name) for name in store.children(FENCES)][-1] == newer[0].session
    if newer:
        assert Catalog(store).newest_committed().checkpoint_id == kept[-1]
        assert SessionId(3, 0) == max(SessionId.parse(name) for name in store.children(FENCES))
