"""`samite status -w` and `--wait`: stay with a run. Leaving never touches it."""

import time
from typing import Any

import typer

from samite.cli import screen
from samite.cli.output import hint, is_terminal, note, print_text, use_color

REDRAW_S = 0.5
PLAIN_PERIOD_S = 10.0
END_PHASES = frozenset({"Succeeded", "Failed", "Cancelled"})
RESTING_PHASES = END_PHASES | {"Held", "Suspended"}


def watch_run(engine: Any, folder: Any) -> None:
    """Show the run until it ends or rests. Ctrl-C leaves it alone and exits 130."""
    try:
        if is_terminal():
            _watch_live(engine, folder)
        else:
            _watch_plain(engine, folder)
    except KeyboardInterrupt:
        hint(f"the run goes on; to come back: samite status {folder.name} -w")
        raise typer.Exit(130) from None


def _watch_live(engine: Any, folder: Any) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console(no_color=not use_color(), highlight=False, markup=False, emoji=False)
    with Live(console=console, auto_refresh=False, transient=False) as live:
        while True:
            shown = screen.facts(engine, folder)
            live.update(_drawing(shown, recent_events(folder)), refresh=True)
            if shown.status["phase"] in RESTING_PHASES and shown.status.get("settled", True):
                return
            time.sleep(REDRAW_S)


def _drawing(shown: screen.Facts, events: list[str]) -> Any:
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


def _watch_plain(engine: Any, folder: Any) -> None:
    """Off a terminal: one line at each change of phase or stage, and one each ten seconds."""
    last, said_at_s = "", -PLAIN_PERIOD_S
    while True:
        shown = screen.facts(engine, folder)
        state = f"{shown.status['phase']} {shown.status.get('currentStage', '')} {shown.status.get('attempt', '')}"
        if state != last or time.monotonic() - said_at_s >= PLAIN_PERIOD_S:
            print_text(screen.headline(shown))
            last, said_at_s = state, time.monotonic()
        if shown.status["phase"] in RESTING_PHASES and shown.status.get("settled", True):
            for line in screen.lines(shown)[1:]:
                print_text(line)
            return
        time.sleep(REDRAW_S)


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
