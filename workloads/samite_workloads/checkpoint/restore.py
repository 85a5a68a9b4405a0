"""A restore that all ranks agree on: rank 0 chooses, everybody checks, everybody loads, and any damage sends all of them to the next older one."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from samite.checkpoint.catalog import Catalog, Entry
from samite.checkpoint.layout import MANIFEST, checkpoint_key
from samite.checkpoint.manifest import Manifest
from samite.checkpoint.store import Store
from samite.errors import CheckpointDamagedError, SamiteError
from samite_workloads.checkpoint.meeting import Meeting
from samite_workloads.checkpoint.reader import StoredState
from samite_workloads.checkpoint.results import Restored, RestoreMismatchError
from samite_workloads.checkpoint.shards import LocalShard
from samite_workloads.checkpoint.sharing import Boxes, boxes_of, load_apart, load_together

_MOST_SHOWN = 40


@dataclass(frozen=True, kw_only=True, slots=True)
class _Answer:
    """What one rank found."""

    damage: str = ""
    error: SamiteError | None = None
    problems: tuple[str, ...] = ()
    unused: frozenset[str] = frozenset()
    boxes: Boxes = field(default_factory=dict)
    """What it wants, where reads are shared."""

    @classmethod
    def of(cls, error: SamiteError) -> "_Answer":
        """Damage sends all to an older checkpoint, anything else ends the restore."""
        return cls(damage=str(error)) if isinstance(error, CheckpointDamagedError) else cls(error=error)


def restore(
    store: Store,
    checkpoint_id: str,
    shards: Sequence[LocalShard],
    *,
    meeting: Meeting,
    own_epoch: int | None,
    allow_missing: Sequence[str],
    allow_unused: Sequence[str],
    threads: int,
    share_reads: bool = True,
) -> Restored | None:
    """See `CheckpointManager.restore`. Raises PeerLostError on all ranks that live if one does not."""
    began_s = time.monotonic()
    catalog = Catalog(store)
    first = meeting.rank == 0
    choices = _choices(catalog, checkpoint_id, own_epoch) if first else iter(())
    walked: list[tuple[str, str]] = []
    damaged = False
    while True:
        choose = partial(_choose, catalog, choices, walked, latest=checkpoint_id == "latest", damaged=damaged)
        chosen = meeting.together(choose if first else _nothing)[0]
        if chosen is None:
            return None
        if isinstance(chosen, SamiteError):
            raise chosen
        document, walked = chosen
        manifest = Manifest.from_bytes(document, name=f"{store.uri}: the chosen manifest")
        inspection = _Inspection(store, manifest, shards, threads)
        answers = meeting.together(
            partial(inspection.answer, allow_missing=allow_missing, allow_unused=allow_unused, share_reads=share_reads)
        )
        damage = _judge(answers, manifest.checkpoint_id)
        read_bytes = 0
        if not damage:
            assert inspection.state is not None
            if share_reads:
                read_bytes, failures = load_together(inspection.state, shards, [answer.boxes for answer in answers], meeting)
            else:
                read_bytes, failures = load_apart(inspection.state, shards, meeting)
            damage = _judge([_Answer.of(failure) for failure in failures], manifest.checkpoint_id)
        if not damage:
            return Restored(
                checkpoint_id=manifest.checkpoint_id,
                step=manifest.step,
                extra=manifest.extra,
                manifest_sha256=manifest.digest(),
                world_size=manifest.world_size,
                read_bytes=read_bytes,
                seconds=time.monotonic() - began_s,
                walked_past=tuple(walked),
            )
        walked.append((manifest.checkpoint_id, damage))
        damaged = True


def _nothing() -> None:
    """What the others do while rank 0 chooses."""


def _choices(catalog: Catalog, checkpoint_id: str, own_epoch: int | None) -> Iterator[Entry]:
    if checkpoint_id == "latest":
        yield from catalog.candidates()
        return
    if own_epoch is not None:
        yield from (entry for entry in catalog.candidates() if entry.epoch == own_epoch)
    yield catalog.entry(checkpoint_id)


def _choose(
    catalog: Catalog, choices: Iterator[Entry], walked: list[tuple[str, str]], *, latest: bool, damaged: bool
) -> tuple[bytes, list[tuple[str, str]]] | SamiteError | None:
    """Rank 0's next choice: the manifest and what was passed over; None if there never was a checkpoint; or the error to raise everywhere.

    `damaged` says that the last choice was found to be so, and is set aside first.
    """
    try:
        if damaged:
            catalog.quarantine(*walked[-1])
        for entry in choices:
            if entry.usable:
                key = checkpoint_key(entry.checkpoint_id, MANIFEST)
                document = catalog.store.get(key)
                try:
                    Manifest.from_bytes(document, name=f"{catalog.store.uri}/{key}")
                except CheckpointDamagedError as error:
                    walked.append((entry.checkpoint_id, str(error)))
                    catalog.quarantine(entry.checkpoint_id, str(error))
                    continue
                return document, walked
            walked.append((entry.checkpoint_id, entry.reason or f"it is {entry.state}"))
            if entry.state == "damaged":
                catalog.quarantine(entry.checkpoint_id, entry.reason)
        if latest and not walked and not catalog.ever_committed():
            return None
    except SamiteError as error:
        return error
    reasons = "".join(f"\n  - {one}: {reason}" for one, reason in walked) or "\n  - every checkpoint here is already quarantined"
    return CheckpointDamagedError(
        f"{catalog.store.uri}: no usable checkpoint is left:{reasons}\n"
        "Look with `samite checkpoints ls` and `verify --full`; starting from scratch would lose all progress and must be asked for"
    )


class _Inspection:
    """One rank's look at one checkpoint; the indexes stay here when the answer travels."""

    def __init__(self, store: Store, manifest: Manifest, shards: Sequence[LocalShard], threads: int) -> None:
        self._store, self._manifest, self._shards, self._threads = store, manifest, shards, threads
        self.state: StoredState | None = None

    def answer(self, *, allow_missing: Sequence[str], allow_unused: Sequence[str], share_reads: bool) -> _Answer:
        """Whether it fits."""
        try:
            state = self.state = StoredState(self._store, self._manifest, threads=self._threads)
        except SamiteError as error:
            return _Answer.of(error)
        return _Answer(
            problems=tuple(state.problems(self._shards, allow_missing=allow_missing)),
            unused=frozenset(state.unused(self._shards, allow_unused=allow_unused)),
            boxes=boxes_of(self._shards) if share_reads else {},
        )


def _judge(answers: Sequence[_Answer], checkpoint_id: str) -> str:
    """The damage that any rank found, empty if none; raises what ends the restore on all ranks alike."""
    for answer in answers:
        if answer.error is not None:
            raise answer.error
    damage = next((answer.damage for answer in answers if answer.damage), "")
    if damage:
        return damage
    problems = list(dict.fromkeys(problem for answer in answers for problem in answer.problems))
    unused = sorted(frozenset.intersection(*(answer.unused for answer in answers))) if answers else []
    problems += [f"{name}: is in the checkpoint, but nothing here takes it (allow_unused)" for name in unused]
    if problems:
        shown = "".join(f"\n  - {problem}" for problem in problems[:_MOST_SHOWN])
        more = f"\n  and {len(problems) - _MOST_SHOWN} more" if len(problems) > _MOST_SHOWN else ""
        raise RestoreMismatchError(f"{checkpoint_id} does not fit; nothing was overwritten:{shown}{more}")
    return ""
