"""`samite dashboards`: the Grafana dashboards of this version, as files or ConfigMaps. Asks no server and needs no extra."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from samite.cli.output import Column, OutputFormat, OutputOption, hint, note, print_items, print_text

dashboards_app = typer.Typer(help="Grafana dashboards of runs, nodes and the operator: list them, write them to files.")

COLUMNS = (
    Column(title="NAME", value=lambda item: str(item["name"])),
    Column(title="TITLE", value=lambda item: str(item["title"])),
)


class BoardFormat(StrEnum):
    """How a board is written."""

    json = "json"
    configmap = "configmap"


def register(app: typer.Typer) -> None:
    """Add `dashboards`."""
    app.add_typer(dashboards_app, name="dashboards", no_args_is_help=True)


@dashboards_app.command(name="ls")
def list_(output: OutputOption = OutputFormat.table) -> None:
    """List the dashboards."""
    from samite.dashboards.export import board_texts, title_of

    items = [{"name": uid, "title": title_of(text)} for uid, text in board_texts().items()]
    print_items(items, output, kind="Dashboard", columns=COLUMNS)


@dashboards_app.command()
def export(
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder to write one file each into; without it everything goes to stdout.", show_default=False),
    ] = None,
    format_: Annotated[
        BoardFormat, typer.Option("--format", help="json: for Grafana's import; configmap: for its sidecar.")
    ] = BoardFormat.json,
    name: Annotated[str, typer.Option("--name", help="Only this dashboard.", show_default=False)] = "",
    folder: Annotated[str, typer.Option("--folder", help="Folder in Grafana, for ConfigMaps.")] = "Samite",
) -> None:
    """Write the dashboards: JSON to import into Grafana, or ConfigMaps for `kubectl apply -f`."""
    texts = _texts(name, format_, folder)
    if out is None:
        print_text(("---\n" if format_ is BoardFormat.configmap else "").join(texts.values()).rstrip("\n"))
        return
    write_files(out, texts)
    hint(
        "Grafana: Dashboards, New, Import; or put them where its provisioning looks. Data source: a Prometheus that gets Samite's signals."
    )


def _texts(name: str, format_: BoardFormat, folder: str) -> dict[str, str]:
    from samite.dashboards.export import board_texts, config_map
    from samite.errors import NotFoundError

    boards = board_texts()
    if name and name not in boards:
        raise NotFoundError(f"no dashboard {name!r}; there are {', '.join(boards)}")
    chosen = {uid: text for uid, text in boards.items() if name in ("", uid)}
    if format_ is BoardFormat.json:
        return {f"{uid}.json": text for uid, text in chosen.items()}
    from samite.dashboards.rules import to_yaml

    return {f"{uid}.yaml": to_yaml(config_map(uid, text, folder=folder)) for uid, text in chosen.items()}


def write_files(folder: Path, texts: dict[str, str]) -> None:
    """Write each text into `folder` and say so. SamiteError if the folder cannot be written."""
    from samite.errors import SamiteError

    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in texts.items():
            (folder / file).write_text(text, encoding="utf-8")
            note(f"wrote {folder / file}")
    except OSError as error:
        raise SamiteError(f"cannot write into {folder}: {error.strerror or error}. Choose another folder with --out.") from error
