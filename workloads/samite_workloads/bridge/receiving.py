"""The collector: makes one whole run folder, the driver's, of what the ranks push, and answers with the requests in its `control/`.

Everything it must not forget is in the folder, so that a collector that Ray has started again goes on where its predecessor died. Pieces are
taken by their offset in the sender's file: what comes a second time is left out.
"""

import json
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from samite.spec.attempt import write_atomically
from samite.telemetry import jsonlines
from samite_workloads.bridge import places
from samite_workloads.bridge.control_files import ControlFiles, digest
from samite_workloads.bridge.messages import Answer, Greeting, Piece, Push, Welcome

_PUSHES_FOR_CLOCKS = 60
_CONTROL_FOR_S = 0.25
"""So long one look at `control/` is good for all ranks."""
_SEEDS_FOR_S = 1.0
_SEEDED_REPORTS = 64


class Collector:
    """Of one submission. One thread calls it."""

    def __init__(self, run_folder: Path, submission_id: str) -> None:
        self._path, self._submission_id = run_folder, submission_id
        self._folder_id = places.folder_id(run_folder)
        self._taken: dict[str, dict[str, int]] = {}
        self._beats: dict[int, dict[str, Any]] = {}
        self._distances_s: dict[str, deque[float]] = {}
        self._control = ControlFiles(run_folder)
        self._control_read_s = -1e9
        self._documents: dict[str, str] = {}
        self._seeds_read_s = -1e9
        self._seeds: dict[str, str] = {}
        self._digest = ""

    def greet(self, greeting: Greeting) -> Welcome:
        """A process of a rank begins. From a folder that was never heard of, only what grows from now on is wanted."""
        if greeting.folder_id == self._folder_id:
            return Welcome(shared=True)
        taken = self._taken_of(greeting.folder_id)
        if not self._taken_file(greeting.folder_id).exists():
            taken.update(greeting.sizes)
            self._remember(greeting.folder_id)
        found = {
            **self._common_seeds(),
            **self._read(file for pattern in places.own_seeds(greeting.rank) for file in self._path.glob(pattern)),
        }
        self._look_at_control()
        return Welcome(shared=False, documents=found, taken=dict(taken), control=self._documents)

    def push(self, push: Push) -> Answer:
        """Take what is new. Raises OSError (disk full) with nothing confirmed that is not stored."""
        arrived_s = time.monotonic()
        distances = self._distances_s.setdefault(push.session, deque(maxlen=_PUSHES_FOR_CLOCKS))
        distances.append(arrived_s - push.sent_at_s)
        for name, text in push.documents.items():
            if not places.may_travel(name):
                continue
            if name == places.heartbeat_name(push.rank):
                self._take_heartbeat(push.rank, text, min(distances))
            else:
                file = self._path / name
                file.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(file, text)
                self._seeds_read_s = -1e9
        self._write_heartbeat(push, arrived_s)
        taken = self._taken_of(push.folder_id)
        try:
            grown = [self._append(piece, taken) for piece in push.pieces]
        finally:
            if push.pieces:
                self._remember(push.folder_id)
        self._look_at_control()
        return Answer(
            taken={name: taken[name] for name in grown if name}, control=None if push.control_digest == self._digest else self._documents
        )

    def _common_seeds(self) -> dict[str, str]:
        """The same for all ranks of a worker group that begins, so it is put together once. Of many reports the earliest: the cause is among them."""
        now_s = time.monotonic()
        if now_s - self._seeds_read_s >= _SEEDS_FOR_S:
            self._seeds_read_s = now_s
            failures, marks = (list(self._path.glob(pattern)) for pattern in places.common_seeds(self._submission_id))
            newest = max((_incarnation(file.name) for file in failures), default=0)
            last = sorted((file for file in failures if _incarnation(file.name) == newest), key=lambda file: file.stat().st_mtime_ns)
            self._seeds = self._read((*last[:_SEEDED_REPORTS], *marks))
        return self._seeds

    def _read(self, files: Iterable[Path]) -> dict[str, str]:
        found = {}
        for file in files:
            with suppress(OSError, UnicodeDecodeError):
                if not file.name.startswith("."):
                    found[file.relative_to(self._path).as_posix()] = file.read_text(encoding="utf-8")
        return found

    def _take_heartbeat(self, rank: int, text: str, distance_s: float) -> None:
        """Keep the rank's heartbeat with its time on this machine's monotonic clock: the quickest of the last pushes tells the distance."""
        try:
            beat = json.loads(text)
            beat["monotonic_s"] = float(beat["monotonic_s"]) + distance_s
        except (ValueError, KeyError, TypeError):
            return
        if beat.get("submission_id") == self._submission_id:
            self._beats[rank] = beat

    def _write_heartbeat(self, push: Push, arrived_s: float) -> None:
        """The file says when the process was heard too: a blocked training function does not silence it."""
        beat = self._beats.get(push.rank)
        file = self._path / places.heartbeat_name(push.rank)
        if beat is None:
            # A collector started again goes on with its predecessor's; other submissions' stay as they are.
            with suppress(OSError, ValueError):
                found = json.loads(file.read_text(encoding="utf-8"))
                if found.get("submission_id") == self._submission_id:
                    beat = self._beats[push.rank] = found
        if beat is None:
            return
        beat |= {"heard_s": arrived_s, "cpu_share": push.cpu_share, "cpu_window_s": push.cpu_window_s, "answered": push.answered}
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, jsonlines.encode(beat).decode("ascii"))

    def _append(self, piece: Piece, taken: dict[str, int]) -> str:
        """Append what is new of a piece; returns the name of the file whose count the sender needs."""
        have = taken.get(piece.name, 0)
        if not places.may_travel(piece.name):
            return ""
        if have != piece.offset:
            # Sent twice because an answer was lost, or by two ranks of one pod: the sender goes on from our count.
            taken.setdefault(piece.name, 0)
            return piece.name
        file = self._path / piece.name
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("ab") as handle:
            handle.write(piece.data)
        taken[piece.name] = piece.offset + piece.advance
        return piece.name

    def _look_at_control(self) -> None:
        now_s = time.monotonic()
        if now_s - self._control_read_s >= _CONTROL_FOR_S:
            self._control_read_s = now_s
            self._documents = self._control.read()
            self._digest = digest(self._documents)

    def _taken_of(self, folder_id: str) -> dict[str, int]:
        if folder_id not in self._taken:
            try:
                self._taken[folder_id] = json.loads(self._taken_file(folder_id).read_text(encoding="utf-8"))
            except (OSError, ValueError):
                self._taken[folder_id] = {}
        return self._taken[folder_id]

    def _remember(self, folder_id: str) -> None:
        file = self._taken_file(folder_id)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, json.dumps(self._taken[folder_id]))

    def _taken_file(self, folder_id: str) -> Path:
        return self._path / "bridge" / "taken" / f"{''.join(c for c in folder_id if c.isalnum())}.json"


def _incarnation(name: str) -> int:
    """In the name of a failure report, `incarnation-<i>-rank-<r>.json`."""
    number = name.split("-")[1] if name.count("-") > 2 else ""
    return int(number) if number.isdigit() else 0
