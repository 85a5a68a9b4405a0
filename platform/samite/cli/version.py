"""`samite version`: what is installed, for a bug report."""

from typing import Annotated

import typer

from samite.cli.output import OutputFormat, print_document, print_lines

PARTS = ("ray", "torch", "kopf", "kubernetes", "boto3", "pydantic")


def register(app: typer.Typer) -> None:
    """Add `version`."""
    app.command()(version)


def version(
    output: Annotated[OutputFormat, typer.Option("--output", "-o", help="table, json or yaml.")] = OutputFormat.table,
) -> None:
    """Print Samite's version, Python's, and those of the libraries that matter."""
    import platform
    from importlib import metadata

    from samite import __version__

    found = {"samite": __version__, "python": platform.python_version()}
    for part in PARTS:
        try:
            found[part] = metadata.version(part)
        except metadata.PackageNotFoundError:
            found[part] = "not installed"
    if output in {OutputFormat.json, OutputFormat.yaml}:
        print_document(found, output)
    else:
        print_lines(f"{name:<11} {value}" for name, value in found.items())
