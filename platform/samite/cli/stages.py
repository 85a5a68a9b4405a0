"""`samite stages ls | approve`: the curriculum of a run, and the word that opens a manual gate."""

from typing import Annotated, Any

import typer

from samite.cli.output import Column, OutputFormat, OutputOption, note, print_items

OptionalRun = Annotated[
    str, typer.Argument(metavar="[RUN]", help="Name of the run; may be left out when only one is active.", show_default=False)
]


def register(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(name="stages", help="Stages of a run, and their gates.", no_args_is_help=True, rich_markup_mode=None)
    group.command("ls")(ls)
    group.command()(approve)
    app.add_typer(group)


def ls(run: OptionalRun = "", output: OutputOption = OutputFormat.table) -> None:
    """List the stages of a run, in order, with where it stands."""
    from samite.cli.place import find

    client, found = find(run)
    stages = client.record(found)["run"]["spec"].get("stages", [])
    items = [_item(stage, index, client.status(found)) for index, stage in enumerate(stages)]
    print_items(items, output, kind="Stage", columns=_COLUMNS)


def approve(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Name of the run.", show_default=False)],
    stage: Annotated[str, typer.Argument(metavar="STAGE", help="Name of the stage whose gate opens.", show_default=False)],
) -> None:
    """Open the manual gate of a stage, or let a stage pass whose gate failed. On Kubernetes it takes a right of its own."""
    from samite.cli.place import find
    from samite.engines.base import TERMINAL_PHASES, who
    from samite.errors import ConflictError, NotFoundError
    from samite.lifecycle import RequestKind

    client, found = find(run)
    names = [item["name"] for item in client.record(found)["run"]["spec"].get("stages", [])]
    if stage not in names:
        raise NotFoundError(f"run {found.name!r} has no stage {stage!r}; it has: {', '.join(names)}")
    phase = client.status(found)["phase"]
    if phase in TERMINAL_PHASES:
        raise ConflictError(f"cannot approve stage {stage!r} of {found.name!r}: the run is {phase} already")
    client.ask(found, RequestKind.APPROVE, argument=stage, by=who())
    client.attend(found)
    note(f"approved stage {stage} of {found.name}")


def _item(stage: dict[str, Any], index: int, status: dict[str, Any]) -> dict[str, Any]:
    current, phase = int(status.get("stageIndex", 0)), str(status["phase"])
    state = "done" if index < current or phase == "Succeeded" else phase.lower() if index == current else "-"
    gate = stage.get("gate") or {}
    checks = ", ".join(str(check.get("metric", "")) for check in gate.get("checks") or ())
    return {
        "name": stage["name"],
        "kind": stage.get("kind", ""),
        "contextLength": stage.get("contextLength"),
        "budget": ", ".join(f"{value} {unit}" for unit, value in (stage.get("budget") or {}).items()),
        "gate": " and ".join(part for part in (checks, "a person's word" if gate.get("manual") else "") if part) or "-",
        "state": state,
    }


_COLUMNS = (
    Column(title="STAGE", value=lambda item: str(item["name"])),
    Column(title="KIND", value=lambda item: str(item["kind"])),
    Column(title="CONTEXT", value=lambda item: str(item["contextLength"]), right=True),
    Column(title="BUDGET", value=lambda item: str(item["budget"]), right=True),
    Column(title="GATE", value=lambda item: str(item["gate"])),
    Column(title="STATE", value=lambda item: str(item["state"])),
)
