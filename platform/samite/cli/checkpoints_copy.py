"""`samite checkpoints copy | diff`: one checkpoint to another place, and what differs between two."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from samite.cli.checkpoint_options import (
    EndpointOption,
    InsecureOption,
    RegionOption,
    SourceArgument,
    WhichArgument,
    open_catalog,
    usable_entry,
)
from samite.cli.output import Column, OutputFormat, OutputOption, note, print_document, print_items

if TYPE_CHECKING:
    from samite.checkpoint import Catalog, Entry
    from samite.checkpoint.compare import Difference
    from samite.checkpoint.index import RankIndex, TensorMeta


def copy(
    source: SourceArgument,
    which: WhichArgument = "latest",
    to: Annotated[str, typer.Option("--to", metavar="RUN|URI", help="Where the copy goes.", show_default=False)] = "",
    parallel: Annotated[int, typer.Option("--parallel", min=1, max=64, help="Data objects (up to 1 GiB each) under way at once.")] = 2,
    endpoint: EndpointOption = "",
    to_endpoint: Annotated[str, typer.Option("--to-endpoint", help="S3 service of --to.", show_default=False)] = "",
    region: RegionOption = "",
    insecure: InsecureOption = False,
    output: OutputOption = OutputFormat.yaml,
) -> None:
    """Copy a checkpoint to another bucket, folder or run, every byte verified; it gets an id of its own there. A run that writes there goes on."""
    from samite.checkpoint.copying import copy_checkpoint
    from samite.cli.progress import progress_lines
    from samite.errors import UsageError

    if not to:
        raise UsageError("where to? Wanted --to RUN or --to URI")
    catalog = open_catalog(source, endpoint, region, insecure=insecure)
    entry = usable_entry(catalog, which)
    target = open_catalog(to, to_endpoint if to.startswith("s3://") else "", region, insecure=insecure)
    with progress_lines("copying", entry.manifest.data_bytes if entry.manifest else 0) as progress:
        one = copy_checkpoint(catalog.store, entry.checkpoint_id, target.store, threads=parallel, progress=progress)
    print_document({"id": one, "step": entry.step, "uri": f"{target.store.uri}/ckpt/{one}", "from": entry.checkpoint_id}, output)


def diff(
    source: SourceArgument,
    first: Annotated[str, typer.Argument(metavar="FIRST", help="An id, a step, or latest.", show_default=False)],
    second: Annotated[str, typer.Argument(metavar="[SECOND]", help="Another one.")] = "latest",
    other: Annotated[str, typer.Option("--with", metavar="RUN|URI", help="Where SECOND is, if elsewhere.", show_default=False)] = "",
    everything: Annotated[bool, typer.Option("--all", help="Also list what is equal.")] = False,
    endpoint: EndpointOption = "",
    region: RegionOption = "",
    insecure: InsecureOption = False,
    output: OutputOption = OutputFormat.table,
) -> None:
    """What differs between two checkpoints: names, shapes, dtypes, and values by their checksums. Reads indexes only."""
    from samite.checkpoint.compare import Change, differences

    catalog = open_catalog(source, endpoint, region, insecure=insecure)
    against = open_catalog(other, endpoint, region, insecure=insecure) if other else catalog
    found = differences(_indexes(catalog, usable_entry(catalog, first)), _indexes(against, usable_entry(against, second)))
    shown = [one for one in found if everything or one.change is not Change.EQUAL]
    print_items(
        [_item(one) for one in shown],
        output,
        kind="CheckpointDifference",
        columns=_COLUMNS,
        name=lambda item: str(item["tensor"]),
        empty=f"No difference in {len(found)} tensors.",
    )
    if shown:
        note(f"{sum(one.change is not Change.EQUAL for one in found)} of {len(found)} tensors differ")


def _indexes(catalog: "Catalog", entry: "Entry") -> list["RankIndex"]:
    from samite.checkpoint.verify import read_index

    return [read_index(catalog.store, entry.checkpoint_id, record) for record in catalog.manifest(entry.checkpoint_id).ranks]


def _item(found: "Difference") -> dict[str, Any]:
    return {"tensor": found.name, "change": found.change.value, "first": _described(found.first), "second": _described(found.second)}


def _described(meta: "TensorMeta | None") -> str:
    return f"{meta.dtype} {list(meta.shape)}" if meta else ""


_COLUMNS = (
    Column(title="TENSOR", value=lambda item: str(item["tensor"])),
    Column(title="CHANGE", value=lambda item: str(item["change"])),
    Column(title="FIRST", value=lambda item: str(item["first"] or "-"), wide=True),
    Column(title="SECOND", value=lambda item: str(item["second"] or "-"), wide=True),
)
