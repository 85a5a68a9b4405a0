"""Does storage still hold what a manifest promises? Quick: manifest, indexes, presence and size of every object. Full: every byte.

A verdict of damage is only given on facts: an object that is missing, shorter, or whose checksum differs on a second reading. Refusals and silence
are raised as what they are, so that nobody quarantines a good checkpoint because of a bad network.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum

from samite.checkpoint.checksum import crc64
from samite.checkpoint.coverage import coverage_problems
from samite.checkpoint.index import RankIndex
from samite.checkpoint.layout import MANIFEST, checkpoint_key, checkpoint_prefix, index_name
from samite.checkpoint.manifest import Manifest, RankRecord
from samite.checkpoint.store.base import MissingKeyError, Store
from samite.errors import CheckpointDamagedError

_READ_BYTES = 16 * 1024 * 1024
_SECOND_LOOKS = 2
_SECOND_LOOK_AFTER_S = 0.2


class Level(StrEnum):
    """How deep to look."""

    QUICK = "quick"
    FULL = "full"


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifyReport:
    """The verdict on one checkpoint."""

    checkpoint_id: str
    level: Level
    problems: tuple[str, ...]
    num_objects: int = 0
    read_bytes: int = 0
    seconds: float = 0.0
    unmarked: str = ""
    """Why a checkpoint that is right could not be marked as verified; empty if it was, or was not to be."""

    @property
    def ok(self) -> bool:
        """No problem found."""
        return not self.problems

    @property
    def summary(self) -> str:
        """One line for a marker or an event."""
        more = f" (and {len(self.problems) - 1} more)" if len(self.problems) > 1 else ""
        return f"{self.problems[0]}{more}" if self.problems else "every byte as promised"


def verify_checkpoint(
    store: Store, checkpoint_id: str, level: Level = Level.QUICK, *, threads: int = 4, progress: Callable[[int], None] | None = None
) -> VerifyReport:
    """Compare one committed checkpoint with its manifest. `progress` is told the bytes read, from several threads.

    Raises MissingKeyError if it was never committed, and whatever storage raises when it refuses or does not answer.
    """
    began_s = time.monotonic()
    key = checkpoint_key(checkpoint_id, MANIFEST)
    try:
        manifest = Manifest.from_bytes(store.get(key), name=f"{store.uri}/{key}")
        if manifest.checkpoint_id != checkpoint_id:
            raise CheckpointDamagedError(f"{store.uri}/{key}: is the manifest of {manifest.checkpoint_id}")
    except CheckpointDamagedError as error:
        return VerifyReport(checkpoint_id=checkpoint_id, level=level, problems=(str(error),))
    problems, indexes = _read_indexes(store, manifest, threads)
    sizes = {info.key: info.size for info in store.list(checkpoint_prefix(checkpoint_id) + "data/")}
    for index in indexes:
        problems += _size_problems(store, index, sizes)
    if not problems:
        problems += coverage_problems(indexes)
    read_bytes = 0
    if level is Level.FULL and not problems:
        found, read_bytes = _content_problems(store, indexes, threads, progress)
        problems += found
    return VerifyReport(
        checkpoint_id=checkpoint_id,
        level=level,
        problems=tuple(problems),
        num_objects=sum(len(index.objects) for index in indexes),
        read_bytes=read_bytes,
        seconds=time.monotonic() - began_s,
    )


def read_index(store: Store, checkpoint_id: str, record: RankRecord) -> RankIndex:
    """One rank's index, compared with what the manifest says of it. Raises CheckpointDamagedError naming the object."""
    key = checkpoint_key(checkpoint_id, index_name(record.rank))
    name = f"{store.uri}/{key}"
    problem = ""
    for look in range(1 + _SECOND_LOOKS):
        if look:
            time.sleep(_SECOND_LOOK_AFTER_S)
        try:
            document = store.get(key)
        except MissingKeyError:
            problem = f"{name}: is missing"
            continue
        if len(document) == record.index_bytes and crc64(document) == record.index_crc64:
            return RankIndex.from_bytes(document, name=name)
        problem = f"{name}: the manifest promises {record.index_bytes} bytes with CRC64 {record.index_crc64:016x}, {len(document)} others are there"
    raise CheckpointDamagedError(problem)


def _read_indexes(store: Store, manifest: Manifest, threads: int) -> tuple[list[str], list[RankIndex]]:
    def read(record: RankRecord) -> RankIndex | str:
        try:
            return read_index(store, manifest.checkpoint_id, record)
        except CheckpointDamagedError as error:
            return str(error)

    with ThreadPoolExecutor(threads, thread_name_prefix="samite-verify") as pool:
        results = list(pool.map(read, manifest.ranks))
    return [one for one in results if isinstance(one, str)], [one for one in results if isinstance(one, RankIndex)]


def _size_problems(store: Store, index: RankIndex, sizes: dict[str, int]) -> list[str]:
    problems = []
    for item in index.objects:
        key = checkpoint_key(index.checkpoint_id, item.name)
        size = sizes.get(key)
        if size is None:
            found = store.head(key)  # a listing may lag; a direct question decides
            size = None if found is None else found.size
        if size is None:
            problems.append(f"{store.uri}/{key}: is missing")
        elif size != item.num_bytes:
            problems.append(f"{store.uri}/{key}: has {size} bytes, the index promises {item.num_bytes}")
    return problems


def _content_problems(
    store: Store, indexes: list[RankIndex], threads: int, progress: Callable[[int], None] | None
) -> tuple[list[str], int]:
    buffers = threading.local()

    def check(work: tuple[RankIndex, int]) -> tuple[str, int]:
        index, number = work
        item = index.objects[number]
        key = checkpoint_key(index.checkpoint_id, item.name)
        if not hasattr(buffers, "view"):
            buffers.view = memoryview(bytearray(_READ_BYTES))
        read = 0
        for look in range(1 + _SECOND_LOOKS):
            if look:
                time.sleep(_SECOND_LOOK_AFTER_S)
            total = 0
            try:
                for start in range(0, item.num_bytes, _READ_BYTES):
                    view = buffers.view[: min(_READ_BYTES, item.num_bytes - start)]
                    store.read_into(key, start, view)
                    total = crc64(view, total)
                    read += len(view)
                    if progress is not None:
                        progress(len(view))
            except (MissingKeyError, CheckpointDamagedError) as error:
                problem = str(error)
                continue
            if total == item.crc64:
                return "", read
            problem = f"{store.uri}/{key}: its {item.num_bytes} bytes have CRC64 {total:016x}, the index promises {item.crc64:016x}"
        return problem, read

    work = [(index, number) for index in indexes for number in range(len(index.objects))]
    with ThreadPoolExecutor(threads, thread_name_prefix="samite-verify") as pool:
        results = list(pool.map(check, work))
    return [problem for problem, _ in results if problem], sum(read for _, read in results)
