"""`samite list | status | describe | delete`: what runs there are and how they stand."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from samite.cli.output import (
    Column,
    OutputFormat,
    OutputOption,
    YesOption,
    ago,
    confirm,
    hint,
    note,
    print_document,
    print_items,
    print_lines,
)

OptionalRun = Annotated[
    str, typer.Argument(metavar="[RUN]", help="Name of the run; may be left out when only one is active.", show_default=False)
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("list")(list_)
    app.command()(status)
    app.command()(describe)
    app.command()(delete)


def list_(
    phase: Annotated[str, typer.Option("--phase", help="Only runs in this phase, such as Running.", show_default=False)] = "",
    all_namespaces: Annotated[bool, typer.Option("--all-namespaces", "-A", help="On Kubernetes: of every namespace.")] = False,
    output: OutputOption = OutputFormat.table,
) -> None:
    """List the runs of this machine, or of a Kubernetes namespace."""
    from samite.cli.place import chosen, engine

    client = engine(revive=True, all_namespaces=all_namespaces)
    items = [item for item in (_listed(client, run) for run in client.runs()) if not phase or item["phase"].lower() == phase.lower()]
    columns = (_NAMESPACE, *_COLUMNS) if all_namespaces and chosen().is_cluster else _COLUMNS
    empty = f"No runs in {client.place} yet. Start one: samite submit -f run.yaml"
    print_items(items, output, kind="TrainingRunStatus", columns=columns, empty=empty)


def status(
    run: OptionalRun = "",
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Stay and update until the run ends; Ctrl-C leaves the run alone.")] = False,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit 0 running or succeeded, 8 failed, 9 cancelled, 10 suspended or held.")
    ] = False,
    output: OutputOption = OutputFormat.table,
) -> None:
    """Show one run on one screen: progress, stages, nodes, checkpoints, the last failure and what was done about it."""
    from samite.cli import screen
    from samite.cli.place import command, find

    client, found = find(run, revive=True)
    if watch:
        from samite.cli.watch import watch_run

        try:
            watch_run(client, found)
        except KeyboardInterrupt:
            hint(f"the run goes on; to come back: {command(client, 'status', found.name, '-w')}")
            raise typer.Exit(130) from None
    elif output in {OutputFormat.json, OutputFormat.yaml}:
        print_document(client.status(found), output)
    elif output is OutputFormat.name:
        print_lines([found.name])
    else:
        print_lines(screen.lines(screen.facts(client, found), wide=output is OutputFormat.wide))
    if exit_code:
        raise typer.Exit(screen.exit_code(str(client.status(found)["phase"])))


def describe(run: OptionalRun = "", output: OutputOption = OutputFormat.table) -> None:
    """Show everything about a run: conditions, attempts, events, where its files are, and useful next commands."""
    from samite.cli.description import description_document, description_lines
    from samite.cli.place import find

    client, found = find(run, revive=True)
    document = description_document(client, found)
    if output in {OutputFormat.json, OutputFormat.yaml}:
        print_document(document, output)
    else:
        print_lines(description_lines(client, document))


def delete(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Name of a run that is over.", show_default=False)],
    yes: YesOption = False,
) -> None:
    """Remove a run that is over: its record, logs, report, and the checkpoints in its own folder. What lies in object storage stays."""
    from samite.cli.place import find

    client, found = find(run, revive=True)
    place = client.details(found).get("folder")
    what = f"everything in {place}" if place else f"its record in {client.place}; its storage stays as it is"
    if confirm(f"Delete run {found.name!r} and {what}?", yes=yes):
        client.delete(found)
        note(f"deleted {found.name}")


def _listed(client: Any, run: Any) -> dict[str, Any]:
    import time

    found = dict(client.status(run))
    found["ageSeconds"] = time.time() - float(client.record(run).get("submittedAt", time.time()))
    return found


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}%"


def _restarts(item: Mapping[str, Any]) -> str:
    total = sum(item.get("restarts", {}).values())
    last = (item.get("lastFailure") or {}).get("failureClass", "")
    return f"{total} ({last})" if total and last else str(total)


_NAMESPACE = Column(title="NAMESPACE", value=lambda item: str(item.get("namespace", "")))
_COLUMNS = (
    Column(title="NAME", value=lambda item: str(item["name"])),
    Column(title="PHASE", value=lambda item: str(item["phase"])),
    Column(title="STAGE", value=lambda item: str(item.get("currentStage") or "-")),
    Column(title="STEP", value=lambda item: str(item.get("progress", {}).get("step", 0)), right=True),
    Column(title="DONE", value=lambda item: _percent(item.get("progress", {}).get("percent")), right=True),
    Column(title="ETTR", value=lambda item: _percent(item.get("ettr", {}).get("percent")), right=True),
    Column(title="RESTARTS", value=_restarts, right=True),
    Column(title="AGE", value=lambda item: ago(item.get("ageSeconds", 0.0)), right=True),
    Column(title="REASON", value=lambda item: str(item.get("reason", "")), wide=True),
    Column(title="MESSAGE", value=lambda item: str(item.get("message", "")), wide=True),
)
