"""A rank's side of the folder: what is new since the collector's last answer, in pushes of bounded size. Only reads, but for the seeds of a welcome.

Small documents (heartbeat, failure reports, result) come first, then events, metrics, log and stacks, as far as the push has room.
"""

import json
import os
import secrets
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from samite.spec.attempt import write_atomically
from samite.spec.lease import attempt_number
from samite_workloads.bridge import places
from samite_workloads.bridge.messages import Answer, Greeting, Piece, Push, Welcome

PUSH_BYTES = 256 * 1024
LOG_BEHIND_BYTES = 1 << 20
"""A log that is further behind than this loses its middle: the newest lines are worth more."""
LOG_KEPT_BYTES = 64 * 1024
_CPU_WINDOW_S = 6.0

_Signature = tuple[int, int]


class RankFolder:
    """Of one process of one rank. `leads`: it also sends what all ranks of its pod write together."""

    def __init__(self, run_folder: Path, *, submission_id: str, rank: int, leads: bool) -> None:
        self.path = run_folder
        self.submission_id, self.rank = submission_id, rank
        self._leads = leads
        self._folder_id = places.folder_id(run_folder)
        self._session = secrets.token_hex(8)
        self._growing = places.growing_names(submission_id, rank)
        self._sizes = {name: size for name in (places.EVENTS, *self._growing) if (size := _size(run_folder / name))}
        self._taken: dict[str, int] = {}
        self._told: dict[str, _Signature] = {}
        self._cpu: deque[tuple[float, float]] = deque()
        self.answered = ""
        """The newest `stacks.json` request that is answered."""
        self.left_out_bytes = 0
        """Of logs, because they ran ahead."""

    def greeting(self) -> Greeting:
        """The first words; they name the sizes from before this process wrote anything."""
        return Greeting(folder_id=self._folder_id, rank=self.rank, sizes=self._sizes)

    def accept(self, welcome: Welcome, *, early: bool) -> None:
        """Put the past in place. `early`: this process has written nothing yet, so its predecessor's heartbeat may stand in its place."""
        self._taken = dict(welcome.taken)
        for name, text in welcome.documents.items():
            file = self.path / name
            if not places.may_travel(name):
                continue
            if not file.exists() or (early and name.startswith("heartbeats/") and _is_later(text, file)):
                file.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(file, text)
            signature = _signature(file)
            with suppress(OSError, UnicodeDecodeError):
                if signature is not None and file.read_text(encoding="utf-8") == text:
                    self._told[name] = signature
        beat = places.heartbeat_name(self.rank)
        if early and (signature := _signature(self.path / beat)) is not None:
            self._told[beat] = signature

    def collect(self, *, last: bool = False, control_digest: str = "") -> tuple[Push, dict[str, _Signature]]:
        """What is new, and what `confirm` must be told about it. `last` includes lines without an end and what the pod's lead would send."""
        documents: dict[str, str] = {}
        signatures: dict[str, _Signature] = {}
        room = PUSH_BYTES
        for name in self._document_names():
            signature = _signature(self.path / name)
            if signature is None or self._told.get(name) == signature or room <= 0:
                continue
            with suppress(OSError, UnicodeDecodeError):
                documents[name] = (self.path / name).read_text(encoding="utf-8")
                signatures[name] = signature
                room -= len(documents[name])
        pieces = []
        for name in (places.EVENTS, *self._growing) if self._leads or last else self._growing:
            piece = self._piece(name, room, last=last)
            if piece is not None:
                pieces.append(piece)
                room -= len(piece.data)
        share, window_s = self._cpu_share()
        push = Push(
            folder_id=self._folder_id,
            rank=self.rank,
            session=self._session,
            sent_at_s=time.monotonic(),
            documents=documents,
            pieces=tuple(pieces),
            cpu_share=share,
            cpu_window_s=window_s,
            answered=self.answered,
            control_digest=control_digest,
        )
        return push, signatures

    def confirm(self, signatures: dict[str, _Signature], answer: Answer) -> None:
        """The collector has it."""
        self._told.update(signatures)
        self._taken.update(answer.taken)

    def is_told(self) -> bool:
        """Whether the collector has everything that is in the folder now."""
        if any(_signature(self.path / name) not in (None, self._told.get(name)) for name in self._document_names()):
            return False
        return all(_size(self.path / name) <= self._taken.get(name, 0) for name in (places.EVENTS, *self._growing))

    def _document_names(self) -> Iterator[str]:
        yield places.heartbeat_name(self.rank)
        for pattern in places.once_patterns(self.submission_id, self.rank):
            for file in sorted(self.path.glob(pattern)):
                if not file.name.startswith("."):
                    yield file.relative_to(self.path).as_posix()

    def _piece(self, name: str, room: int, *, last: bool) -> Piece | None:
        file, begin = self.path / name, self._taken.get(name, 0)
        behind = _size(file) - begin
        if behind <= 0 or room <= 0:
            return None
        is_log = not name.endswith(".jsonl")
        if is_log and behind > LOG_BEHIND_BYTES:
            lost = behind - LOG_KEPT_BYTES
            self.left_out_bytes += lost
            note = f"\n... {lost} bytes left out here ...\n".encode("ascii")
            return Piece(name=name, offset=begin, advance=behind, data=note + _read(file, begin + lost, LOG_KEPT_BYTES))
        data = _read(file, begin, min(behind, room))
        if not is_log and not last:
            whole = data.rfind(b"\n") + 1
            # A line that fills half a push goes in parts; every other one goes whole, because other ranks write into the same events.
            data = data[:whole] if whole or len(data) < PUSH_BYTES // 2 else data
        return Piece(name=name, offset=begin, advance=len(data), data=data) if data else None

    def _cpu_share(self) -> tuple[float | None, float]:
        """CPU seconds per second of this whole process over the last few seconds."""
        now = (time.monotonic(), time.process_time())
        self._cpu.append(now)
        while len(self._cpu) > 2 and now[0] - self._cpu[1][0] >= _CPU_WINDOW_S:
            self._cpu.popleft()
        window_s = now[0] - self._cpu[0][0]
        return ((now[1] - self._cpu[0][1]) / window_s, window_s) if window_s >= 1.0 else (None, 0.0)


def _is_later(text: str, file: Path) -> bool:
    """Whether the heartbeat `text` tells of a later moment of the run than the one in `file`."""

    def moment(document: dict[str, object]) -> tuple[int, int, int]:
        return (
            attempt_number(str(document.get("submission_id", ""))),
            int(str(document.get("incarnation", 0))),
            int(str(document.get("step", 0))),
        )

    try:
        return moment(json.loads(text)) > moment(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return True


def _signature(file: Path) -> _Signature | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_ino)


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


def _read(file: Path, offset: int, length: int) -> bytes:
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.pread(descriptor, length, offset)
    finally:
        os.close(descriptor)
