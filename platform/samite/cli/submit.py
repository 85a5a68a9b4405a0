"""`samite submit`: check a spec, make the run, start it, and say what to do next."""

from pathlib import Path
from typing import Annotated, Any

import typer

from samite.cli.output import OutputFormat, hint, note, print_document, print_lines


def register(app: typer.Typer) -> None:
    """Add `submit`."""
    app.command()(submit)


def submit(
    file: Annotated[Path, typer.Option("--file", "-f", help="The TrainingRun document.", show_default=False)],
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Change one field: --set spec.seed=7. Repeatable.", show_default=False)
    ] = None,
    name: Annotated[str, typer.Option("--name", help="Another name for the run than metadata.name.", show_default=False)] = "",
    follow: Annotated[bool, typer.Option("--follow/--detach", help="Follow the logs. Ctrl-C stops following; the run goes on.")] = False,
    wait: Annotated[str, typer.Option("--wait", help="Wait for this phase, such as Running or Succeeded.", show_default=False)] = "",
    timeout: Annotated[float, typer.Option("--timeout", min=0, help="Longest wait, in seconds; 0 waits for ever.")] = 0.0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything and print the document with its defaults; start nothing.")
    ] = False,
    output: Annotated[
        OutputFormat, typer.Option("--output", "-o", help="With --dry-run: yaml or json. Else: name or json.")
    ] = OutputFormat.table,
) -> None:
    """Submit a run and return. It goes on in the background, whatever happens to this terminal."""
    from samite.engines.local.client import LocalEngine
    from samite.settings import Settings
    from samite.spec import load_run

    loaded = load_run(file, sets=[*(set_ or ()), *([f"metadata.name={name}"] if name else [])])
    document = loaded.run.to_document()
    if dry_run:
        print_document(document, OutputFormat.json if output is OutputFormat.json else OutputFormat.yaml)
        note(f"{file}: valid; nothing was started")
        return
    engine = LocalEngine(Settings.from_environment())
    engine.check_home()
    _prepare_data(loaded.run)
    submitted = engine.submit(document, loaded.text)
    run = submitted.folder.name
    if output is OutputFormat.name:
        print_lines([run])
    elif output in {OutputFormat.json, OutputFormat.yaml}:
        print_document({"name": run, "folder": str(submitted.folder.path), "existed": submitted.existed}, output)
    else:
        print_lines([f"run {run} was already submitted" if submitted.existed else f"run {run} submitted"])
        hint(
            f"  samite status {run} -w     live screen\n  samite logs {run} -f       what the ranks print\n  samite cancel {run}        end it"
        )
    if follow:
        from samite.cli.logs import follow_run

        follow_run(engine, submitted.folder)
    if wait:
        from samite.cli.watch import wait_for

        wait_for(engine, submitted.folder, phase=wait, timeout_s=timeout)


def _prepare_data(run: Any) -> None:
    """Built-in corpora of the run or of one of its stages are made here, with progress, and not by a silent rank later."""
    uris = [run.spec.data.uri, *(stage.data.uri for stage in run.spec.stages if stage.data is not None)]
    for uri in dict.fromkeys(uri for uri in uris if uri and uri.startswith("builtin:")):
        from samite.cli.data import prepare_builtin

        prepare_builtin(uri)
