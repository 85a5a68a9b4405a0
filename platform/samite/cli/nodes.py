"""`samite nodes exclude | uncordon`: take a node out of a run, and let it in again."""

from typing import Annotated

import typer

from samite.cli.output import note

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="Name of the run.", show_default=False)]
NodeArgument = Annotated[
    str, typer.Argument(metavar="NODE", help="Name of the node, as status shows it; on Kubernetes also the machine's.", show_default=False)
]


def register(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(name="nodes", help="Which nodes a run may use.", no_args_is_help=True, rich_markup_mode=None)
    group.command()(exclude)
    group.command()(uncordon)
    app.add_typer(group)


def exclude(run: RunArgument, node: NodeArgument) -> None:
    """Do not use a node from the next attempt on."""
    _ask(run, node, "exclude")


def uncordon(run: RunArgument, node: NodeArgument) -> None:
    """Use a node again, whatever it was blamed for."""
    _ask(run, node, "uncordon")


def _ask(run: str, node: str, verb: str) -> None:
    from samite.cli.place import find
    from samite.engines.base import TERMINAL_PHASES, who
    from samite.errors import ConflictError
    from samite.lifecycle import RequestKind

    client, found = find(run)
    phase = client.status(found)["phase"]
    if phase in TERMINAL_PHASES:
        raise ConflictError(f"cannot {verb} a node of {found.name!r}: it is {phase} already")
    client.ask(found, RequestKind(verb), argument=node, by=who())
    client.attend(found)
    note(f"asked {found.name} to {verb} {node}")
