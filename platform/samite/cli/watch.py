"""`samite status -w` and `--wait`: stay with a run. Leaving never touches it."""

import time
from collections.abc import Callable, Iterator
from typing import Any

from samite.cli import screen
from samite.cli.output import is_terminal, note, print_text, use_color

REDRAW_S = 0.5
PLAIN_PERIOD_S = 10.0
END_PHASES = frozenset({"Succeeded", "Failed", "Cancelled"})
RESTING_PHASES = END_PHASES | {"Held", "Suspended"}


def watch_run(
    engine: Any, folder: Any, *, each_turn: Callable[[dict[str, Any]], None] | None = None, limit_s: float = float("inf")
) -> None:
    """Show the run until it ends or rests. `each_turn` is called with every status; WaitTimeoutError after `limit_s`."""
    turns = Turns(engine, folder, each_turn, time.monotonic() + limit_s)
    if is_terminal():
        _watch_live(turns)
    else:
        _watch_plain(turns)


class Turns:
    """The statuses of a run, one each half second, until it rests."""

    def __init__(self, engine: Any, folder: Any, each_turn: Callable[[dict[str, Any]], None] | None, deadline_s: float) -> None:
        self.folder = folder
        self._engine = engine
        self._each_turn = each_turn
        self._deadline_s = deadline_s

    def __iter__(self) -> Iterator[screen.Facts]:
        while True:
            shown = screen.facts(self._engine, self.folder)
            yield shown
            if shown.status["phase"] in RESTING_PHASES and shown.status.get("settled", True):
                return
            if self._each_turn is not None:
                self._each_turn(shown.status)
            if time.monotonic() > self._deadline_s:
                from samite.errors import WaitTimeoutError

                raise WaitTimeoutError(
                    f"run {self.folder.name!r} is still {shown.status['phase']}; it goes on: samite status {self.folder.name} -w"
                )
            time.sleep(REDRAW_S)


def _watch_live(turns: Turns) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console(no_color=not use_color(), highlight=False, markup=False, emoji=False)
    with Live(console=console, auto_refresh=False, transient=False) as live:
        for shown in turns:
            live.update(drawing(shown, recent_events(turns.folder)), refresh=True)


def drawing(shown: screen.Facts, events: list[str]) -> Any:
    """The live screen: headline, bar, facts, and the last events."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.text import Text

    percent = shown.status.get("progress", {}).get("percent") or 0.0
    head, *rest = screen.lines(shown)
    style = {"Running": "bold green", "Succeeded": "bold green", "Recovering": "bold yellow", "Failed": "bold red", "Held": "bold red"}
    bar = ProgressBar(total=100.0, completed=percent, width=60)
    body = [Text(line) for line in rest]
    return Group(
        Text(head, style=style.get(shown.status["phase"], "bold")), bar, *body, Text(""), *(Text(line, style="dim") for line in events)
    )


def recent_events(folder: Any, count: int = 6) -> list[str]:
    """The last events as lines."""
    from samite.cli.event_lines import event_line
    from samite.telemetry.events import read_events

    return [event_line(record) for record in read_events(folder.events_file)[0][-count:]]


def _watch_plain(turns: Turns) -> None:
    """Off a terminal: events as they come, one line at each change of phase or stage, and one each ten seconds."""
    from samite.cli.event_lines import event_line
    from samite.telemetry.events import EventRecord
    from samite.telemetry.jsonlines import Follower

    last, said_at_s, shown = "", -PLAIN_PERIOD_S, None
    follower = Follower(turns.folder.events_file)
    for shown in turns:
        for record in map(EventRecord.from_document, follower.poll()):
            if record is not None:
                print_text(f"  {event_line(record)}")
        state = f"{shown.status['phase']} {shown.status.get('currentStage', '')} {shown.status.get('attempt', '')}"
        if state != last or time.monotonic() - said_at_s >= PLAIN_PERIOD_S:
            print_text(screen.headline(shown))
            last, said_at_s = state, time.monotonic()
    for line in screen.lines(shown)[1:] if shown is not None else ():
        print_text(line)


def wait_for(engine: Any, folder: Any, *, phase: str, timeout_s: float = 0.0) -> None:
    """Wait until the run is in `phase`; prints changes on stderr. WaitTimeoutError after `timeout_s`; RunFailedError if it ends another way."""
    from samite.errors import RunFailedError, WaitTimeoutError

    deadline = time.monotonic() + timeout_s if timeout_s else float("inf")
    last = ""
    while True:
        status = engine.status(folder)
        now = str(status["phase"])
        if now != last:
            note(f"{folder.name}: {now}" + (f" ({status['message']})" if status.get("message") else ""))
            last = now
        if now.lower() == phase.lower():
            return
        if now in END_PHASES or (now == "Held" and status.get("settled", False)):
            raise RunFailedError(f"run {folder.name!r} is {now}, not {phase}: {status.get('message', '')}")
        if time.monotonic() > deadline:
            raise WaitTimeoutError(f"run {folder.name!r} is {now} after {timeout_s:.0f} s, wanted {phase}; the run goes on")
        time.sleep(0.2)
