"""The checkpoint storage as the supervisor sees it: one background thread asks it, the loop only reads the last answer.

A storage that does not answer leaves the last answer ageing and then unknown; it never blocks the loop and is never taken for "no checkpoints".
"""

import contextlib
import logging
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from samite.checkpoint import Catalog, Entry, Level, State, Store
from samite.checkpoint.handover import commit_document, committed_handovers
from samite.checkpoint.retention import KeepPolicy, Verdict, carry_out, plan_for
from samite.checkpoint.store.probe import probe
from samite.errors import SamiteError
from samite.lifecycle import CheckpointObserved, CheckpointsObserved, CommitHandover, HandoverFound, QuarantineCheckpoints, StorageObserved

_logger = logging.getLogger(__name__)
FORGET_AFTER_S = 30.0
"""An answer older than this says nothing any more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Answer:
    """What storage said last, with monotonic times; ages are made when it is read."""

    checkpoints: tuple[CheckpointObserved, ...] | None = None
    committed_at_s: tuple[float, ...] = ()
    quarantined: tuple[str, ...] = ()
    handovers: tuple[HandoverFound, ...] | None = None
    listed_at_s: float = -1e9
    storage: StorageObserved = field(default_factory=StorageObserved)


class StorageWatch:
    """Lists, probes, verifies and commits in a thread of its own. Every request may be made any number of times."""

    def __init__(
        self,
        store: Store,
        *,
        keep: KeepPolicy,
        tell: Callable[..., object] = lambda *_, **__: None,
        period_s: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`tell` is called with an event's name and attributes, from the thread."""
        self._tell = tell
        self._catalog = Catalog(store)
        self._keep = keep
        self._period_s = period_s
        self._clock = clock
        self._answer = _Answer()
        self._wanted: dict[str, Callable[[], None]] = {}
        self._done: set[str] = set()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopping = False
        self._newest = ""
        self._thread = threading.Thread(target=self._run, name="storage-watch", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self, *, patience_s: float = 5.0) -> None:
        """End the thread; one that storage holds up is left behind (it is a daemon and only reads)."""
        self._stopping = True
        self._wake.set()
        self._thread.join(timeout=patience_s)

    # What is known

    def checkpoints(self) -> CheckpointsObserved | None:
        """The last listing, or None if there is none that is fresh enough to mean anything."""
        answer, now_s = self._answer, self._clock()
        if answer.checkpoints is None or now_s - answer.listed_at_s > FORGET_AFTER_S:
            return None
        aged = tuple(replace(item, age_s=now_s - at_s) for item, at_s in zip(answer.checkpoints, answer.committed_at_s, strict=True))
        return CheckpointsObserved(recent=aged, quarantined=answer.quarantined, age_s=now_s - answer.listed_at_s)

    def handovers(self) -> tuple[HandoverFound, ...] | None:
        """Committed hand-overs, or None if storage has not answered lately."""
        answer = self._answer
        return None if self._clock() - answer.listed_at_s > FORGET_AFTER_S else answer.handovers

    def storage(self) -> StorageObserved:
        """The outcome of the last probe."""
        return self._answer.storage

    def space(self) -> tuple[int, int] | None:
        """(bytes used, bytes that exist) of the file system below the checkpoints; None for object storage, and where nobody can say.

        Used is everything but what this user may still write: a reserve for root is used, too.
        """
        address = urlsplit(self._catalog.store.uri)
        if address.scheme not in ("", "file"):
            return None
        folder = Path(unquote(address.path))
        try:
            found = shutil.disk_usage(next(place for place in (folder, *folder.parents) if place.exists()))
        except OSError:
            return None
        return found.total - found.free, found.total

    # What is wanted

    def look_soon(self) -> None:
        """List now instead of after the period: somebody waits for a listing that is younger than something that just happened."""
        self._wake.set()

    def probe(self, probe_id: str) -> None:
        """Try everything that the format needs, in the real prefix."""
        self._want(f"probe:{probe_id}", lambda: self._probe(probe_id))

    def verify(self, checkpoint_id: str) -> None:
        """Compare the stored bytes with the manifest; quarantine on damage."""
        self._want(f"verify:{checkpoint_id}", lambda: self._verify(checkpoint_id))

    def commit(self, action: CommitHandover) -> None:
        """Store a hand-over once."""
        self._want(f"handover:{action.stage_index}:{action.content_hash}", lambda: self._commit(action))

    def quarantine(self, action: QuarantineCheckpoints) -> None:
        """Withdraw the checkpoints of a stage."""
        self._want(f"quarantine:{action.stage_index}:{action.attempts_up_to}:{action.after_step}", lambda: self._quarantine(action))

    def _want(self, key: str, work: Callable[[], None]) -> None:
        with self._lock:
            if key not in self._done:
                self._wanted.setdefault(key, work)
        self._wake.set()

    # The thread

    def _run(self) -> None:
        while not self._stopping:
            with self._lock:
                work = dict(self._wanted)
            for key, task in work.items():
                self._attempt(key, task)
            with contextlib.suppress(SamiteError):
                self._list()
            self._wake.wait(timeout=self._period_s)
            self._wake.clear()

    def _attempt(self, key: str, task: Callable[[], None]) -> None:
        try:
            task()
        except SamiteError as error:
            # Stays wanted: the next round tries again, and the lifecycle's own limits decide when that has lasted too long.
            _logger.warning("storage: %s did not succeed: %s", key, error)
            self._answer = replace(self._answer, storage=replace(self._answer.storage, message=str(error)))
            return
        with self._lock:
            self._wanted.pop(key, None)
            self._done.add(key)

    def _list(self) -> None:
        entries = self._catalog.list()
        now_s, now_unix_s = self._clock(), time.time()
        usable = [entry for entry in reversed(entries) if entry.usable and entry.manifest is not None]
        known = dict(zip((item.checkpoint_id for item in self._answer.checkpoints or ()), self._answer.committed_at_s, strict=True))
        self._answer = replace(
            self._answer,
            checkpoints=tuple(observed(entry) for entry in usable),
            committed_at_s=tuple(known.get(e.checkpoint_id, now_s - max(0.0, now_unix_s - committed_unix_s(e))) for e in usable),
            quarantined=tuple(entry.checkpoint_id for entry in entries if entry.state in {State.QUARANTINED, State.DAMAGED}),
            handovers=tuple(found(document) for document in committed_handovers(self._catalog.store)),
            listed_at_s=now_s,
        )
        newest = usable[-1].checkpoint_id if usable else ""
        if newest != self._newest:
            self._newest = newest
            carry_out(self._catalog, plan_for(self._catalog, self._keep), progress=self._tell_pruned)

    def _probe(self, probe_id: str) -> None:
        report = probe(self._catalog.store)
        self._answer = replace(
            self._answer,
            storage=StorageObserved(
                probe_id=probe_id, probe=not report.problems, message="; ".join(str(problem) for problem in report.problems)
            ),
        )

    def _verify(self, checkpoint_id: str) -> None:
        report = self._catalog.verify(checkpoint_id, Level.FULL)
        entry = self._catalog.entry(checkpoint_id)
        if report.ok:
            self._tell("samite.checkpoint.verified", checkpoint_id=checkpoint_id, step_index=entry.step, checkpoint_level=Level.FULL)
            return
        self._tell("samite.checkpoint.verify.failed", checkpoint_id=checkpoint_id, step_index=entry.step, reason=report.summary)
        self._set_aside(entry, report.summary)

    def _set_aside(self, entry: Entry, reason: str) -> None:
        self._catalog.quarantine(entry.checkpoint_id, reason)
        self._tell("samite.checkpoint.quarantined", checkpoint_id=entry.checkpoint_id, step_index=entry.step, reason=reason)

    def _tell_pruned(self, verdict: Verdict) -> None:
        self._tell(
            "samite.checkpoint.pruned", checkpoint_id=verdict.entry.checkpoint_id, step_index=verdict.entry.step, reason=verdict.reason
        )

    def _commit(self, action: CommitHandover) -> None:
        commit_document(self._catalog.store, action.stage_name, action.document)

    def _quarantine(self, action: QuarantineCheckpoints) -> None:
        for entry in self._catalog.list():
            concerned = stage_of(entry) == action.stage_index and entry.epoch <= action.attempts_up_to and entry.step > action.after_step
            if entry.usable and concerned:
                self._set_aside(entry, action.reason)


def observed(entry: Entry) -> CheckpointObserved:
    """A catalogue entry as a fact for the lifecycle."""
    state = state_of(entry)
    return CheckpointObserved(
        checkpoint_id=entry.checkpoint_id,
        step=entry.step,
        stage_index=stage_of(entry),
        attempt=entry.epoch,
        tokens=int(state.get("tokens", 0)),
        verified=True if entry.state is State.VERIFIED else None,
    )


def state_of(entry: Entry) -> dict[str, Any]:
    """The trainer's state as the manifest carries it."""
    state = entry.manifest.extra.get("state", {}) if entry.manifest is not None else {}
    return dict(state)


def stage_of(entry: Entry) -> int:
    """Index of the stage that wrote the checkpoint."""
    return int(state_of(entry).get("stage_index", 0))


def committed_unix_s(entry: Entry) -> float:
    """When it was committed, by the writer's wall clock."""
    return entry.manifest.created_unix_s if entry.manifest is not None else time.time()


def found(document: dict[str, Any]) -> HandoverFound:
    """A stored hand-over as a fact for the lifecycle."""
    from samite.lifecycle.handover import content_hash

    return HandoverFound(
        stage_index=int(document["stageIndex"]),
        content_hash=content_hash(document),
        run_uid=str(document["runUid"]),
        checkpoint_id=str(document["checkpointId"]),
    )
