"""`samite status -w` and `--wait`: stay with a run. Leaving never touches it."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from samite.cli import screen
from samite.cli.output import ago, is_terminal, note, print_text, use_color

if TYPE_CHECKING:
    from samite.engines.base import RunClient
    from samite.telemetry.events import EventRecord

LEAVING_S = 60.0
"""How long a phase that was just asked to end may still be shown before it counts as an answer."""
PLAIN_PERIOD_S = 10.0
EVENTS_SHOWN = 6
END_PHASES = frozenset({"Succeeded", "Failed", "Cancelled"})
RESTING_PHASES = END_PHASES | {"Held", "Suspended"}


def watch_run(
    client: "RunClient[Any]", run: Any, *, each_turn: Callable[[dict[str, Any]], None] | None = None, limit_s: float = float("inf")
) -> None:
    """Show the run until it ends or rests. `each_turn` is called with every status; WaitTimeoutError after `limit_s`."""
    turns = Turns(client, run, each_turn, time.monotonic() + limit_s)
    if is_terminal():
        _watch_live(turns)
    else:
        _watch_plain(turns)


class Turns:
    """The statuses of a run, one each `client.refresh_s`, until it rests."""

    def __init__(self, client: "RunClient[Any]", run: Any, each_turn: Callable[[dict[str, Any]], None] | None, deadline_s: float) -> None:
        self.run = run
        self._client = client
        self._each_turn = each_turn
        self._deadline_s = deadline_s
        self._events = client.events(run)
        self._last: screen.Facts | None = None
        self._seen_at_s = 0.0

    def __iter__(self) -> Iterator[screen.Facts]:
        while True:
            shown = self._look()
            yield shown
            if shown.status["phase"] in RESTING_PHASES and shown.status.get("settled", True):
                return
            if self._each_turn is not None:
                self._each_turn(shown.status)
            if time.monotonic() > self._deadline_s:
                from samite.cli.place import command
                from samite.errors import WaitTimeoutError

                raise WaitTimeoutError(
                    f"run {self.run.name!r} is still {shown.status['phase']}; it goes on: {command(self._client, 'status', self.run.name, '-w')}"
                )
            time.sleep(self._client.refresh_s)

    def _look(self) -> screen.Facts:
        """The newest facts. Losing sight of a run is not losing the run: after the first look the last facts stay on the screen, and say how old they are."""
        from samite.errors import TemporaryError

        try:
            self._last, self._seen_at_s = screen.facts(self._client, self.run), time.monotonic()
        except TemporaryError as error:
            if self._last is None:
                raise
            age = ago(time.monotonic() - self._seen_at_s)
            return replace(self._last, remark=f"{age} ago; the run goes on unseen: {error}")
        return self._last

    def new_events(self) -> "list[EventRecord]":
        """Events that came since the last call."""
        return self._events.poll()


def _watch_live(turns: Turns) -> None:
    from rich.console import Console
    from rich.live import Live

    from samite.cli.event_lines import event_line

    console = Console(no_color=not use_color(), highlight=False, markup=False, emoji=False)
    last: deque[str] = deque(maxlen=EVENTS_SHOWN)
    with Live(console=console, auto_refresh=False, transient=False) as live:
        for shown in turns:
            last.extend(map(event_line, turns.new_events()))
            live.update(drawing(shown, list(last)), refresh=True)


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


def _watch_plain(turns: Turns) -> None:
    """Off a terminal: events as they come, one line at each change of phase or stage, and one each ten seconds."""
    from samite.cli.event_lines import event_line

    last, said_at_s, shown = "", -PLAIN_PERIOD_S, None
    for shown in turns:
        for record in turns.new_events():
            print_text(f"  {event_line(record)}")
        state = f"{shown.status['phase']} {shown.status.get('currentStage', '')} {shown.status.get('attempt', '')}"
        if state != last or time.monotonic() - said_at_s >= PLAIN_PERIOD_S:
            print_text(screen.headline(shown))
            last, said_at_s = state, time.monotonic()
    for line in screen.lines(shown)[1:] if shown is not None else ():
        print_text(line)


def wait_for(client: "RunClient[Any]", run: Any, *, phase: str, timeout_s: float = 0.0, leaving: str = "") -> None:
    """Wait until the run is in `phase`; prints changes on stderr. WaitTimeoutError after `timeout_s`; RunFailedError if it ends another way.

    `leaving` is the phase that the run was just asked to leave: for a minute it is no answer yet. A server that falls silent is waited for.
    """
    from samite.errors import RunFailedError, TemporaryError, WaitTimeoutError

    began_s = time.monotonic()
    last = ""
    while True:
        waited_s = time.monotonic() - began_s
        try:
            status = client.status(run)
        except TemporaryError as error:
            if not last or (timeout_s and waited_s > timeout_s):
                raise
            time.sleep(min(error.retry_after_s, client.refresh_s))
            continue
        now = str(status["phase"])
        if now != last:
            note(f"{run.name}: {now}" + (f" ({status['message']})" if status.get("message") else ""))
            last = now
        if now.lower() == phase.lower():
            return
        answered = now != leaving or waited_s > LEAVING_S
        if now in END_PHASES or (now == "Held" and status.get("settled", False) and answered):
            raise RunFailedError(f"run {run.name!r} is {now}, not {phase}: {status.get('message', '')}")
        if timeout_s and waited_s > timeout_s:
            raise WaitTimeoutError(f"run {run.name!r} is {now} after {timeout_s:.0f} s, wanted {phase}; the run goes on")
        time.sleep(min(client.refresh_s, 0.2 + waited_s / 20))
