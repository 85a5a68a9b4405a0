"""`samite report`: one HTML file that tells what a run did, for a browser without network and for people without Samite."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from samite.cli.output import hint, note, print_text

if TYPE_CHECKING:
    from samite.checkpoint import Store
    from samite.report.run_data import CheckpointRow

OptionalRun = Annotated[
    str,
    typer.Argument(metavar="[RUN]", help="Name of the run, or a run folder; may be left out when only one is active.", show_default=False),
]


def register(app: typer.Typer) -> None:
    """Add `report`."""
    app.command()(report)


def report(
    run: OptionalRun = "",
    output: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            help="Where to write it; - for stdout. Default: report.html in the run folder; for a run on Kubernetes RUN-report.html here.",
            show_default=False,
        ),
    ] = "",
    open_: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
) -> None:
    """Write RUN's report: curves with restarts marked, recoveries, experts, decay, memory, checkpoints, events. One file, works offline."""
    from samite.report import build_report

    with _records(run) as (folder, store, target):
        text = build_report(folder, checkpoints=_checkpoints(store))
    if output == "-":
        print_text(text)
        return
    written = _written(Path(output) if output else target, text)
    print_text(str(written))
    if open_:
        import webbrowser

        if not webbrowser.open(written.as_uri()):
            note("No browser was found here; open the file yourself.")
    else:
        hint(f"Open it in a browser, or copy it anywhere: it is complete ({len(text.encode()) / 1024:.0f} KiB).")


@contextmanager
def _records(run: str) -> "Iterator[tuple[Path, Callable[[], Store], Path]]":
    """The records of a run, how to open its checkpoints, and where its report goes. A path with a separator is a local run's folder."""
    from samite.cli.place import find

    if "/" in run:
        from samite.engines.local.client import LocalEngine
        from samite.engines.local.folder import RunFolder
        from samite.errors import NotFoundError
        from samite.settings import Settings

        folder = Path(run)
        if not folder.is_dir():
            raise NotFoundError(f"no run folder at {run}; give the name of a run or the path of its folder")
        client: Any = LocalEngine(Settings.from_environment())
        found: Any = RunFolder(folder.resolve())
    else:
        client, found = find(run)
    kept = client.details(found).get("folder")
    with client.records(found) as records:
        yield records, lambda: client.store(found), Path(kept) / "report.html" if kept else Path(f"{found.name}-report.html")


def _checkpoints(open_checkpoints: "Callable[[], Store]") -> "list[CheckpointRow] | None":
    """What the catalogue says. None, with a word about it, if storage cannot be asked: the events then have to do."""
    from samite.checkpoint import Catalog
    from samite.errors import SamiteError

    try:
        entries = Catalog(open_checkpoints()).list()
    except (SamiteError, OSError, ValueError, KeyError, TypeError) as error:
        note(f"The checkpoint store was not read ({type(error).__name__}: {_first_line(error)}); the report lists what the events know.")
        return None
    from samite.report.run_data import CheckpointRow

    return [
        CheckpointRow(
            checkpoint_id=entry.checkpoint_id,
            step=entry.step,
            state=entry.state.value,
            stage=entry.manifest.stage if entry.manifest else "",
            num_bytes=entry.manifest.data_bytes if entry.manifest else 0,
            num_shards=entry.manifest.num_objects if entry.manifest else 0,
            committed_s=entry.manifest.created_unix_s if entry.manifest else None,
            reason=entry.reason,
        )
        for entry in entries
    ]


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _written(target: Path, text: str) -> Path:
    from samite.errors import SamiteError
    from samite.spec.attempt import write_atomically

    try:
        target = target.absolute()
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, text)
    except OSError as error:
        raise SamiteError(f"cannot write the report to {target}: {error.strerror or error}. Choose another place with -o.") from error
    return target
