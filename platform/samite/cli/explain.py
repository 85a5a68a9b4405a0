"""`samite explain`: the documentation of every field of the spec, like kubectl explain."""

from typing import Annotated

import typer

from samite.cli.output import OutputFormat, print_document, print_text


def register(app: typer.Typer) -> None:
    """Add `explain`."""
    app.command()(explain)


def explain(
    path: Annotated[
        str,
        typer.Argument(metavar="[FIELD]", help="Dotted path, such as stages.parallel. Left out: the whole document.", show_default=False),
    ] = "",
    recursive: Annotated[bool, typer.Option("--recursive", "-r", help="Show the fields below as well, without their texts.")] = False,
    output: Annotated[OutputFormat, typer.Option("--output", "-o", help="table, json or yaml.")] = OutputFormat.table,
) -> None:
    """Explain a field of the spec: type, unit, default, allowed values, and why."""
    from samite.spec import explain as explanations

    found = explanations.explain(path, recursive=recursive)
    if output in {OutputFormat.json, OutputFormat.yaml}:
        print_document(found.to_document(), output)
    else:
        print_text(explanations.explanation_text(found))
