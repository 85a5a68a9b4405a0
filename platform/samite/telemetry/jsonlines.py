"""JSON lines that several processes append to and others read while they grow.

A line is one JSON object, pure ASCII, written with one write call in append mode, so that lines of different processes never mix and no
character is ever cut. Readers expect the worst all the same: a torn last line after a power cut, NUL bytes, bytes that are not UTF-8, lines
of megabytes, rotation and truncation. What cannot be read is skipped and counted, never raised.
"""

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MAX_LINE_BYTES = 16 * 1024 * 1024
"""Longer lines are skipped as damaged: they can only be garbage, and a reader must not fill the memory with them."""

_READ_BYTES = 1 << 20


def append_line(path: Path, document: Mapping[str, Any]) -> None:
    """Append `document` as one line. Makes missing folders; raises OSError (full disk, read-only) as the system does.

    The file is opened for each line, so that a rotated file is left alone at once; a torn line before this one is closed first.
    """
    data = encode(document)
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o644)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, flags, 0o644)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            data = b"\n" + data
        while data:
            data = data[os.write(descriptor, data) :]
    finally:
        os.close(descriptor)


def encode(document: Mapping[str, Any]) -> bytes:
    """One line of strict JSON: ASCII only, and `"NaN"`, `"Infinity"`, `"-Infinity"` as strings, because JSON has no such numbers."""
    try:
        text = json.dumps(document, separators=(",", ":"), allow_nan=False)
    except ValueError:
        text = json.dumps(_without_nonfinite(document), separators=(",", ":"), allow_nan=False)
    return text.encode("ascii") + b"\n"


def number(value: object) -> float | None:
    """The number that `encode` wrote, non-finite ones included; None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        try:
            return float(value)
        except OverflowError:
            return None
    if value in ("NaN", "Infinity", "-Infinity"):
        return float(str(value))
    return None


def moment(value: object) -> float | None:
    """A time in seconds since the epoch; None for anything that cannot be one."""
    seconds = number(value)
    return seconds if seconds is not None and 0.0 <= seconds < 1e11 else None


@dataclass(slots=True)
class Lines:
    """What a file held. `damaged` counts lines that were not a JSON object."""

    documents: list[dict[str, Any]] = field(default_factory=list)
    damaged: int = 0
    missing: bool = False
    """The file does not exist or may not be read."""


def read(path: Path) -> Lines:
    """All documents of `path`. A missing or unreadable file gives no documents and says `missing`."""
    lines = Lines()
    follower = Follower(path)
    lines.documents = list(follower.poll())
    lines.documents.extend(follower.last())
    lines.damaged = follower.damaged
    lines.missing = follower.missing
    return lines


class Follower:
    """Reads a growing file: each `poll` yields the documents that were completed since the last one.

    `from_end` starts behind what is there, `tail_bytes` so many bytes before its end, at the next whole line.
    A line without its newline waits for the next poll. When the file was rotated, the rest of the old one is read before the new one;
    when it was truncated, reading starts again at its beginning.
    """

    def __init__(self, path: Path, *, from_end: bool = False, tail_bytes: int | None = None) -> None:
        self.path = path
        self.damaged = 0
        self.missing = False
        self._file = -1
        self._inode = (0, 0)
        self._offset = 0
        self._rest = b""
        self._skipping = False
        if self._open() and (from_end or tail_bytes is not None):
            size = os.fstat(self._file).st_size
            self._offset = size if from_end else max(0, size - (tail_bytes or 0))
            self._skipping = not from_end and self._offset > 0

    def poll(self) -> Iterator[dict[str, Any]]:
        """Documents completed since the last call."""
        if self._file < 0 and not self._open():
            return
        yield from self._drain()
        if self._replaced():
            yield from self.last()
            self.close()
            if self._open():
                yield from self._drain()

    def last(self) -> Iterator[dict[str, Any]]:
        """The document of a final line that lacks only its newline; a torn one counts as damaged."""
        rest, self._rest, self._skipping = self._rest, b"", False
        yield from self._parse(rest)

    def close(self) -> None:
        """Give the file back. Polling opens it again."""
        if self._file >= 0:
            os.close(self._file)
        self._file, self._offset, self._rest, self._skipping = -1, 0, b"", False

    def __del__(self) -> None:
        self.close()

    def _open(self) -> bool:
        try:
            self._file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            status = os.fstat(self._file)
        except OSError:
            self.missing = True
            return False
        self.missing = False
        self._inode = (status.st_dev, status.st_ino)
        return True

    def _replaced(self) -> bool:
        try:
            status = self.path.stat()
        except OSError:
            return False
        return (status.st_dev, status.st_ino) != self._inode

    def _drain(self) -> Iterator[dict[str, Any]]:
        if os.fstat(self._file).st_size < self._offset:
            self._offset, self._rest, self._skipping = 0, b"", False
        while True:
            try:
                data = os.pread(self._file, _READ_BYTES, self._offset)
            except OSError:
                self.missing = True
                return
            if not data:
                return
            self._offset += len(data)
            *whole, self._rest = (self._rest + data).split(b"\n")
            for line in whole:
                if self._skipping:
                    self._skipping = False
                else:
                    yield from self._parse(line)
            if len(self._rest) > MAX_LINE_BYTES:
                self.damaged += not self._skipping
                self._rest, self._skipping = b"", True

    def _parse(self, line: bytes) -> Iterator[dict[str, Any]]:
        text = line.replace(b"\0", b"").decode("utf-8", errors="replace").strip()
        if not text:
            return
        try:
            document = json.loads(text)
        except (ValueError, RecursionError):
            document = None
        if isinstance(document, dict):
            yield document
        else:
            self.damaged += 1


def without_nonfinite(value: Any) -> Any:
    """`value` as JSON can carry it for any reader: null for a number that JSON does not have."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: without_nonfinite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nonfinite(item) for item in value]
    return value


def _without_nonfinite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {key: _without_nonfinite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nonfinite(item) for item in value]
    return value
