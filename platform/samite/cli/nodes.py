"""`samite nodes exclude | uncordon | blame`: take a node out of a run, let it in again, and see what is held against nodes."""

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from samite.cli.output import Column, OutputFormat, OutputOption, ago, note, print_items

if TYPE_CHECKING:
    from samite.lifecycle.doubts import BlameMemory

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="Name of the run.", show_default=False)]
NodeArgument = Annotated[
    str, typer.Argument(metavar="NODE", help="Name of the node, as status shows it; on Kubernetes also the machine's.", show_default=False)
]
_WORST_FIRST = ("Excluded", "Quarantined", "Suspect", "Trusted")
SUSPECT_STRIKES = 0.05
"""Fewer are forgotten."""


def register(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(name="nodes", help="Which nodes a run may use, and why.", no_args_is_help=True, rich_markup_mode=None)
    group.command()(exclude)
    group.command()(uncordon)
    group.command()(blame)
    app.add_typer(group)


def exclude(run: RunArgument, node: NodeArgument) -> None:
    """Do not use a node from the next attempt on."""
    _ask(run, node, "exclude")


def uncordon(run: RunArgument, node: NodeArgument) -> None:
    """Use a node again, whatever it was blamed for."""
    _ask(run, node, "uncordon")


def blame(
    run: Annotated[
        str,
        typer.Argument(
            metavar="[RUN]",
            help="What this run holds against its nodes. Left out: the only active run's; on Kubernetes what all runs hold against the machines.",
            show_default=False,
        ),
    ] = "",
    output: OutputOption = OutputFormat.table,
) -> None:
    """Show what is held against nodes: strikes, quarantine and its end, and the evidence.

    Strikes halve in seven days. With three a node is quarantined for a day; hardware faults do so at once. Trust one again with
    `samite nodes uncordon RUN NODE`, on Kubernetes for all runs with `kubectl delete nodeblame MACHINE`.
    """
    from samite.cli.place import chosen, engine, find

    if not run and chosen().is_cluster:
        from samite.engines.kuberay.api import NODE_BLAME

        client: Any = engine()
        items = [_machine(item) for item in client.api.list(NODE_BLAME).items]
        whole = "the machines of this cluster"
    else:
        client, found = find(run)
        now_s = time.time()
        items = [_node(entry, now_s) for entry in client.memory(found).blame]
        whole = f"the nodes of {found.name}"
    items.sort(key=lambda item: (_WORST_FIRST.index(item["state"]), -item["strikes"], item["name"]))
    print_items(items, output, kind="NodeBlame", columns=_COLUMNS)
    if not items and output in (OutputFormat.table, OutputFormat.wide):
        note(f"nothing is held against {whole}")


def _node(entry: "BlameMemory", now_s: float) -> dict[str, Any]:
    """One node as a run remembers it."""
    from samite.lifecycle.blame import strikes_now
    from samite.lifecycle.plan import NodePolicy

    until_s = entry.excluded_until_s if (entry.excluded_until_s or 0.0) > now_s else None
    strikes = round(strikes_now(entry, NodePolicy(), now_s), 2)
    return {
        "name": entry.node,
        "state": "Quarantined" if until_s is not None else "Suspect" if strikes >= SUSPECT_STRIKES else "Trusted",
        "strikes": strikes,
        "quarantinedUntil": _time(until_s),
        "updatedAt": _time(entry.updated_s or None),
        "reason": entry.reason,
        "evidence": [{"fact": fact} for fact in entry.seen],
    }


def _machine(document: Mapping[str, Any]) -> dict[str, Any]:
    """One machine as all runs of the cluster remember it; what a person decided comes first."""
    spec, status = document.get("spec") or {}, document.get("status") or {}
    by = f" ({spec['by']})" if spec.get("by") else ""
    until = status.get("quarantinedUntil")
    # The operator writes an entry when something happens: a quarantine that has ended since still stands in it.
    over = until is not None and datetime.fromisoformat(until).timestamp() <= time.time()
    state = str(status.get("state") or "Trusted")
    return {
        "name": document["metadata"]["name"],
        "state": "Excluded" if spec.get("exclude") else "Suspect" if over and state == "Quarantined" else state,
        "strikes": float(status.get("strikes") or 0.0),
        "quarantinedUntil": None if over else until,
        "updatedAt": status.get("updatedAt"),
        "reason": f"{spec.get('reason') or 'a person excluded it'}{by}" if spec.get("exclude") else str(status.get("reason") or ""),
        "evidence": [dict(item) for item in status.get("evidence") or ()],
    }


def _time(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _left(item: Mapping[str, Any]) -> str:
    until = item["quarantinedUntil"]
    return "-" if until is None else ago(datetime.fromisoformat(until).timestamp() - time.time())


def _last_run(item: Mapping[str, Any]) -> str:
    runs = [f"{fact['namespace']}/{fact['run']}" for fact in item["evidence"] if fact.get("run")]
    return runs[-1] if runs else "-"


_COLUMNS = (
    Column(title="NODE", value=lambda item: str(item["name"])),
    Column(title="STATE", value=lambda item: str(item["state"])),
    Column(title="STRIKES", value=lambda item: f"{item['strikes']:g}", right=True),
    Column(title="LEFT", value=_left, right=True),
    Column(title="EVIDENCE", value=lambda item: str(len(item["evidence"])), right=True, wide=True),
    Column(title="LAST RUN", value=_last_run, wide=True),
    Column(title="REASON", value=lambda item: str(item["reason"])),
)


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
