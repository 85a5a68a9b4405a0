"""What a run left in object storage, beside its checkpoints: read after the pods are gone, and while they live.

    records/<submission>/events/*.jsonl  metrics/rank-<r>.jsonl  logs/*.log  failures/*.json  result.json      by the driver, each 10 s
    records/operator/events/*.jsonl                                                                            by the operator

Objects only grow, or are replaced by longer ones; each reader remembers how far it has read. A storage that does not answer is no fact about
the run: whoever calls decides whether that is an error or a remark.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from samite.checkpoint import Store
from samite.engines.log_lines import LineDecoder
from samite.errors import NotFoundError
from samite.spec.lease import attempt_number
from samite.telemetry.events import EventRecord

ROOT = "records/"
OPERATOR = "operator"
_WINDOW_BYTES = 1 << 20


def submissions(store: Store) -> list[str]:
    """Submissions that left records, oldest attempt first."""
    try:
        found = [name.rstrip("/") for name in store.children(ROOT) if name.endswith("/")]
    except NotFoundError:
        return []
    return sorted((name for name in found if attempt_number(name) >= 0), key=attempt_number)


def keys(store: Store, folder: str) -> list[str]:
    """Objects below `records/<folder>/`, by name; none if there is no such folder."""
    try:
        return [info.key for info in store.list(f"{ROOT}{folder.strip('/')}/")]
    except NotFoundError:
        return []


class GrowingObject:
    """One object, read as it grows."""

    def __init__(self, store: Store, key: str) -> None:
        self.key = key
        self._store = store
        self._offset = 0

    def new_bytes(self) -> Iterator[bytes]:
        """What was added since the last call, in windows. An object that became shorter is read from its beginning."""
        info = self._store.head(self.key)
        if info is None:
            return
        if info.size < self._offset:
            self._offset = 0
        while self._offset < info.size:
            window = bytearray(min(_WINDOW_BYTES, info.size - self._offset))
            self._store.read_into(self.key, self._offset, memoryview(window))
            self._offset += len(window)
            yield bytes(window)


class RecordLog:
    """A log file that the driver uploads. `LogStream`."""

    def __init__(self, store: Store, key: str) -> None:
        _, submission, _, name = key.split("/", 3)
        self.label = f"a{attempt_number(submission)} {name.removesuffix('.log')}"
        self._object = GrowingObject(store, key)
        self._lines = LineDecoder()

    def drain(self, *, last: bool = False) -> Iterator[str]:
        """Whole lines that came since the last call; with `last`, an unfinished one too."""
        for data in self._object.new_bytes():
            yield from self._lines.feed(data)
        if last:
            yield from self._lines.flush()


class RecordEvents:
    """Events of trainer and operator from storage, as they come."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._open: dict[str, tuple[GrowingObject, LineDecoder]] = {}
        self._finished: set[str] = set()

    def poll(self) -> list[EventRecord]:
        """Events that were not given before, oldest first. Only the newest submission and the operator still write."""
        found: list[EventRecord] = []
        writing = submissions(self._store)
        for folder in (*writing, OPERATOR):
            if folder not in self._finished:
                found += self._new_events(folder)
        self._finished |= set(writing[:-1])
        return sorted(found, key=lambda record: record.time_unix_s)

    def _new_events(self, folder: str) -> Iterator[EventRecord]:
        for key in keys(self._store, f"{folder}/events"):
            growing, lines = self._open.setdefault(key, (GrowingObject(self._store, key), LineDecoder()))
            for data in growing.new_bytes():
                for line in lines.feed(data):
                    record = _event(line)
                    if record is not None:
                        yield record


def copy_metrics(store: Store, folder: Path) -> None:
    """Write `metrics/rank-<r>.jsonl` below `folder`: what all submissions recorded, oldest first."""
    target = folder / "metrics"
    target.mkdir(parents=True, exist_ok=True)
    for submission in submissions(store):
        for key in keys(store, f"{submission}/metrics"):
            name = key.rpartition("/")[2]
            with (target / name).open("ab") as file:
                for data in GrowingObject(store, key).new_bytes():
                    file.write(data)


def _event(line: str) -> EventRecord | None:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return EventRecord.from_document(document) if isinstance(document, dict) else None
