"""The commit: from the ranks' indexes to one manifest, decided by storage alone.

    ranks                                      coordinator (rank 0)
    put data objects
    put rank/<r>.idx             ────────▶     waits until all indexes are there, or a rank says it failed, or the deadline
                                               checks that the indexes describe every byte exactly once and that replicas agree
                                               checks that no newer session has begun
                                               MANIFEST, create-once              <- the checkpoint exists from here
    see MANIFEST, or ABORTED     ◀────────     LATEST, compare-and-swap (a hint)

No collective takes part, so a dead or slow rank costs a deadline and never a hang.
"""

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from samite.checkpoint.checksum import crc64
from samite.checkpoint.coverage import coverage_problems, replica_problems
from samite.checkpoint.directory import Directory
from samite.checkpoint.fence import FencedError, check_still_newest, counts_now
from samite.checkpoint.index import IndexColumns
from samite.checkpoint.layout import (
    ABORTED,
    DIRECTORY,
    LATEST,
    MANIFEST,
    QUARANTINED,
    SessionId,
    checkpoint_key,
    checkpoint_prefix,
    failure_name,
    index_name,
    marker,
)
from samite.checkpoint.manifest import Manifest, RankRecord
from samite.checkpoint.store.base import MissingKeyError, Store
from samite.errors import CheckpointDamagedError, ConflictError, SamiteError

DIRECTORY_FROM_RANKS = 16
"""From so many ranks on their indexes are also laid together: a rank that restores then asks once and not once for each writer."""


class SaveRefusedError(SamiteError):
    """The indexes do not describe one consistent state; nothing was committed. The message lists every reason."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CommitRequest:
    """What the coordinator commits, once the indexes are there."""

    checkpoint_id: str
    step: int
    world_size: int
    session: SessionId
    run_uid: str
    created_unix_s: float
    extra: Mapping[str, Any]
    final: bool = False
    writer: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Arrivals:
    """Which ranks have published."""

    present: frozenset[int]
    failed: Mapping[int, str]
    """Rank -> what it says went wrong."""


def arrivals(store: Store, checkpoint_id: str, world_size: int) -> Arrivals:
    """Look which ranks' indexes or failure notices are there: one listing."""
    names = {f"rank/{name}" for name in store.children(checkpoint_prefix(checkpoint_id) + "rank/")}
    failed = {}
    for rank in range(world_size):
        if failure_name(rank) in names:
            try:
                failed[rank] = store.get(checkpoint_key(checkpoint_id, failure_name(rank))).decode(errors="replace")
            except MissingKeyError:
                continue
    return Arrivals(present=frozenset(rank for rank in range(world_size) if index_name(rank) in names), failed=failed)


def build_manifest(store: Store, request: CommitRequest, *, threads: int = 8) -> Manifest:
    """Read and check every rank's index, and put the directory where there are many ranks.

    Raises SaveRefusedError with all inconsistencies, CheckpointDamagedError for a bad index.
    """

    def read(rank: int) -> bytes:
        return store.get(checkpoint_key(request.checkpoint_id, index_name(rank)))

    def parse(rank: int, document: bytes) -> IndexColumns:
        key = checkpoint_key(request.checkpoint_id, index_name(rank))
        index = IndexColumns.from_bytes(document, name=f"{store.uri}/{key}", known=indexes[0] if indexes else None)
        if (index.checkpoint_id, index.rank) != (request.checkpoint_id, rank):
            raise CheckpointDamagedError(f"{store.uri}/{key}: belongs to rank {index.rank} of {index.checkpoint_id}")
        return index

    indexes: list[IndexColumns] = []
    with ThreadPoolExecutor(min(threads, request.world_size), thread_name_prefix="samite-index") as pool:
        documents = list(pool.map(read, range(request.world_size)))
    for rank, document in enumerate(documents):
        indexes.append(parse(rank, document))
    problems = coverage_problems(indexes) + replica_problems(indexes)
    if problems:
        raise SaveRefusedError(_listed(f"{request.checkpoint_id}: the ranks' parts do not make one state", problems))
    return Manifest(
        directory=_put_directory(store, indexes) if request.world_size >= DIRECTORY_FROM_RANKS else None,
        checkpoint_id=request.checkpoint_id,
        step=request.step,
        session=request.session,
        run_uid=request.run_uid,
        ranks=tuple(
            RankRecord(
                rank=index.rank,
                index_bytes=len(document),
                index_crc64=crc64(document),
                data_bytes=index.data_bytes,
                num_objects=len(index.objects),
                num_chunks=index.num_chunks,
            )
            for document, index in zip(documents, indexes, strict=True)
        ),
        num_tensors=len({tensor.name for index in indexes for tensor in index.tensors}),
        created_unix_s=request.created_unix_s,
        extra=request.extra,
        final=request.final,
        writer=request.writer,
    )


def _put_directory(store: Store, indexes: Sequence[IndexColumns]) -> tuple[int, int] | None:
    directory = Directory.of(indexes)
    if directory is None:
        return None
    document = directory.to_bytes()
    store.put(checkpoint_key(directory.checkpoint_id, DIRECTORY), document)
    return len(document), crc64(document)


def commit(store: Store, manifest: Manifest, *, still_wanted: Callable[[], None] = lambda: None) -> None:
    """Create the manifest.

    Raises FencedError if a newer session has begun, ConflictError if another writer committed this id, CheckpointDamagedError if storage tore it.

    `still_wanted` is called last before the commit and raises if its time has passed.
    """
    check_still_newest(store, manifest.session)
    still_wanted()
    if not store.put_if_absent(checkpoint_key(manifest.checkpoint_id, MANIFEST), manifest.to_bytes()):
        raise _conflict(store, manifest.checkpoint_id)
    if not counts_now(store, manifest.checkpoint_id, manifest.session):
        raise FencedError(f"{store.uri}: a newer session began while {manifest.checkpoint_id} was being committed; it does not count")


def _conflict(store: Store, checkpoint_id: str) -> SamiteError:
    """Why the manifest could not be created: another writer's is there, or half of ours, where a storage tears what it says it did not write.

    A torn one is quarantined here, so that no restore has to find out by itself; best effort, since storage is what failed.
    """
    key = checkpoint_key(checkpoint_id, MANIFEST)
    try:
        Manifest.from_bytes(store.get(key), name=f"{store.uri}/{key}")
    except CheckpointDamagedError as error:
        with contextlib.suppress(SamiteError):
            store.put(checkpoint_key(checkpoint_id, QUARANTINED), marker(reason=str(error)))
        return CheckpointDamagedError(f"the commit was cut short: {error}. It does not count, and those before it are as they were")
    except SamiteError as error:
        return error
    return ConflictError(f"{store.uri}: {checkpoint_id} was committed by another writer; ours was not")


def move_hint(store: Store, checkpoint_id: str) -> bool:
    """Point LATEST at `checkpoint_id` unless somebody else moved it meanwhile. Only a hint: readers list manifests."""
    found = store.head(LATEST)
    return store.compare_and_swap(LATEST, json.dumps({"id": checkpoint_id}).encode() + b"\n", None if found is None else found.etag)


def announce_failure(store: Store, checkpoint_id: str, rank: int, reason: str) -> None:
    """Tell the coordinator that `rank` will not publish; best effort, since storage may be what failed."""
    with contextlib.suppress(SamiteError):
        store.put(checkpoint_key(checkpoint_id, failure_name(rank)), reason.encode()[:2000])


def announce_abort(store: Store, checkpoint_id: str, reason: str) -> None:
    """Tell the ranks that this checkpoint will not be committed; best effort."""
    with contextlib.suppress(SamiteError):
        store.put(checkpoint_key(checkpoint_id, ABORTED), reason.encode()[:2000])


def _listed(headline: str, problems: Sequence[str], limit: int = 20) -> str:
    shown = "".join(f"\n  - {problem}" for problem in problems[:limit])
    return f"{headline}:{shown}" + (f"\n  and {len(problems) - limit} more" if len(problems) > limit else "")
