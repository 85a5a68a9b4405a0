"""Writer sessions: how a zombie of an older attempt is kept from committing, without clocks and without locks that can go stale.

Each manager opens a session before it restores: it creates `fence/<epoch>-<seq>`, which lists the commits it found (`inherits`). The rule for readers:

    a commit of session S counts  <=>  no fence after S exists, or the first fence after S inherits it

So what a later session saw when it began stays, and whatever an older session commits afterwards never counts, however long its request was delayed.

An opener may itself be held up between its listing and its fence, while an older session commits or a newer one begins. So it looks again when its fence
stands, and withdraws it and begins anew if anything has changed: nobody has committed under it yet, and once a fence stands no older session can.
"""

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass

from samite.checkpoint.envelope import seal, unseal
from samite.checkpoint.layout import CHECKPOINTS, FENCES, MANIFEST, CheckpointId, SessionId, checkpoint_key
from samite.checkpoint.store.base import MissingKeyError, Store
from samite.errors import CheckpointDamagedError, ConflictError, SamiteError

_MOST_TRIES = 64


class FencedError(ConflictError):
    """A newer session has begun: this writer is a zombie and must not commit any more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fence:
    """The record of one session."""

    session: SessionId
    nonce: str
    run_uid: str
    inherits: frozenset[str]

    def to_bytes(self) -> bytes:
        """The sealed document."""
        body = {
            "epoch": self.session.epoch,
            "seq": self.session.seq,
            "nonce": self.nonce,
            "run_uid": self.run_uid,
            "inherits": sorted(self.inherits),
            "created_unix_s": time.time(),
        }
        return seal("FENCE", json.dumps(body, separators=(",", ":")).encode())

    @classmethod
    def from_bytes(cls, document: bytes, *, name: str) -> "Fence":
        """Parse a sealed document."""
        body = unseal("FENCE", document, name=name)
        try:
            found = json.loads(body)
            session = SessionId(found["epoch"], found["seq"])
            return cls(session=session, nonce=found["nonce"], run_uid=found["run_uid"], inherits=frozenset(found["inherits"]))
        except (KeyError, ValueError, TypeError) as error:
            raise CheckpointDamagedError(f"{name}: its content does not parse ({error!r})") from error


def open_session(store: Store, *, run_uid: str, epoch: int, nonce: str) -> Fence:
    """Begin a writer session. `epoch` is the attempt, `nonce` random.

    Raises FencedError if a session of a newer epoch exists, ConflictError if the checkpoints belong to another run.
    """
    seq = -1
    for _ in range(_MOST_TRIES):
        fences = read_fences(store)
        for fence in fences:
            if fence.run_uid != run_uid:
                raise ConflictError(
                    f"{store.uri} holds checkpoints of run {fence.run_uid}, this is run {run_uid}; "
                    "give this run its own checkpoint.uri, and read the other's with checkpoint.loadFrom"
                )
        newest = _newest_session(store)
        if newest is not None and newest.epoch > epoch:
            raise FencedError(f"{store.uri}: attempt {newest.epoch} has begun, so attempt {epoch} must not write any more")
        seq = max(seq, newest.seq if newest is not None and newest.epoch == epoch else -1) + 1
        fence = Fence(session=SessionId(epoch, seq), nonce=nonce, run_uid=run_uid, inherits=frozenset(_committed(store)))
        if store.put_if_absent(fence.session.key(), fence.to_bytes()):
            if _newest_session(store) == fence.session and fence.inherits == frozenset(_committed(store)):
                return fence
            store.delete([fence.session.key()])
    raise SamiteError(f"{store.uri}/{FENCES}: {_MOST_TRIES} other sessions began first; something starts writers in a loop")


def guest_session(store: Store) -> tuple[SessionId, str]:
    """The session that a copy or an import commits under, and the run's uid (empty in an empty place): the newest one, and none is opened.

    So a run that writes there is not fenced, and one that begins later inherits the guest's commit.
    """
    fences = read_fences(store)
    return (fences[-1].session, fences[-1].run_uid) if fences else (SessionId(0, 0), "")


def check_still_newest(store: Store, session: SessionId) -> None:
    """Raise FencedError if a newer session than `session` has begun."""
    newest = _newest_session(store)
    if newest is not None and newest > session:
        raise FencedError(
            f"{store.uri}: session {newest.epoch}.{newest.seq} has begun, so session {session.epoch}.{session.seq} must not commit any more"
        )


def read_fences(store: Store) -> list[Fence]:
    """All fences, oldest first."""
    fences = []
    for name in store.children(FENCES):
        if SessionId.parse(name) is not None:
            try:
                fences.append(Fence.from_bytes(store.get(FENCES + name), name=f"{store.uri}/{FENCES}{name}"))
            except MissingKeyError:
                continue  # removed between listing and reading
    return sorted(fences, key=lambda fence: fence.session)


def counts(checkpoint_id: str, session: SessionId, fences: Iterable[Fence]) -> bool:
    """Whether a commit of `session` counts; `fences` in order."""
    for fence in fences:
        if fence.session > session:
            return checkpoint_id in fence.inherits
    return True


def counts_now(store: Store, checkpoint_id: str, session: SessionId) -> bool:
    """Whether a commit of `session` counts by what storage holds now. One listing, where no newer session has begun."""
    newest = _newest_session(store)
    return newest is None or newest <= session or counts(checkpoint_id, session, read_fences(store))


def _newest_session(store: Store) -> SessionId | None:
    sessions = [session for name in store.children(FENCES) if (session := SessionId.parse(name)) is not None]
    return max(sessions, default=None)


def _committed(store: Store) -> list[str]:
    ids = [name.rstrip("/") for name in store.children(CHECKPOINTS)]
    return [one for one in ids if CheckpointId.parse(one) and store.head(checkpoint_key(one, MANIFEST)) is not None]
