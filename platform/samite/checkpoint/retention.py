"""Which checkpoints stay and which go: a pure plan, and the careful act.

Never deleted: the newest verified one (or, if none is verified yet, the newest committed), pinned ones, ones a hand-over refers to, quarantined ones
unless asked for, and anything a writer may still be working on. Deletion is two-phase: a tombstone first, the manifest next, the bytes after that,
so a crash in between leaves something that is no longer chosen and that the next pass finishes.
"""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from samite.checkpoint.catalog import Catalog, Entry, State
from samite.checkpoint.fence import read_fences
from samite.checkpoint.handover import referenced_checkpoints
from samite.checkpoint.layout import MANIFEST, PINNED, TOMBSTONE, SessionId, checkpoint_key, checkpoint_prefix
from samite.checkpoint.store import Store

STALE_AFTER_S = 24 * 3600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class KeepPolicy:
    """What to keep besides the protected ones; `spec.checkpoint.keep`."""

    last: int = 3
    """Newest committed checkpoints."""
    every_steps: int = 0
    """The first checkpoint at or after each multiple of this many steps; 0 for none."""
    stage_final: bool = True
    """The last checkpoint of each stage."""
    quarantined: bool = True
    """Keep damaged ones for inspection."""
    stale_after_s: float = STALE_AFTER_S
    """Age at which an uncommitted write of the current attempt is given up; those of older attempts are given up at once."""

    def __post_init__(self) -> None:
        if self.last < 1 or self.every_steps < 0:
            raise ValueError(f"keep.last must be at least 1 and keep.everySteps at least 0, found {self.last} and {self.every_steps}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """One checkpoint's fate and why."""

    entry: Entry
    delete: bool
    reason: str


def retention_plan(
    entries: Sequence[Entry],
    policy: KeepPolicy,
    *,
    referenced: Collection[str] = (),
    newest_epoch: int = 0,
    now_unix_s: float = 0.0,
) -> list[Verdict]:
    """The fate of each of `entries` (newest first). `newest_epoch` is that of the newest writer session."""
    usable = [entry for entry in entries if entry.usable]
    kept: dict[str, str] = {entry.checkpoint_id: f"one of the {policy.last} newest" for entry in usable[: policy.last]}
    if policy.every_steps:
        buckets = {entry.step // policy.every_steps: entry for entry in usable}  # newest first: the last one to claim a bucket is its first
        kept |= {entry.checkpoint_id: f"first of each {policy.every_steps} steps" for entry in buckets.values()}
    if policy.stage_final:
        kept |= {entry.checkpoint_id: "last of its stage" for entry in usable if entry.manifest is not None and entry.manifest.final}
    kept |= {entry.checkpoint_id: "a hand-over refers to it" for entry in entries if entry.checkpoint_id in referenced}
    kept |= {entry.checkpoint_id: "pinned" for entry in entries if entry.pinned}
    newest_verified = next((entry for entry in usable if entry.state is State.VERIFIED), usable[0] if usable else None)
    if newest_verified is not None:
        kept[newest_verified.checkpoint_id] = "the newest verified"
    newest_session = max((entry.manifest.session for entry in usable if entry.manifest is not None), default=None)
    verdicts = []
    for entry in entries:
        if entry.checkpoint_id in kept and entry.state is not State.DELETING:
            verdicts.append(Verdict(entry=entry, delete=False, reason=kept[entry.checkpoint_id]))
        else:
            verdicts.append(_verdict(entry, policy, newest_epoch, newest_session, now_unix_s))
    return verdicts


def plan_for(catalog: Catalog, policy: KeepPolicy) -> list[Verdict]:
    """`retention_plan` for what is stored now."""
    fences = read_fences(catalog.store)
    return retention_plan(
        catalog.list(),
        policy,
        referenced=referenced_checkpoints(catalog.store),
        newest_epoch=fences[-1].session.epoch if fences else 0,
        now_unix_s=time.time(),
    )


def carry_out(catalog: Catalog, plan: Sequence[Verdict], *, progress: Callable[[Verdict], None] | None = None) -> list[str]:
    """Delete what `plan` says, oldest first. Returns the ids deleted; one that was pinned meanwhile stays."""
    deleted = []
    for verdict in reversed(plan):
        if not verdict.delete:
            continue
        checkpoint_id = verdict.entry.checkpoint_id
        if catalog.store.head(checkpoint_key(checkpoint_id, PINNED)) is not None and verdict.entry.state is not State.DELETING:
            continue
        delete_checkpoint(catalog.store, checkpoint_id)
        deleted.append(checkpoint_id)
        if progress is not None:
            progress(verdict)
    _drop_old_fences(catalog)
    return deleted


def delete_checkpoint(store: Store, checkpoint_id: str) -> None:
    """Remove one checkpoint: tombstone, manifest, everything else, tombstone."""
    tombstone = checkpoint_key(checkpoint_id, TOMBSTONE)
    store.put(tombstone, b"{}\n")
    store.delete([checkpoint_key(checkpoint_id, MANIFEST)])
    store.delete([info.key for info in store.list(checkpoint_prefix(checkpoint_id)) if info.key != tombstone])
    store.delete([tombstone])


def _verdict(entry: Entry, policy: KeepPolicy, newest_epoch: int, newest_session: SessionId | None, now_unix_s: float) -> Verdict:
    if entry.state is State.DELETING:
        return Verdict(entry=entry, delete=True, reason="its deletion was begun")
    if entry.usable:
        return Verdict(entry=entry, delete=True, reason="older than what is kept")
    if entry.state is State.FENCED:
        settled = entry.manifest is not None and newest_session is not None and newest_session > entry.manifest.session
        reason = "a late commit of an old attempt; it does not count"  # unless the fence is withdrawn, before anybody commits under it
        return Verdict(entry=entry, delete=settled, reason=reason if settled else f"{reason}, and goes once a newer attempt has committed")
    if entry.state is State.QUARANTINED:
        return Verdict(
            entry=entry, delete=not policy.quarantined, reason="quarantined" if policy.quarantined else "quarantined, and asked to go"
        )
    if entry.state is State.FOREIGN:
        return Verdict(entry=entry, delete=False, reason="written by a newer Samite")
    if entry.state is State.DAMAGED:
        return Verdict(entry=entry, delete=False, reason="damaged; verify or quarantine it first")
    if entry.epoch < newest_epoch:
        return Verdict(entry=entry, delete=True, reason="never committed, and a newer attempt has begun")
    if now_unix_s - entry.modified_unix_s > policy.stale_after_s:
        return Verdict(entry=entry, delete=True, reason="never committed, and nothing was written to it for long")
    return Verdict(entry=entry, delete=False, reason="may still be written")


def _drop_old_fences(catalog: Catalog) -> None:
    """Remove fences that no checkpoint is older than; the newest stays. A fence that still judges some checkpoint must stay too."""
    fences = read_fences(catalog.store)
    oldest = min(
        (entry.manifest.session if entry.manifest else SessionId(entry.epoch, -1) for entry in catalog.list()),
        default=SessionId(1 << 60, 0),
    )
    catalog.store.delete([fence.session.key() for fence in fences[:-1] if fence.session <= oldest])
