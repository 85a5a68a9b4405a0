"""What checkpoints there are, which of them count, and which one to start from. Torch-free: the CLI, the engines and the trainer all ask here."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from samite.checkpoint.envelope import UnknownFormatError
from samite.checkpoint.fence import Fence, counts, read_fences
from samite.checkpoint.layout import (
    ABORTED,
    CHECKPOINTS,
    MANIFEST,
    PINNED,
    QUARANTINED,
    TOMBSTONE,
    VERIFIED,
    CheckpointId,
    SessionId,
    checkpoint_key,
    checkpoint_prefix,
    marker,
)
from samite.checkpoint.manifest import Manifest
from samite.checkpoint.store.base import MissingKeyError, Store
from samite.checkpoint.verify import Level, VerifyReport, verify_checkpoint
from samite.errors import CheckpointDamagedError, NotFoundError, SamiteError, UsageError


class State(StrEnum):
    """Where a checkpoint stands. Only `committed` and `verified` are ever loaded."""

    WRITING = "writing"
    """No manifest yet; may never get one."""
    ABORTED = "aborted"
    """Its writer gave up."""
    COMMITTED = "committed"
    VERIFIED = "verified"
    """Committed, and its bytes were compared with the manifest at least once."""
    QUARANTINED = "quarantined"
    """Found damaged; kept for inspection with the reason."""
    FENCED = "fenced"
    """Committed by an old attempt after a newer one had begun: does not count."""
    DAMAGED = "damaged"
    """Its manifest cannot be read, and nobody has quarantined it yet."""
    FOREIGN = "foreign"
    """Written by a newer Samite in a format this one cannot read; never chosen, never deleted."""
    DELETING = "deleting"


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One checkpoint in the catalogue."""

    checkpoint_id: str
    step: int
    epoch: int
    state: State
    reason: str = ""
    """Why it is quarantined, damaged, aborted or fenced."""
    pinned: bool = False
    manifest: Manifest | None = None
    modified_unix_s: float = 0.0
    """When an uncommitted one was last written to, by storage's clock; 0 for others."""

    @property
    def usable(self) -> bool:
        """Whether it may be loaded."""
        return self.state in {State.COMMITTED, State.VERIFIED}

    @property
    def order(self) -> tuple[SessionId, int, float]:
        """Newest is largest: a later session wins over a larger step, because it may have rolled back on purpose."""
        session = self.manifest.session if self.manifest else SessionId(self.epoch, 1 << 30)
        return session, self.step, self.manifest.created_unix_s if self.manifest else 0.0


class Catalog:
    """The checkpoints below one store's URI."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._manifests: dict[str, Manifest] = {}  # they never change once committed

    def list(self) -> list[Entry]:
        """All of them, newest first, whatever their state. Raises NotAllowedError if storage refuses: a refusal is not an empty list."""
        fences = read_fences(self.store)
        found = (entry for one in self._ids() if (entry := self._entry(one, fences)) is not None)
        return sorted(found, key=lambda entry: entry.order, reverse=True)

    def newest_committed(self) -> Entry | None:
        """The newest one that counts, unverified or not; None if nothing was ever committed."""
        return next((entry for entry in self.candidates() if entry.usable), None)

    def newest_verified(self, level: Level = Level.QUICK) -> Entry | None:
        """The newest one that verifies. Damaged ones on the way are quarantined with their reason.

        One with a VERIFIED marker is taken at its word for `Level.QUICK`. None means that nothing usable exists: see `ever_committed`.
        """
        for entry in self.candidates():
            if entry.state is State.VERIFIED and level is Level.QUICK:
                return entry
            report = self.verify(entry.checkpoint_id, level)
            if report.ok:
                return self.entry(entry.checkpoint_id)
            self.quarantine(entry.checkpoint_id, report.summary)
        return None

    def candidates(self) -> Iterator[Entry]:
        """Usable and damaged-manifest ones, newest first; reads manifests one epoch at a time.

        Raises UnknownFormatError where a newer Samite's checkpoint would be next: skipping it would silently lose progress.
        """
        fences = read_fences(self.store)
        epochs = {one: parsed.epoch for one in self._ids() if (parsed := CheckpointId.parse(one)) is not None}
        for epoch in sorted(set(epochs.values()), reverse=True):
            found = (entry for one in epochs if epochs[one] == epoch and (entry := self._entry(one, fences)) is not None)
            entries = [entry for entry in found if entry.usable or entry.state in {State.DAMAGED, State.FOREIGN}]
            for entry in sorted(entries, key=lambda entry: entry.order, reverse=True):
                if entry.state is State.FOREIGN:
                    raise UnknownFormatError(entry.reason)
                yield entry

    def ever_committed(self) -> bool:
        """Whether any checkpoint that counts was ever committed here, even if it is damaged now: then starting from scratch would lose work."""
        return any(entry.usable or entry.state in {State.DAMAGED, State.QUARANTINED, State.FOREIGN} for entry in self.list())

    def entry(self, checkpoint_id: str) -> Entry:
        """One checkpoint; raises NotFoundError with those that exist."""
        if CheckpointId.parse(checkpoint_id) is not None:
            found = self._entry(checkpoint_id, read_fences(self.store))
            if found is not None:
                return found
        newest = ", ".join(entry.checkpoint_id for entry in self.list()[:3]) or "none"
        raise NotFoundError(f"{self.store.uri}: no checkpoint {checkpoint_id!r}; newest here: {newest}")

    def find(self, text: str) -> Entry:
        """The checkpoint a person means: an id, `latest` (newest usable), or a step. NotFoundError if there is none, UsageError for other text."""
        if CheckpointId.parse(text) is not None:
            return self.entry(text)
        entries = self.list()
        if text == "latest":
            found = [entry for entry in entries if entry.usable]
        elif text.isdecimal():
            found = [entry for entry in entries if entry.step == int(text)]
        else:
            raise UsageError(f"{text!r}: wanted a checkpoint id such as 00000041-1-0123abcd, a step number, or latest")
        if not found:
            steps = ", ".join(str(entry.step) for entry in entries[:10]) or "none"
            raise NotFoundError(f"{self.store.uri}: no checkpoint {text!r}; steps here: {steps}")
        return min(found, key=lambda entry: not entry.usable)  # entries are newest first, and min takes the first of equals

    def verify(
        self, checkpoint_id: str, level: Level = Level.QUICK, *, threads: int = 4, progress: Callable[[int], None] | None = None
    ) -> VerifyReport:
        """Compare stored bytes with the manifest; if they are right, a VERIFIED marker says so from now on. Does not quarantine.

        A marker that cannot be written (a full disk, credentials that may only read) takes nothing from the verdict: `VerifyReport.unmarked` says why.
        """
        report = verify_checkpoint(self.store, checkpoint_id, level, threads=threads, progress=progress)
        if not report.ok:
            return report
        try:
            self.mark_verified(checkpoint_id, level)
        except SamiteError as error:
            return replace(report, unmarked=str(error))
        return report

    def mark_verified(self, checkpoint_id: str, level: Level) -> None:
        """Remember that the bytes were seen to be right."""
        self.store.put(checkpoint_key(checkpoint_id, VERIFIED), marker(level=level.value))

    def quarantine(self, checkpoint_id: str, reason: str) -> None:
        """Never load this one again; its bytes stay for inspection."""
        self.store.put(checkpoint_key(checkpoint_id, QUARANTINED), marker(reason=reason))

    def lift_quarantine(self, checkpoint_id: str) -> None:
        """Undo `quarantine`, for a checkpoint that verifies in full after all."""
        self.store.delete([checkpoint_key(checkpoint_id, QUARANTINED)])

    def pin(self, checkpoint_id: str, reason: str = "") -> None:
        """Keep this one until it is unpinned."""
        self.entry(checkpoint_id)
        self.store.put(checkpoint_key(checkpoint_id, PINNED), marker(reason=reason))

    def unpin(self, checkpoint_id: str) -> None:
        """Let retention decide again."""
        self.entry(checkpoint_id)
        self.store.delete([checkpoint_key(checkpoint_id, PINNED)])

    def manifest(self, checkpoint_id: str) -> Manifest:
        """Its manifest; raises CheckpointDamagedError or NotFoundError."""
        key = checkpoint_key(checkpoint_id, MANIFEST)
        return Manifest.from_bytes(self.store.get(key), name=f"{self.store.uri}/{key}")

    def _ids(self) -> Sequence[str]:
        names = (name.rstrip("/") for name in self.store.children(CHECKPOINTS))
        return [name for name in names if CheckpointId.parse(name) is not None]

    def _entry(self, checkpoint_id: str, fences: Sequence[Fence]) -> Entry | None:
        """None if nothing is there: deleted since it was listed, or a folder that a storage keeps when all in it is gone."""
        parsed = CheckpointId.parse(checkpoint_id)
        assert parsed is not None
        names = set(self.store.children(checkpoint_prefix(checkpoint_id)))
        if not names:
            return None
        state, reason, manifest = State.WRITING, "", None
        if ABORTED in names:
            state, reason = State.ABORTED, self._text(checkpoint_id, ABORTED)
        if MANIFEST in names:
            try:
                manifest = self._manifests[checkpoint_id] = self._manifests.get(checkpoint_id) or self.manifest(checkpoint_id)
                state, reason = (State.VERIFIED if VERIFIED in names else State.COMMITTED), ""
                if not counts(checkpoint_id, manifest.session, fences):
                    state, reason = State.FENCED, "committed after a newer attempt had begun"
            except CheckpointDamagedError as error:
                state, reason = State.DAMAGED, str(error)
            except UnknownFormatError as error:
                state, reason = State.FOREIGN, str(error)
            except MissingKeyError:
                state = State.DELETING
        if QUARANTINED in names:
            state, reason = State.QUARANTINED, self._reason(checkpoint_id)
        if TOMBSTONE in names:
            state, reason = State.DELETING, ""
        return Entry(
            checkpoint_id=checkpoint_id,
            step=parsed.step,
            epoch=parsed.epoch,
            state=state,
            reason=reason,
            pinned=PINNED in names,
            manifest=manifest,
            modified_unix_s=self._modified(checkpoint_id) if state in {State.WRITING, State.ABORTED} else 0.0,
        )

    def _modified(self, checkpoint_id: str) -> float:
        # Gone while it was looked at: not old, or it would be deleted once more and called stale.
        return max((info.modified_unix_s for info in self.store.list(checkpoint_prefix(checkpoint_id))), default=time.time())

    def _reason(self, checkpoint_id: str) -> str:
        text = self._text(checkpoint_id, QUARANTINED)
        try:
            return str(json.loads(text).get("reason", ""))
        except ValueError:
            return text

    def _text(self, checkpoint_id: str, name: str) -> str:
        try:
            return self.store.get(checkpoint_key(checkpoint_id, name)).decode(errors="replace")
        except MissingKeyError:
            return ""
