"""A restore that all ranks agree on: rank 0 chooses, everybody checks, everybody loads, and any damage sends all of them to the next older one."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from samite.checkpoint.catalog import Catalog, Entry
from samite.checkpoint.layout import MANIFEST, checkpoint_key
from samite.checkpoint.manifest import Manifest
from samite.checkpoint.store import Store
from samite.errors import CheckpointDamagedError, SamiteError
from samite_workloads.checkpoint.agreement import Peers
from samite_workloads.checkpoint.reader import StoredState
from samite_workloads.checkpoint.results import Restored, RestoreMismatchError
from samite_workloads.checkpoint.shards import LocalShard

_MOST_SHOWN = 40


@dataclass(frozen=True, kw_only=True, slots=True)
class _Answer:
    """What one rank found."""

    damage: str = ""
    error: SamiteError | None = None
    problems: tuple[str, ...] = ()
    unused: frozenset[str] = frozenset()


def restore(
    store: Store,
    checkpoint_id: str,
    shards: Sequence[LocalShard],
    *,
    peers: Peers,
    rank: int,
    own_epoch: int | None,
    allow_missing: Sequence[str],
    allow_unused: Sequence[str],
    threads: int,
) -> Restored | None:
    """See `CheckpointManager.restore`."""
    began_s = time.monotonic()
    catalog = Catalog(store)
    choices = _choices(catalog, checkpoint_id, own_epoch) if rank == 0 else iter(())
    walked: list[tuple[str, str]] = []
    while True:
        chosen = peers.broadcast(_choose(catalog, choices, walked, latest=checkpoint_id == "latest") if rank == 0 else None)
        if chosen is None:
            return None
        if isinstance(chosen, SamiteError):
            raise chosen
        document, walked = chosen
        manifest = Manifest.from_bytes(document, name=f"{store.uri}: the chosen manifest")
        state, answer = _inspect(store, manifest, shards, allow_missing=allow_missing, allow_unused=allow_unused, threads=threads)
        damage = _judge(peers.gather(answer), manifest.checkpoint_id)
        read_bytes = 0
        if not damage:
            assert state is not None
            read_bytes, answer = _load(state, shards)
            damage = _judge(peers.gather(answer), manifest.checkpoint_id)
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
        if rank == 0:
            catalog.quarantine(manifest.checkpoint_id, damage)


def _choices(catalog: Catalog, checkpoint_id: str, own_epoch: int | None) -> Iterator[Entry]:
    if checkpoint_id == "latest":
        yield from catalog.candidates()
        return
    if own_epoch is not None:
        yield from (entry for entry in catalog.candidates() if entry.epoch == own_epoch)
    yield catalog.entry(checkpoint_id)


def _choose(
    catalog: Catalog, choices: Iterator[Entry], walked: list[tuple[str, str]], *, latest: bool
) -> tuple[bytes, list[tuple[str, str]]] | SamiteError | None:
    """Rank 0's next choice: the manifest and what was passed over; None if there never was a checkpoint; or the error to raise everywhere."""
    try:
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


def _inspect(
    store: Store,
    manifest: Manifest,
    shards: Sequence[LocalShard],
    *,
    allow_missing: Sequence[str],
    allow_unused: Sequence[str],
    threads: int,
) -> tuple[StoredState | None, _Answer]:
    try:
        state = StoredState(store, manifest, threads=threads)
    except CheckpointDamagedError as error:
        return None, _Answer(damage=str(error))
    except SamiteError as error:
        return None, _Answer(error=error)
    return state, _Answer(
        problems=tuple(state.problems(shards, allow_missing=allow_missing)),
        unused=frozenset(state.unused(shards, allow_unused=allow_unused)),
    )


def _load(state: StoredState, shards: Sequence[LocalShard]) -> tuple[int, _Answer]:
    try:
        return state.load(shards), _Answer()
    except CheckpointDamagedError as error:
        return 0, _Answer(damage=str(error))
    except SamiteError as error:
        return 0, _Answer(error=error)


def _judge(answers: Sequence[_Answer], checkpoint_id: str) -> str:
    """The damage that any rank found, empty if none; raises what ends the restore on all ranks alike."""
    for answer in answers:
        if answer.error is not None:
            raise answer.error
    damage = next((answer.damage for answer in answers if answer.damage), "")
    if damage:
        return damage
    problems = list(dict.fromkeys(problem for answer in answers for problem in answer.problems))
    unused = sorted(frozenset.intersection(*(answer.unused for answer in answers)))
    problems += [f"{name}: is in the checkpoint, but nothing here takes it (allow_unused)" for name in unused]
    if problems:
        shown = "".join(f"\n  - {problem}" for problem in problems[:_MOST_SHOWN])
        more = f"\n  and {len(problems) - _MOST_SHOWN} more" if len(problems) > _MOST_SHOWN else ""
        raise RestoreMismatchError(f"{checkpoint_id} does not fit; nothing was overwritten:{shown}{more}")
    return ""
