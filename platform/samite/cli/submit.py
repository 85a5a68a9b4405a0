"""`samite submit`: check a spec, make the run, start it, and say what to do next."""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from samite.cli.output import OutputFormat, hint, note, print_document, print_lines

if TYPE_CHECKING:
    from samite.engines.base import RunClient


class DryRun(StrEnum):
    """Who checks without starting anything."""

    none = "none"
    client = "client"
    server = "server"


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
        DryRun,
        typer.Option(
            "--dry-run",
            help="Check everything, print the document with its defaults, start nothing. =client (meant if nothing follows) checks here; "
            "=server lets the API server check too: schema, rules, admission policies.",
        ),
    ] = DryRun.none,
    output: Annotated[
        OutputFormat, typer.Option("--output", "-o", help="With --dry-run: yaml or json. Else: name or json.")
    ] = OutputFormat.table,
) -> None:
    """Submit a run and return. It goes on in the background, whatever happens to this terminal.

    Where it runs is what the document's spec.engine says: Local on this machine, RayCluster in the Kubernetes context at hand.
    """
    from samite.spec import load_run

    loaded = load_run(file, sets=[*(set_ or ()), *([f"metadata.name={name}"] if name else [])])
    document = loaded.run.to_document()
    if dry_run is DryRun.client:
        print_document(document, OutputFormat.json if output is OutputFormat.json else OutputFormat.yaml)
        note(f"{file}: valid; nothing was started")
        return
    client = _client(loaded.run)
    if dry_run is DryRun.server:
        _check_on_server(client, document, file, output)
        return
    if loaded.run.spec.engine == "Local":
        client.check_home()
        _prepare_data(loaded.run)
    submitted = client.submit(document, loaded.text)
    run = submitted.run.name
    if output is OutputFormat.name:
        print_lines([run])
    elif output in {OutputFormat.json, OutputFormat.yaml}:
        print_document({"name": run, **_whereabouts(client, submitted.run), "existed": submitted.existed}, output)
    else:
        print_lines([f"run {run} was already submitted" if submitted.existed else f"run {run} submitted"])
        hint("\n".join(f"  {line}" for line in _next_steps(client, run)))
    if follow:
        from samite.cli.logs import follow_run

        follow_run(client, submitted.run)
    if wait:
        from samite.cli.watch import wait_for

        wait_for(client, submitted.run, phase=wait, timeout_s=timeout)


def with_dry_run_value(arguments: Sequence[str]) -> list[str]:
    """`--dry-run` alone means `--dry-run=client`, and `--dry-run server` what it looks like; for the command line of `submit`."""
    found: list[str] = []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if word == "--dry-run":
            word = f"--dry-run={rest.pop(0) if rest and rest[0] in set(DryRun) else DryRun.client}"
        found.append(word)
    return found


def _client(run: Any) -> Any:
    """By the document's engine first, then by flags and environment."""
    from samite.cli.place import Place, chosen, engine
    from samite.errors import UsageError

    place = chosen()
    if run.spec.engine == "Local":
        if place.by_flag:
            raise UsageError(
                f"{run.name!r} has engine: Local and runs on this machine, but a cluster is named on the command line. "
                "For the cluster add --set spec.engine=RayCluster; for this machine leave --context, --namespace and --kubeconfig out"
            )
        return engine(place=Place())
    own = run.metadata.namespace or ""
    if place.by_flag and place.namespace and own and place.namespace != own:
        raise UsageError(f"the document says namespace {own}, the command line --namespace {place.namespace}: leave one of them out")
    return engine(
        place=Place(
            context=place.context,
            kubeconfig=place.kubeconfig,
            namespace=own or place.namespace,
            by_flag=place.by_flag,
            must_be_cluster=True,
        )
    )


def _check_on_server(client: Any, document: dict[str, Any], file: Path, output: OutputFormat) -> None:
    from samite.errors import UsageError

    if not client.flags:
        raise UsageError("--dry-run=server asks an API server, but engine: Local has none; use --dry-run, or --set spec.engine=RayCluster")
    answer = client.check(document)
    shown = {**document, "spec": answer["spec"]}
    print_document(shown, OutputFormat.json if output is OutputFormat.json else OutputFormat.yaml)
    note(f"{file}: the API server of {client.place} accepts it; nothing was started")


def _whereabouts(client: Any, run: Any) -> dict[str, str]:
    """What a script needs to find the run again."""
    return {"namespace": run.namespace, "context": client.where.context, "uid": run.uid} if client.flags else {"folder": str(run.path)}


def _next_steps(client: "RunClient[Any]", run: str) -> list[str]:
    from samite.cli.place import command

    steps = (("live screen", ("status", run, "-w")), ("what the ranks print", ("logs", run, "-f")), ("end it", ("cancel", run)))
    commands = [(command(client, *words), meaning) for meaning, words in steps]
    width = max(len(text) for text, _ in commands)
    return [f"{text:<{width}}   {meaning}" for text, meaning in commands]


def _prepare_data(run: Any) -> None:
    """Built-in corpora of the run or of one of its stages are made here, with progress, and not by a silent rank later."""
    uris = [run.spec.data.uri, *(stage.data.uri for stage in run.spec.stages if stage.data is not None)]
    for uri in dict.fromkeys(uri for uri in uris if uri and uri.startswith("builtin:")):
        from samite.cli.data import prepare_builtin

        prepare_builtin(uri)
