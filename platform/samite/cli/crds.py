"""`samite crds`: the CustomResourceDefinitions of this version, and those of a cluster beside them."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from samite.cli.output import Column, OutputFormat, OutputOption, hint, note, print_document, print_items, print_lines, print_text

if TYPE_CHECKING:
    from samite.crds.cluster import Comparison, Server

crds_app = typer.Typer(help="CustomResourceDefinitions: print them, compare a cluster's with them, bring a cluster up to date.")

NamesArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NAME]...", help="Kinds, plurals or short names, such as trun. Left out: all four.", show_default=False),
]

COLUMNS = (
    Column(title="NAME", value=lambda item: str(item["name"])),
    Column(title="STATE", value=lambda item: str(item["state"])),
    Column(title="OWNER", value=lambda item: ", ".join(item["owners"]) or "-"),
)


def register(app: typer.Typer) -> None:
    """Add `crds`."""
    app.add_typer(crds_app, name="crds", no_args_is_help=True)


@crds_app.command()
def show(
    names: NamesArgument = None,
    chart: Annotated[
        Path | None, typer.Option("--chart", help="Write Helm templates into this folder instead, one file each.", show_default=False)
    ] = None,
    output: Annotated[OutputFormat, typer.Option("--output", "-o", help="yaml, json or name.")] = OutputFormat.yaml,
) -> None:
    """Print the definitions, ready for `kubectl apply --server-side -f -`. Asks no cluster."""
    from samite.crds.text import chart_files, yaml_text

    found = _chosen(names)
    if chart is not None:
        for file, text in chart_files(found).items():
            (chart / file).write_text(text, encoding="utf-8")
            note(f"wrote {chart / file}")
    elif output is OutputFormat.name:
        print_lines(str(definition["metadata"]["name"]) for definition in found.values())
    elif output is OutputFormat.json:
        print_document({"apiVersion": "v1", "kind": "List", "items": list(found.values())}, output)
    else:
        print_text("---\n".join(yaml_text(definition) for definition in found.values()).rstrip("\n"))


@crds_app.command()
def diff(names: NamesArgument = None, output: OutputOption = OutputFormat.table) -> None:
    """Show what `apply` would change in the cluster of --context. Exit code 0: nothing; 6: the cluster's are not those of this version."""
    from samite.crds.cluster import compare

    found = compare(_server(), _chosen(names))
    if output is OutputFormat.table:
        for item in found:
            if item.difference:
                print_text(item.difference.rstrip("\n"))
        for item in found:
            note(f"{item.name}: {item.state}" + (f", belongs to {' and '.join(item.owners)}" if item.owners else ""))
    else:
        _print(found, output)
    if any(item.state != "same" for item in found):
        hint("  samite crds apply      bring them up to date")
        raise typer.Exit(6)


@crds_app.command()
def apply(
    names: NamesArgument = None,
    force_conflicts: Annotated[
        bool, typer.Option("--force-conflicts", help="Take over definitions that another field manager, such as helm, owns.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done; change nothing.")] = False,
    output: OutputOption = OutputFormat.table,
) -> None:
    """Create the definitions in the cluster of --context, or bring them up to date, by server-side apply as samite-cli. Runs are not touched."""
    from samite.crds.cluster import apply_all, compare, wait_established

    server, definitions = _server(), _chosen(names)
    if dry_run:
        found = compare(server, definitions)
        _print(found, output)
        note("nothing was changed")
        return
    before = apply_all(server, definitions, force=force_conflicts)
    wait_established(server, [item.name for item in before])
    done = {"missing": "created", "different": "configured", "same": "unchanged"}
    _print(before, output, states=done)


def _print(found: "list[Comparison]", output: OutputFormat, states: Mapping[str, str] | None = None) -> None:
    items = [item.to_document() for item in found]
    for item in items:
        item["state"] = (states or {}).get(item["state"], item["state"])
    print_items(items, output, kind="CustomResourceDefinitionComparison", columns=COLUMNS)


def _chosen(names: list[str] | None) -> dict[str, dict[str, Any]]:
    """The definitions of these names. Raises NotFoundError for a name that none has."""
    from samite.crds import custom_resource_definitions
    from samite.errors import NotFoundError

    known = custom_resource_definitions()
    if not names:
        return known
    chosen: dict[str, dict[str, Any]] = {}
    for name in names:
        plural = next((plural for plural, definition in known.items() if name.lower() in _names_of(definition)), None)
        if plural is None:
            raise NotFoundError(f"no definition {name}. There are: {', '.join(known)}")
        chosen[plural] = known[plural]
    return chosen


def _names_of(definition: Mapping[str, Any]) -> set[str]:
    names = definition["spec"]["names"]
    return {definition["metadata"]["name"], names["plural"], names["singular"], *names["shortNames"]}


def _server() -> "Server":
    """The API server of the chosen context."""
    from samite.cli.place import chosen
    from samite.crds.cluster import MANAGER
    from samite.engines.kuberay.api import CRD, GoneApiError
    from samite.engines.kuberay.api_client import connect

    place = chosen()
    api = connect(context=place.context, kubeconfig=place.kubeconfig, timeout_s=30.0)

    class Cluster:
        """CustomResourceDefinitions over the engine's client."""

        def find(self, name: str) -> dict[str, Any] | None:
            try:
                return api.get(CRD, "", name)
            except GoneApiError:
                return None

        def apply(self, definition: dict[str, Any], *, force: bool, dry_run: bool) -> dict[str, Any]:
            return api.apply(CRD, "", definition, manager=MANAGER, force=force, dry_run=dry_run)

    return Cluster()
