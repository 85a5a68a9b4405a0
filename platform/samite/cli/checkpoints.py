"""`samite checkpoints ls | show | verify | diff | prune | pin | unpin | copy | import-dcp | export-dcp`: what is stored, whether it is whole, and what may go."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from samite.cli.checkpoint_options import EndpointOption, InsecureOption, RegionOption, SourceArgument, WhichArgument, open_catalog
from samite.cli.checkpoints_copy import copy, diff
from samite.cli.checkpoints_dcp import export_dcp, import_dcp
from samite.cli.output import Column, DryRunOption, OutputFormat, OutputOption, YesOption, hint, note, print_document, print_items, size

if TYPE_CHECKING:
    from samite.checkpoint import Entry

checkpoints = typer.Typer(help="List, inspect, verify, pin and prune checkpoints.", no_args_is_help=True, rich_markup_mode=None)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(checkpoints, name="checkpoints")
    checkpoints.command("ls")(ls)
    for command in (show, verify, diff, prune, pin, unpin, copy, import_dcp, export_dcp):
        checkpoints.command()(command)


def ls(
    source: SourceArgument,
    endpoint: EndpointOption = "",
    region: RegionOption = "",
    insecure: InsecureOption = False,
    output: OutputOption = OutputFormat.table,
) -> None:
    """List checkpoints, newest first, with their state: writing, committed, verified, quarantined, fenced."""
    catalog = open_catalog(source, endpoint, region, insecure=insecure)
    entries = catalog.list()
    print_items(
        [_item(entry) for entry in entries],
        output,
        kind="Checkpoint",
        columns=_COLUMNS,
        name=lambda item: str(item["id"]),
        empty=f"No checkpoints at {catalog.store.uri}.",
    )


def show(
    source: SourceArgument,
    which: WhichArgument = "latest",
    tensors: Annotated[bool, typer.Option("--tensors", help="Also list every tensor (reads the indexes).")] = False,
    endpoint: EndpointOption = "",
    region: RegionOption = "",
    insecure: InsecureOption = False,
    output: OutputOption = OutputFormat.yaml,
) -> None:
    """Show one checkpoint: manifest, ranks with the checksum of each index, the run's own state; as YAML, or JSON with -o json."""
    from samite.cli.checkpoint_document import checkpoint_document

    catalog = open_catalog(source, endpoint, region, insecure=insecure)
    entry = catalog.find(which)
    print_document(_item(entry) | checkpoint_document(catalog, entry, tensors=tensors), output)


def verify(
    source: SourceArgument,
    which: Annotated[str, typer.Argument(metavar="[CHECKPOINT]", help="An id, a step, or latest; all usable ones if left out.")] = "",
    full: Annotated[
        bool, typer.Option("--full/--quick", help="Read every byte, or only manifest, indexes and the size of every object.")
    ] = False,
    parallel: Annotated[int, typer.Option("--parallel", min=1, max=64, help="Objects read at the same time.")] = 4,
    quarantine: Annotated[bool, typer.Option("--quarantine", help="Mark damaged ones, so that no run starts from them.")] = False,
    lift: Annotated[bool, typer.Option("--lift-quarantine", help="Unmark quarantined ones that verify in full.")] = False,
    endpoint: EndpointOption = "",
    region: RegionOption = "",
    insecure: InsecureOption = False,
    output: OutputOption = OutputFormat.table,
) -> None:
    """Compare stored bytes with what the manifests promise. Exit 12 if anything is damaged; nothing is ever deleted."""
    from samite.checkpoint import Level, State
    from samite.cli.progress import progress_lines
    from samite.errors import CheckpointDamagedError, UsageError

    if lift and not full:
        raise UsageError("--lift-quarantine wants --full: only a checkpoint whose every byte is right may be used again")
    catalog = open_catalog(source, endpoint, region, insecure=insecure)
    wanted = {State.COMMITTED, State.VERIFIED, State.DAMAGED} | ({State.QUARANTINED} if lift else set())
    entries = [catalog.find(which)] if which else [entry for entry in catalog.list() if entry.state in wanted]
    items, damaged = [], []
    total = sum(entry.manifest.data_bytes for entry in entries if entry.manifest) if full else 0
    with progress_lines("verifying", total) as progress:
        for entry in entries:
            report = catalog.verify(entry.checkpoint_id, Level.FULL if full else Level.QUICK, threads=parallel, progress=progress)
            if report.ok and lift and entry.state is State.QUARANTINED:
                catalog.lift_quarantine(entry.checkpoint_id)
                note(f"{entry.checkpoint_id}: every byte is right; quarantine lifted")
            if report.unmarked:
                note(f"{entry.checkpoint_id}: verified, but that cannot be noted beside it: {report.unmarked}")
            if not report.ok:
                damaged.append(f"{entry.checkpoint_id}: {report.summary}")
                if quarantine:
                    catalog.quarantine(entry.checkpoint_id, report.summary)
            items.append(_item(entry) | {"ok": report.ok, "level": report.level.value, "problems": list(report.problems)})
    print_items(
        items, output, kind="CheckpointVerification", columns=_VERIFY_COLUMNS, name=lambda item: str(item["id"]), empty="Nothing to verify."
    )
    if damaged:
        lines = "".join(f"\n  - {line}" for line in damaged)
        raise CheckpointDamagedError(f"{len(damaged)} of {len(entries)} checkpoints are damaged:{lines}")


def prune(
    source: SourceArgument,
    keep_last: Annotated[int, typer.Option("--keep-last", min=1, help="Newest committed checkpoints to keep.")] = 3,
    keep_every: Annotated[int, typer.Option("--keep-every", min=0, help="Keep the first of each so many steps; 0 for none.")] = 0,
    keep_final: Annotated[bool, typer.Option("--keep-final/--no-keep-final", help="Keep the last checkpoint of each stage.")] = True,
    quarantined: Annotated[bool, typer.Option("--quarantined", help="Also delete quarantined ones.")] = False,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    endpoint: EndpointOption = "",
    region: RegionOption = "",
    insecure: InsecureOption = False,
    output: OutputOption = OutputFormat.table,
) -> None:
    """Show which old checkpoints would go and why; delete them with --yes. Never the newest verified, a pinned or a handed-over one."""
    from samite.checkpoint.retention import STALE_AFTER_S, KeepPolicy, carry_out, plan_for

    catalog = open_catalog(source, endpoint, region, insecure=insecure)
    if yes and not dry_run:
        catalog.newest_verified()  # at least one that is known to be whole must stay
    policy = KeepPolicy(last=keep_last, every_steps=keep_every, stage_final=keep_final, quarantined=not quarantined)
    plan = plan_for(catalog, policy)
    items = [_item(verdict.entry) | {"action": "delete" if verdict.delete else "keep", "why": verdict.reason} for verdict in plan]
    print_items(items, output, kind="CheckpointVerdict", columns=_PRUNE_COLUMNS, name=lambda item: str(item["id"]), empty="No checkpoints.")
    doomed = [verdict for verdict in plan if verdict.delete]
    if dry_run or not yes:
        if doomed and not dry_run:
            hint(f"{len(doomed)} would be deleted; add --yes to delete them")
        return
    deleted = carry_out(catalog, plan, progress=lambda verdict: note(f"deleted {verdict.entry.checkpoint_id}"))
    leftovers = catalog.store.sweep(STALE_AFTER_S)
    note(f"{len(deleted)} checkpoints deleted" + (f", {leftovers} leftovers of dead writers removed" if leftovers else ""))


def pin(
    source: SourceArgument,
    which: Annotated[str, typer.Argument(metavar="CHECKPOINT", help="An id, a step, or latest.", show_default=False)],
    reason: Annotated[str, typer.Option("--reason", help="Shown to those who wonder later.", show_default=False)] = "",
    endpoint: EndpointOption = "",
    region: RegionOption = "",
    insecure: InsecureOption = False,
) -> None:
    """Keep a checkpoint, whatever retention says, until it is unpinned."""
    catalog = open_catalog(source, endpoint, region, insecure=insecure)
    entry = catalog.find(which)
    catalog.pin(entry.checkpoint_id, reason)
    note(f"pinned {entry.checkpoint_id}")


def unpin(
    source: SourceArgument,
    which: Annotated[str, typer.Argument(metavar="CHECKPOINT", help="An id, a step, or latest.", show_default=False)],
    endpoint: EndpointOption = "",
    region: RegionOption = "",
    insecure: InsecureOption = False,
) -> None:
    """Let retention decide about a checkpoint again."""
    catalog = open_catalog(source, endpoint, region, insecure=insecure)
    entry = catalog.find(which)
    catalog.unpin(entry.checkpoint_id)
    note(f"unpinned {entry.checkpoint_id}")


def _item(entry: "Entry") -> dict[str, Any]:
    manifest = entry.manifest
    return {
        "id": entry.checkpoint_id,
        "step": entry.step,
        "attempt": entry.epoch,
        "stage": manifest.stage if manifest else "",
        "state": entry.state.value,
        "pinned": entry.pinned,
        "final": bool(manifest and manifest.final),
        "bytes": manifest.data_bytes if manifest else None,
        "ranks": manifest.world_size if manifest else None,
        "objects": manifest.num_objects if manifest else None,
        "createdUnixSeconds": manifest.created_unix_s if manifest else None,
        "reason": entry.reason,
    }


def _age(item: Mapping[str, Any]) -> str:
    import time

    from samite.cli.output import ago

    return ago(time.time() - item["createdUnixSeconds"]) if item["createdUnixSeconds"] else "-"


def _state(item: Mapping[str, Any]) -> str:
    return str(item["state"]) + (", pinned" if item["pinned"] else "") + (", final" if item["final"] else "")


_STEP = Column(title="STEP", value=lambda item: str(item["step"]), right=True)
_ID = Column(title="CHECKPOINT", value=lambda item: str(item["id"]))
_STAGE = Column(title="STAGE", value=lambda item: str(item["stage"] or "-"))
_SIZE = Column(title="SIZE", value=lambda item: "-" if item["bytes"] is None else size(item["bytes"]), right=True)
_COLUMNS = (
    _STEP,
    _ID,
    _STAGE,
    Column(title="STATE", value=_state),
    _SIZE,
    Column(title="RANKS", value=lambda item: str(item["ranks"] or "-"), right=True),
    Column(title="AGE", value=_age, right=True),
    Column(title="OBJECTS", value=lambda item: str(item["objects"] or "-"), wide=True, right=True),
    Column(title="ATTEMPT", value=lambda item: str(item["attempt"]), wide=True, right=True),
    Column(title="REASON", value=lambda item: str(item["reason"]), wide=True),
)
_VERIFY_COLUMNS = (
    _STEP,
    _ID,
    _STAGE,
    _SIZE,
    Column(title="LEVEL", value=lambda item: str(item["level"])),
    Column(title="RESULT", value=lambda item: "ok" if item["ok"] else "DAMAGED"),
    Column(title="PROBLEM", value=lambda item: item["problems"][0] if item["problems"] else "", wide=True),
)
_PRUNE_COLUMNS = (
    _STEP,
    _ID,
    _STAGE,
    Column(title="STATE", value=_state),
    _SIZE,
    Column(title="ACTION", value=lambda item: str(item["action"])),
    Column(title="WHY", value=lambda item: str(item["why"])),
)
