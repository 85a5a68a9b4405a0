"""What a run left in object storage beside its checkpoints, read as it grows: after the pods are gone, and while they live.

Layout: `samite.checkpoint.records`. The driver's records lag up to a minute behind. A storage that does not answer is no fact about the run:
whoever calls decides whether that is an error or a remark.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from samite.checkpoint import Store
from samite.checkpoint.records import RECORDS, recorded_files, recorded_submissions
from samite.engines.log_lines import LineDecoder
from samite.errors import NotFoundError
from samite.spec.lease import attempt_number
from samite.telemetry.events import EventRecord

OPERATOR_EVENTS = f"{RECORDS}operator/events/"
_WINDOW_BYTES = 1 << 20


def submissions(store: Store) -> list[str]:
    """Submissions that left records, oldest attempt first."""
    try:
        found = recorded_submissions(store)
    except NotFoundError:
        return []
    return sorted((name for name in found if attempt_number(name) >= 0), key=attempt_number)


class RecordFile:
    """One recorded file in parts, read as it grows."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._index = 0
        self._offset = 0

    def new_bytes(self, keys: Sequence[str]) -> Iterator[bytes]:
        """What came since the last call, in windows. `keys`: all parts that there are, in order.

        A part that turns out shorter than what was read of it was cut at a line: the next part begins with the rest, which is not given twice.
        """
        while self._index < len(keys):
            info = self._store.head(keys[self._index])
            if info is None:
                return
            while self._offset < info.size:
                window = bytearray(min(_WINDOW_BYTES, info.size - self._offset))
                self._store.read_into(keys[self._index], self._offset, memoryview(window))
                self._offset += len(window)
                yield bytes(window)
            if self._index + 1 >= len(keys):
                return
            self._index, self._offset = self._index + 1, max(0, self._offset - info.size)


class RecordLog:
    """A log that the driver records. `LogStream`."""

    def __init__(self, store: Store, submission: str, name: str) -> None:
        self.label = f"a{attempt_number(submission)} {name.rpartition('/')[2].removesuffix('.log')}"
        self._file = RecordFile(store)
        self._lines = LineDecoder()
        self._keys: Sequence[str] = ()
        self._due = False

    def listed(self, keys: Sequence[str]) -> None:
        """The file's parts, as just listed: the next `drain` reads them."""
        self._keys, self._due = keys, True

    def drain(self, *, last: bool = False) -> Iterator[str]:
        """Whole lines that came since the last listing; with `last`, an unfinished one too."""
        if self._due:
            self._due = False
            for data in self._file.new_bytes(self._keys):
                yield from self._lines.feed(data)
        if last:
            yield from self._lines.flush()


class RecordEvents:
    """Events of trainer and operator from storage, as they come."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._open: dict[str, tuple[RecordFile, LineDecoder]] = {}
        self._finished: set[str] = set()

    def poll(self) -> list[EventRecord]:
        """Events that were not given before, oldest first. Only the newest submission and the operator still write."""
        found: list[EventRecord] = []
        known = submissions(self._store)
        for submission in known:
            if submission not in self._finished:
                files = recorded_files(self._store, submission)
                for name, keys in files.items():
                    if name.startswith("events/"):
                        found += self._new_events(f"{submission}/{name}", keys)
        self._finished |= set(known[:-1])
        for key in _operator_keys(self._store):
            found += self._new_events(key, [key])
        return sorted(found, key=lambda record: record.time_unix_s)

    def _new_events(self, name: str, keys: Sequence[str]) -> Iterator[EventRecord]:
        file, lines = self._open.setdefault(name, (RecordFile(self._store), LineDecoder()))
        for data in file.new_bytes(keys):
            for line in lines.feed(data):
                record = _event(line)
                if record is not None:
                    yield record


def copy_metrics(store: Store, folder: Path) -> None:
    """Write `metrics/rank-<r>.jsonl` below `folder`: what all submissions recorded, oldest first."""
    (folder / "metrics").mkdir(parents=True, exist_ok=True)
    for submission in submissions(store):
        for name, keys in recorded_files(store, submission).items():
            if name.startswith("metrics/"):
                with (folder / "metrics" / name.rpartition("/")[2]).open("ab") as file:
                    for data in RecordFile(store).new_bytes(keys):
                        file.write(data)


def _operator_keys(store: Store) -> list[str]:
    try:
        return [info.key for info in store.list(OPERATOR_EVENTS)]
    except NotFoundError:
        return []


def _event(line: str) -> EventRecord | None:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return EventRecord.from_document(document) if isinstance(document, dict) else None
