"""`samite top`: the numbers of one run that matter, live. Reads the run folder; on Kubernetes what the run keeps in storage. Leaving never touches the run."""

import math
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from samite.cli.output import OutputFormat, OutputOption, hint, is_terminal, print_document, print_lines, print_table, use_color

if TYPE_CHECKING:
    from samite.cli.screen import Facts
    from samite.cli.top_numbers import Numbers
    from samite.engines.base import RunClient

COLLECT_S = 20.0
"""On Kubernetes records are gathered from storage this often; status and events are as new as ever."""
EVENTS_SHOWN = 5

OptionalRun = Annotated[
    str, typer.Argument(metavar="[RUN]", help="Name of the run; may be left out when only one is active.", show_default=False)
]


def register(app: typer.Typer) -> None:
    """Add `top`."""
    app.command()(top)


def top(
    run: OptionalRun = "",
    once: Annotated[bool, typer.Option("--once", help="Print the screen once and return; the default off a terminal.")] = False,
    output: OutputOption = OutputFormat.table,
) -> None:
    """Watch RUN's numbers live: loss, gradients, speed, decay, experts, each rank's heartbeat and memory. Ctrl-C leaves the run alone."""
    from samite.cli.place import command, find
    from samite.cli.screen import facts

    client, found = find(run)
    with _numbers(client, found) as look:
        if output in {OutputFormat.json, OutputFormat.yaml}:
            print_document(document(facts(client, found), look()), output)
        elif once or not is_terminal():
            _print(facts(client, found), look())
        else:
            try:
                _live(client, found, look)
            except KeyboardInterrupt:
                hint(f"to come back: {command(client, 'top', found.name)}")
                raise typer.Exit(130) from None


@contextmanager
def _numbers(client: "RunClient[Any]", run: Any) -> Iterator[Any]:
    """A function that gives the newest numbers. A folder of this machine is followed; records in storage are gathered anew now and then."""
    from samite.cli.top_numbers import Numbers

    folder = client.details(run).get("folder")
    kept = Numbers(Path(folder) if folder else Path())
    gathered_at_s = -math.inf

    def local() -> Numbers:
        kept.poll()
        return kept

    def from_storage() -> Numbers:
        nonlocal kept, gathered_at_s
        if time.monotonic() - gathered_at_s >= COLLECT_S:
            with client.records(run) as records:
                kept = Numbers(records)
                kept.poll()
                kept.beats = kept.ranks()
            gathered_at_s = time.monotonic()
        return kept

    yield local if folder else from_storage


def document(shown: "Facts", numbers: "Numbers") -> dict[str, Any]:
    """The screen as data; numbers that JSON does not have are null."""
    from samite.cli.output import API_VERSION
    from samite.cli.top_numbers import rows
    from samite.telemetry.jsonlines import without_nonfinite

    ranks = [
        {"rank": r.rank, "node": r.node, "phase": r.phase, "step": r.step, "ageS": r.age_s, "stepS": r.step_s} for r in numbers.ranks()
    ]
    found: dict[str, Any] = without_nonfinite(
        {
            "apiVersion": API_VERSION,
            "kind": "TrainingRunTop",
            "name": shown.status["name"],
            "phase": shown.status["phase"],
            "progress": shown.status.get("progress", {}),
            "numbers": [{"name": r.title, "value": r.value, "trend": list(r.trend), "note": r.note, "bad": r.bad} for r in rows(numbers)],
            "ranks": ranks,
        }
    )
    return found


def _print(shown: "Facts", numbers: "Numbers") -> None:
    from samite.cli import screen
    from samite.cli.top_numbers import RANK_TITLES, rank_cells, rows, spark

    print_lines(screen.lines(shown))
    found = rows(numbers)
    if found:
        print_lines([""])
        print_table(["NUMBER", "NOW", "LATELY", ""], [[row.title, row.value, spark(row.trend[-30:]), row.note] for row in found])
    ranks = numbers.ranks()
    if ranks:
        print_lines([""])
        print_table(list(RANK_TITLES), [rank_cells(row) for row in ranks])


def _live(client: "RunClient[Any]", run: Any, look: Any) -> None:
    from rich.console import Console
    from rich.live import Live

    from samite.cli.event_lines import event_line
    from samite.cli.watch import Turns

    console = Console(no_color=not use_color(), highlight=False, markup=False, emoji=False)
    turns = Turns(client, run, None, math.inf)
    last: deque[str] = deque(maxlen=EVENTS_SHOWN)
    with Live(console=console, auto_refresh=False, screen=False) as live:
        for shown in turns:
            last.extend(map(event_line, turns.new_events()))
            live.update(drawing(shown, look(), list(last)), refresh=True)


def drawing(shown: "Facts", numbers: "Numbers", events: list[str]) -> Any:
    """The live screen: headline and bar, numbers with their trends, ranks, the last events."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from samite.cli.top_numbers import RANK_TITLES, rank_cells, rows, spark
    from samite.cli.watch import drawing as status_drawing

    table = Table(box=None, pad_edge=False, show_header=False)
    for row in rows(numbers):
        style = "bold red" if row.bad else ""
        table.add_row(Text(row.title), Text(row.value, style=style or "bold"), Text(spark(row.trend)), Text(row.note, style=style or "dim"))
    ranks = Table(box=None, pad_edge=False, header_style="dim")
    for title in RANK_TITLES:
        ranks.add_column(title, justify="left" if title in ("NODE", "PHASE") else "right")
    for rank in numbers.ranks():
        silent = rank.age_s > max(30.0, 5 * rank.step_s)
        ranks.add_row(*(Text(cell, style="bold red" if silent else "") for cell in rank_cells(rank)))
    return Group(status_drawing(shown, []), table, Text(""), ranks, Text(""), *(Text(line, style="dim") for line in events))
