"""`samite schema`: the JSON Schema of the spec, so that editors complete and check it."""

import typer

from samite.cli.output import print_text


def register(app: typer.Typer) -> None:
    """Add `schema`."""
    app.command()(schema)


def schema() -> None:
    """Print the JSON Schema of a TrainingRun (draft 2020-12). Begin a file with: # yaml-language-server: $schema=PATH"""
    from samite.spec.json_schema import schema_text

    print_text(schema_text().rstrip("\n"))
