"""`samite events`: what happened to a run, one line each; kept in the run folder or in object storage, not only in etcd."""

import time
from typing import Annotated, Any

import typer

from samite.cli.output import OutputFormat, OutputOption, hint, print_items, print_text

OptionalRun = Annotated[
    str, typer.Argument(metavar="[RUN]", help="Name of the run; may be left out when only one is active.", show_default=False)
]
_PREFIX = "samite."


def register(app: typer.Typer) -> None:
    """Add `events`."""
    app.command()(events)


def events(
    run: OptionalRun = "",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Stay and print new events; Ctrl-C stops.")] = False,
    name: Annotated[str, typer.Option("--name", help="Only events whose name contains this, such as checkpoint.", show_default=False)] = "",
    severity: Annotated[str, typer.Option("--severity", help="Only INFO, WARN or ERROR.", show_default=False)] = "",
    limit: Annotated[int, typer.Option("--limit", min=0, help="Newest events to show; 0 shows all.")] = 0,
    output: OutputOption = OutputFormat.table,
) -> None:
    """Show the events of a run: phases, failures with their evidence, restarts, checkpoints, numeric alarms."""
    from samite.cli.place import command, find
    from samite.telemetry.events import EventRecord

    client, found = find(run)
    feed = client.events(found)

    def wanted(record: EventRecord) -> bool:
        return name in record.name and (not severity or str(record.severity).upper() == severity.upper())

    if follow:
        try:
            while True:
                for record in filter(wanted, feed.poll()):
                    print_text(event_line(record))
                time.sleep(max(0.3, client.refresh_s / 2))
        except KeyboardInterrupt:
            hint(f"to come back: {command(client, 'events', found.name, '-f')}")
            raise typer.Exit(130) from None
    records = [record for record in feed.poll() if wanted(record)]
    records = records[-limit:] if limit else records
    if output in {OutputFormat.json, OutputFormat.yaml}:
        print_items([record.to_document() for record in records], output, kind="Event", columns=())
        return
    for record in records:
        print_text(event_line(record))


def event_line(record: Any) -> str:
    """Time, severity, name and attributes of one event on one line."""
    clock = time.strftime("%H:%M:%S", time.localtime(record.time_unix_s))
    words = " ".join(
        f"{key.removeprefix(_PREFIX)}={_short(value)}" for key, value in record.attributes.items() if value not in ("", None, [], ())
    )
    return f"{clock} {record.severity!s:<5} {record.name.removeprefix(_PREFIX)} {words}".rstrip()


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    text = "; ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return text if len(text) <= 200 else text[:197] + "..."
