"""`samite logs`: what ranks, driver, nodes and supervisor printed; also after everything that printed it is gone.

Logs are bytes from programs that die at any point: bad UTF-8 is replaced, NUL and escape sequences are shown and not obeyed, a line may be
megabytes long, a file may be truncated while it is followed.
"""

import codecs
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from samite.cli.output import hint, note, print_text

OptionalRun = Annotated[
    str, typer.Argument(metavar="[RUN]", help="Name of the run; may be left out when only one is active.", show_default=False)
]
SOURCES = ("rank", "driver", "node", "supervisor", "all")
MAX_LINE_CHARACTERS = 20_000
_READ_BYTES = 65_536
_POLL_S = 0.3


def register(app: typer.Typer) -> None:
    """Add `logs`."""
    app.command()(logs)


def logs(
    run: OptionalRun = "",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Stay and print what comes; Ctrl-C stops, the run goes on.")] = False,
    source: Annotated[str, typer.Option("--source", help="rank, driver, node, supervisor or all.")] = "rank",
    rank: Annotated[str, typer.Option("--rank", help="Ranks to show, such as 0 or 0,7; default all.", show_default=False)] = "",
    attempt: Annotated[
        int | None, typer.Option("--attempt", min=0, help="Attempt to show; default the newest, 0 for all.", show_default=False)
    ] = None,
    grep: Annotated[str, typer.Option("--grep", help="Only lines that match this regular expression.", show_default=False)] = "",
    tail: Annotated[int, typer.Option("--tail", min=0, help="Last lines of each file to begin with; 0 for all.")] = 0,
) -> None:
    """Show logs of a run."""
    from samite.engines.local.client import LocalEngine
    from samite.errors import NotFoundError, UsageError
    from samite.settings import Settings

    if source not in SOURCES:
        raise UsageError(f"--source {source!r}: wanted one of {', '.join(SOURCES)}")
    try:
        pattern = re.compile(grep) if grep else None
    except re.error as error:
        raise UsageError(f"--grep {grep!r} is not a regular expression: {error}") from error
    engine = LocalEngine(Settings.from_environment())
    folder = engine.find(run)
    selection = Selection(folder.path, source=source, ranks=frozenset(_numbers(rank)), attempt=attempt)
    if follow:
        follow_run(engine, folder, selection, pattern)
        return
    files = selection.files()
    if not files:
        raise NotFoundError(f"run {folder.name!r} has no logs of source {source!r}" + (f", rank {rank}" if rank else "") + " yet")
    for file in files:
        lines = list(LogFile(file).drain(last=True)) if tail else LogFile(file).drain(last=True)
        for line in lines[-tail:] if isinstance(lines, list) else lines:
            _print(selection.label(file), line, pattern)


def follow_run(engine: Any, folder: Any, selection: "Selection | None" = None, pattern: "re.Pattern[str] | None" = None) -> None:
    """Print new log lines until the run is settled or Ctrl-C; the latter exits 130 and leaves the run alone."""
    chosen = selection or Selection(folder.path, source="all", ranks=frozenset(), attempt=0)
    open_files: dict[Path, LogFile] = {}
    try:
        while True:
            settled = bool(engine.status(folder).get("settled", False))
            for file in chosen.files():
                for line in open_files.setdefault(file, LogFile(file)).drain(last=settled):
                    _print(chosen.label(file), line, pattern)
            if settled:
                note(f"run {folder.name}: {engine.status(folder)['phase']}")
                return
            time.sleep(_POLL_S)
    except KeyboardInterrupt:
        hint(f"the run goes on; to come back: samite logs {folder.name} -f")
        raise typer.Exit(130) from None


class Selection:
    """Which log files of a run are wanted, and how their lines are marked."""

    def __init__(self, run_folder: Path, *, source: str, ranks: frozenset[int], attempt: int | None) -> None:
        self._run_folder = run_folder
        self._source = source
        self._ranks = ranks
        self._attempt = attempt

    def files(self) -> list[Path]:
        """The files that exist now, in the order of attempts."""
        found: list[Path] = []
        wants = {"rank", "driver", "node", "supervisor"} if self._source == "all" else {self._source}
        for attempt in self._attempts():
            logs = attempt / "logs"
            if "driver" in wants and not self._ranks and (logs / "driver.log").is_file():
                found.append(logs / "driver.log")
            if "rank" in wants:
                found += sorted((file for file in logs.glob("rank-*.log") if not self._ranks or _rank(file) in self._ranks), key=_rank)
        if "node" in wants and not self._ranks:
            found += sorted((self._run_folder / "logs").glob("*.log"))
        if "supervisor" in wants and not self._ranks and (self._run_folder / "supervisor.log").is_file():
            found.append(self._run_folder / "supervisor.log")
        return found

    def label(self, file: Path) -> str:
        """`a2 rank-1`, `node-2`, `supervisor`."""
        parts = file.parts
        if "attempts" in parts:
            return f"{parts[parts.index('attempts') + 1].rpartition('-')[2]} {file.stem}"
        return file.stem

    def _attempts(self) -> list[Path]:
        found = sorted((self._run_folder / "attempts").glob("*-a*"), key=lambda folder: _numbers(folder.name.rpartition("-a")[2]))
        if self._attempt is None:
            return found[-1:]
        return [folder for folder in found if self._attempt == 0 or folder.name.endswith(f"-a{self._attempt}")]


class LogFile:
    """Reads a growing file as text lines. Multi-byte characters cut at a border are kept for the next read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self._rest = ""
        self._start()

    def drain(self, *, last: bool = False) -> Iterator[str]:
        """Whole lines that came since the last call; with `last`, an unfinished one too. A truncated file is read from its beginning."""
        try:
            with self.path.open("rb") as handle:
                if self.path.stat().st_size < self._offset:
                    self._offset = 0
                    self._start()
                handle.seek(self._offset)
                while data := handle.read(_READ_BYTES):
                    self._offset += len(data)
                    *whole, self._rest = (self._rest + self._decoder.decode(data)).split("\n")
                    yield from whole
                    if len(self._rest) > MAX_LINE_CHARACTERS:
                        yield self._rest
                        self._rest = ""
        except OSError:
            return
        if last and self._rest:
            yield self._rest
            self._rest = ""

    def _start(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""


def visible(line: str) -> str:
    """A log line as it may be shown: the last state of a progress bar, no escape sequence obeyed, tabs kept."""
    shown = line.removesuffix("\r").rpartition("\r")[2]
    text = "".join(c if c.isprintable() or c == "\t" else f"\\x{ord(c):02x}" for c in _ANSI.sub("", shown))
    return text if len(text) <= MAX_LINE_CHARACTERS else f"{text[:MAX_LINE_CHARACTERS]} ... ({len(text):,} characters)"


_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


def _print(label: str, line: str, pattern: "re.Pattern[str] | None") -> None:
    text = visible(line)
    if pattern is None or pattern.search(text):
        print_text(f"{label}: {text}")


def _rank(file: Path) -> int:
    return int(file.stem.rpartition("-")[2]) if file.stem.rpartition("-")[2].isdigit() else -1


def _numbers(text: str) -> list[int]:
    from samite.errors import UsageError

    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise UsageError(f"--rank {text!r}: wanted numbers such as 0 or 0,7") from error
