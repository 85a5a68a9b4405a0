"""`samite logs`: what ranks, driver, nodes and supervisor or operator printed; also after everything that printed it is gone.

Programs print what they like: NUL and escape sequences are shown and not obeyed, and a line of megabytes is cut.
"""

import re
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from samite.cli.output import hint, note, print_text

if TYPE_CHECKING:
    from samite.engines.base import LogChoice, RunClient

OptionalRun = Annotated[
    str, typer.Argument(metavar="[RUN]", help="Name of the run; may be left out when only one is active.", show_default=False)
]
SOURCES = ("rank", "driver", "node", "supervisor", "operator", "all")
_POLL_S = 0.3


def register(app: typer.Typer) -> None:
    """Add `logs`."""
    app.command()(logs)


def logs(
    run: OptionalRun = "",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Stay and print what comes; Ctrl-C stops, the run goes on.")] = False,
    source: Annotated[str, typer.Option("--source", help="rank, driver, node, supervisor (operator on Kubernetes) or all.")] = "rank",
    rank: Annotated[str, typer.Option("--rank", help="Ranks to show, such as 0 or 0,7; default all.", show_default=False)] = "",
    attempt: Annotated[
        int | None, typer.Option("--attempt", min=0, help="Attempt to show; default the newest, 0 for all.", show_default=False)
    ] = None,
    previous: Annotated[
        bool,
        typer.Option("--previous", "-p", help="The attempt before the newest; of node or operator, the container before its last restart."),
    ] = False,
    grep: Annotated[str, typer.Option("--grep", help="Only lines that match this regular expression.", show_default=False)] = "",
    tail: Annotated[int, typer.Option("--tail", min=0, help="Last lines of each file to begin with; 0 for all.")] = 0,
) -> None:
    """Show logs of a run."""
    from samite.cli.place import find
    from samite.engines.base import LogChoice
    from samite.errors import NotFoundError, UsageError

    if source not in SOURCES:
        raise UsageError(f"--source {source!r}: wanted one of {', '.join(SOURCES)}")
    try:
        pattern = re.compile(grep) if grep else None
    except re.error as error:
        raise UsageError(f"--grep {grep!r} is not a regular expression: {error}") from error
    if previous and (follow or attempt is not None):
        raise UsageError(f"--previous is one attempt, and it is over: leave {'--follow' if follow else '--attempt'} out")
    client, found = find(run)
    choice = LogChoice(source=source, ranks=frozenset(_numbers(rank)), attempt=attempt, previous=previous)
    if follow:
        follow_run(client, found, choice, pattern)
        return
    streams = client.logs(found, choice).streams()
    if not streams:
        which = f"logs of source {source!r}" + (f", rank {rank}" if rank else "")
        raise NotFoundError(
            f"run {found.name!r} has no {which} before its newest" if previous else f"run {found.name!r} has no {which} yet"
        )
    for stream in streams:
        lines = list(stream.drain(last=True)) if tail else stream.drain(last=True)
        for line in lines[-tail:] if isinstance(lines, list) else lines:
            _print(stream.label, line, pattern)


def follow_run(client: "RunClient[Any]", run: Any, choice: "LogChoice | None" = None, pattern: "re.Pattern[str] | None" = None) -> None:
    """Print new log lines until the run is settled or Ctrl-C; the latter exits 130 and leaves the run alone."""
    from samite.cli.place import command
    from samite.engines.base import LogChoice
    from samite.errors import TemporaryError

    logs = client.logs(run, choice or LogChoice(attempt=0))
    silent = False
    try:
        while True:
            try:
                status = client.status(run)
                settled = bool(status.get("settled", False))
                for stream in logs.streams(last=settled):
                    for line in stream.drain(last=settled):
                        _print(stream.label, line, pattern)
                silent = False
            except TemporaryError as error:
                # What was printed meanwhile is not lost: streams go on where they were.
                if not silent:
                    note(f"waiting: {error}")
                silent, settled, status = True, False, {}
            if settled:
                note(f"run {run.name}: {status['phase']}")
                return
            time.sleep(max(_POLL_S, client.refresh_s / 2))
    except KeyboardInterrupt:
        hint(f"the run goes on; to come back: {command(client, 'logs', run.name, '-f')}")
        raise typer.Exit(130) from None


def visible(line: str) -> str:
    """A log line as it may be shown: the last state of a progress bar, no escape sequence obeyed, tabs kept."""
    from samite.engines.log_lines import MAX_LINE_CHARACTERS

    shown = line.removesuffix("\r").rpartition("\r")[2]
    text = "".join(c if c.isprintable() or c == "\t" else f"\\x{ord(c):02x}" for c in _ANSI.sub("", shown))
    return text if len(text) <= MAX_LINE_CHARACTERS else f"{text[:MAX_LINE_CHARACTERS]} ... ({len(text):,} characters)"


_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


def _print(label: str, line: str, pattern: "re.Pattern[str] | None") -> None:
    text = visible(line)
    if pattern is None or pattern.search(text):
        print_text(f"{label}: {text}")


def _numbers(text: str) -> list[int]:
    from samite.errors import UsageError

    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise UsageError(f"--rank {text!r}: wanted numbers such as 0 or 0,7") from error
