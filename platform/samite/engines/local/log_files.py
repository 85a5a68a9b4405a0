"""The log files of a local run: which there are, and reading them as they grow or are truncated."""

from collections.abc import Iterator
from pathlib import Path

from samite.engines.base import LogChoice, LogStream
from samite.engines.log_lines import LineDecoder

_READ_BYTES = 65_536


class LogFiles:
    """The chosen log files of a run, and how their lines are marked."""

    def __init__(self, run_folder: Path, choice: LogChoice) -> None:
        self._run_folder = run_folder
        self._choice = choice
        self._open: dict[Path, LogFile] = {}

    def streams(self, *, last: bool = False) -> list[LogStream]:  # noqa: ARG002 - a file is as new as its last byte
        """The files that exist now, in the order of attempts."""
        return [self._open.setdefault(file, LogFile(file)) for file in self.files()]

    def files(self) -> list[Path]:
        """Their paths."""
        found: list[Path] = []
        choice, source = self._choice, self._choice.source
        wants = {"rank", "driver", "node", "supervisor"} if source == "all" else {source}
        for attempt in self._attempts():
            logs = attempt / "logs"
            if "driver" in wants and not choice.ranks and (logs / "driver.log").is_file():
                found.append(logs / "driver.log")
            if "rank" in wants:
                found += sorted((file for file in logs.glob("rank-*.log") if not choice.ranks or _rank(file) in choice.ranks), key=_rank)
        if choice.previous:
            return found  # a file of a node or of the supervisor is that of all its lives
        if "node" in wants and not choice.ranks:
            found += sorted((self._run_folder / "logs").glob("*.log"))
        if "supervisor" in wants and not choice.ranks and (self._run_folder / "supervisor.log").is_file():
            found.append(self._run_folder / "supervisor.log")
        return found

    def _attempts(self) -> list[Path]:
        found = sorted((self._run_folder / "attempts").glob("*-a*"), key=lambda folder: _attempt(folder.name))
        chosen = self._choice.of_attempts([_attempt(folder.name) for folder in found])
        return [folder for folder in found if _attempt(folder.name) in chosen]


class LogFile:
    """Reads a growing file as text lines. A truncated file is read from its beginning."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self._lines = LineDecoder()

    @property
    def label(self) -> str:
        """`a2 rank-1`, `node-2`, `supervisor`."""
        parts = self.path.parts
        if "attempts" in parts:
            return f"{parts[parts.index('attempts') + 1].rpartition('-')[2]} {self.path.stem}"
        return self.path.stem

    def drain(self, *, last: bool = False) -> Iterator[str]:
        """Whole lines that came since the last call; with `last`, an unfinished one too."""
        try:
            with self.path.open("rb") as handle:
                if self.path.stat().st_size < self._offset:
                    self._offset, self._lines = 0, LineDecoder()
                handle.seek(self._offset)
                while data := handle.read(_READ_BYTES):
                    self._offset += len(data)
                    yield from self._lines.feed(data)
        except OSError:
            return
        if last:
            yield from self._lines.flush()


def _rank(file: Path) -> int:
    number = file.stem.rpartition("-")[2]
    return int(number) if number.isdigit() else -1


def _attempt(submission_id: str) -> int:
    number = submission_id.rpartition("-a")[2]
    return int(number) if number.isdigit() else -1
