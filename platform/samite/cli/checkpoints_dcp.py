"""`samite checkpoints import-dcp | export-dcp`: checkpoints of PyTorch's own writers into this format and back.

The work is done by `samite_workloads.checkpoint.dcp.exchange`, reached by name when a command runs: it needs the worker extra.
"""

import importlib
from typing import Annotated, Any

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
from samite.cli.output import OutputFormat, OutputOption, print_document


def import_dcp(
    folder: Annotated[str, typer.Argument(metavar="DCP", help="Folder or fsspec URI of a distributed checkpoint.", show_default=False)],
    source: SourceArgument,
    step: Annotated[int | None, typer.Option("--step", min=0, help="Its step, if its name does not end in it.", show_default=False)] = None,
    endpoint: EndpointOption = "",
    region: RegionOption = "",
    insecure: InsecureOption = False,
    output: OutputOption = OutputFormat.yaml,
) -> None:
    """Copy a checkpoint of PyTorch's own writers (torch.distributed.checkpoint) in, exactly. Its .metadata is a pickle: only what you trust."""
    from samite.cli.progress import progress_lines

    exchange = _exchange()
    catalog = open_catalog(source, endpoint, region, insecure=insecure)
    with progress_lines("importing", exchange.imported_bytes(folder)) as progress:
        one = exchange.import_dcp(folder, catalog.store, step=step, progress=progress)
    entry = catalog.entry(one)
    print_document({"id": one, "step": entry.step, "uri": f"{catalog.store.uri}/ckpt/{one}", "from": folder}, output)


def export_dcp(
    source: SourceArgument,
    which: WhichArgument = "latest",
    target: Annotated[str, typer.Option("--to", help="New folder or fsspec URI.", show_default=False)] = "",
    parallel: Annotated[int, typer.Option("--parallel", min=1, max=64, help="Reads at the same time.")] = 4,
    endpoint: EndpointOption = "",
    region: RegionOption = "",
    insecure: InsecureOption = False,
    output: OutputOption = OutputFormat.yaml,
) -> None:
    """Write a checkpoint as PyTorch's own writers do, so that torch.distributed.checkpoint alone can load it. Every block is verified."""
    from samite.cli.progress import progress_lines
    from samite.errors import UsageError

    if not target:
        raise UsageError("where to? Wanted --to FOLDER (or an fsspec URI)")
    exchange = _exchange()
    catalog = open_catalog(source, endpoint, region, insecure=insecure)
    entry = usable_entry(catalog, which)
    with progress_lines("exporting", entry.manifest.data_bytes if entry.manifest else 0) as progress:
        exchange.export_dcp(catalog.store, entry.checkpoint_id, target, progress=progress, threads=parallel)
    print_document({"id": entry.checkpoint_id, "step": entry.step, "to": target}, output)


def _exchange() -> Any:
    """The module that does it. Raises UsageError saying what to install when the worker extra is missing."""
    from samite.errors import UsageError

    try:
        return importlib.import_module("samite_workloads.checkpoint.dcp.exchange")
    except ModuleNotFoundError as error:
        raise UsageError(f"this needs the worker extra: pip install 'samite[worker]' ({error})") from error
