"""Copies the driver's run folder to storage while it grows: records that outlive the pods (layout: `samite.checkpoint.records`).

A thread of the driver; every 10 s it sends changed documents whole, and growing files in numbered parts. The last part of a file is replaced until
it is full; a quiet log or metric file waits until it has grown by an eighth of its part, or a minute. One part at a time is in memory.
"""

import json
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from samite.checkpoint import Store
from samite.checkpoint.records import PART_BYTES, part_key, record_key, recorded_files
from samite.spec.attempt import write_atomically

PERIOD_S = 10.0
FLUSH_S = 20.0
"""Longest time that the end of an attempt waits for its records."""
ROUND_BYTES = 8 << 20
ROUND_UPLOADS = 256
"""As much goes in one round; the rest waits for the next, what has waited longest first."""
LOG_BEHIND_BYTES = 32 << 20
"""A log that is further behind loses what is oldest."""
_QUIET_S = 60.0

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Place:
    """How far a growing file is copied: part `part` holds the bytes from `start` to `sent`."""

    start: int = 0
    sent: int = 0
    part: int = 0


class RecordMirror:
    """Of one submission."""

    def __init__(
        self,
        store: Store,
        run_folder: Path,
        submission_id: str,
        *,
        every_s: float = PERIOD_S,
        log_behind_bytes: int = LOG_BEHIND_BYTES,
    ) -> None:
        self._store, self._path, self._submission_id = store, run_folder, submission_id
        self._every_s, self._log_behind_bytes = every_s, log_behind_bytes
        self._memory = run_folder / "bridge" / "mirrored.json"
        self._places: dict[str, Place] | None = None
        self._told: dict[str, int] = {}
        self._sent_at_s: dict[str, float] = {}
        self._stopping, self._given_up = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="samite-records", daemon=True)
        self._said_s = -1e9
        self.uploads = 0
        self.uploaded_bytes = 0
        self.errors = 0
        self.dropped_bytes = 0
        """Never copied: logs that ran ahead, and what the end did not wait for."""

    def start(self) -> None:
        """Begin to copy."""
        self._thread.start()

    def close(self, *, patience_s: float = FLUSH_S) -> bool:
        """Copy what is left, within `patience_s`; True if nothing was dropped."""
        ends_s = time.monotonic() + patience_s
        self._stopping.set()
        self._thread.join(timeout=max(0.0, ends_s - time.monotonic()))
        self._given_up.set()
        left = sum(max(0, size - self._place_of(name).sent) for name, _, size in self._growing()) if self._places is not None else 0
        self.dropped_bytes += left
        return not self.dropped_bytes and not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopping.wait(self._every_s):
            self._try_a_round(last=False)
        # The end: again and again until all is there; who closes does not wait for ever.
        while not self._try_a_round(last=True) and not self._given_up.wait(0.5):
            pass

    def _try_a_round(self, *, last: bool) -> bool:
        """True if everything that was there has been copied."""
        try:
            return self.copy(last=last)
        except Exception as error:  # noqa: BLE001  the boundary of a thread that must outlive every trouble
            self.errors += 1
            now_s = time.monotonic()
            if now_s - self._said_s >= 60.0:
                self._said_s = now_s
                _logger.warning("records were not copied to %s (%d times so far): %s", self._store.uri, self.errors, error)
            return False

    def copy(self, *, last: bool = False) -> bool:
        """One round; True if nothing is left over. Raises what storage answers (SamiteError), with all that succeeded remembered."""
        if self._places is None:
            self._places = self._known_places()
        began = (self.uploaded_bytes, self.uploads)
        try:
            for name, file in self._documents():
                self._copy_document(name, file)
            left_over = [name for name, file, _ in self._growing() if not self._copy_growth(name, file, last=last, began=began)]
            return not left_over
        finally:
            self._remember()

    def _copy_document(self, name: str, file: Path) -> None:
        with suppress(FileNotFoundError):
            changed_ns = file.stat().st_mtime_ns
            if self._told.get(name) != changed_ns:
                self._put(record_key(self._submission_id, name), file.read_bytes())
                self._told[name] = changed_ns

    def _copy_growth(self, name: str, file: Path, *, last: bool, began: tuple[int, int]) -> bool:
        place = self._place_of(name)
        size = file.stat().st_size
        if name.startswith("logs/") and size - place.sent > self._log_behind_bytes:
            self.dropped_bytes += size - PART_BYTES - place.sent
            place.start = place.sent = size - PART_BYTES
            place.part += 1
        quiet = name.startswith("events/") or time.monotonic() - self._sent_at_s.get(name, -1e9) >= _QUIET_S
        if size > place.sent and not last and not quiet and size - place.sent < (place.sent - place.start) // 8:
            return False
        while size > place.sent:
            if self.uploaded_bytes - began[0] > ROUND_BYTES or self.uploads - began[1] >= ROUND_UPLOADS:
                return False
            data = self._read(file, place.start, min(PART_BYTES, size - place.start))
            full = len(data) >= PART_BYTES
            if full:
                data = data[: data.rfind(b"\n") + 1] or data
            self._put(part_key(self._submission_id, name, place.part), data)
            self._sent_at_s[name] = time.monotonic()
            place.sent = place.start + len(data)
            if full:
                place.start, place.part = place.sent, place.part + 1
        return True

    def _put(self, key: str, data: bytes) -> None:
        self._store.put(key, data)
        self.uploads += 1
        self.uploaded_bytes += len(data)

    def _documents(self) -> Iterator[tuple[str, Path]]:
        attempt = self._path / "attempts" / self._submission_id
        for file in (attempt / "attempt.json", attempt / "result.json"):
            if file.exists():
                yield file.name, file
        for file in sorted(attempt.glob("failures/incarnation-*.json")):
            yield f"failures/{file.name}", file

    def _growing(self) -> Iterator[tuple[str, Path, int]]:
        """Name among the records, file and size of everything that grows."""
        attempt = self._path / "attempts" / self._submission_id
        found = [(f"metrics/{file.name}", file) for file in sorted(self._path.glob("metrics/rank-*.jsonl"))]
        found += [(f"logs/{file.name}", file) for pattern in ("*.log", "*.txt") for file in sorted(attempt.glob(f"logs/{pattern}"))]
        found.sort(key=lambda one: self._sent_at_s.get(one[0], -1e9))
        for name, file in (("events/events.jsonl", self._path / "events.jsonl"), *found):
            with suppress(OSError):
                yield name, file, file.stat().st_size

    def _place_of(self, name: str) -> Place:
        assert self._places is not None
        return self._places.setdefault(name, Place())

    def _known_places(self) -> dict[str, Place]:
        """Where the driver before this one stopped. Events and metrics go on, in the first part of the new submission; logs are its own."""
        try:
            memory = json.loads(self._memory.read_text(encoding="utf-8"))
            places = {name: Place(**place) for name, place in memory["places"].items()}
        except (OSError, ValueError, KeyError, TypeError):
            memory, places = {}, {}
        if memory.get("submission") != self._submission_id:
            places = {name: Place(start=place.sent, sent=place.sent) for name, place in places.items() if not name.startswith("logs/")}
        if not places:
            # A folder without memory: parts that are there already stay.
            for name, keys in recorded_files(self._store, self._submission_id).items():
                if keys[-1] != record_key(self._submission_id, name):
                    places[name] = Place(part=len(keys))
        return places

    def _remember(self) -> None:
        assert self._places is not None
        document = {"submission": self._submission_id, "places": {name: asdict(place) for name, place in self._places.items()}}
        self._memory.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self._memory, json.dumps(document))

    @staticmethod
    def _read(file: Path, offset: int, length: int) -> bytes:
        with file.open("rb") as handle:
            handle.seek(offset)
            return handle.read(length)
