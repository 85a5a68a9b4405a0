"""What all `samite checkpoints` commands take: which checkpoints, and how to reach them."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from samite.checkpoint import Catalog, Entry

SourceArgument = Annotated[
    str,
    typer.Argument(
        metavar="RUN|URI", help="A run's name, or where checkpoints are: a path, file://, s3:// or any fsspec URI.", show_default=False
    ),
]
WhichArgument = Annotated[str, typer.Argument(metavar="[CHECKPOINT]", help="An id, a step, or latest.")]
EndpointOption = Annotated[str, typer.Option("--endpoint", help="S3 service of an s3:// URI; a run brings its own.", show_default=False)]
RegionOption = Annotated[str, typer.Option("--region", help="Region of an s3:// URI.", show_default=False)]
InsecureOption = Annotated[bool, typer.Option("--insecure", help="Allow plain http to another machine, and unchecked certificates.")]


def open_catalog(source: str, endpoint: str, region: str, *, insecure: bool) -> "Catalog":
    """The checkpoints of a run by its name, or below a URI."""
    from samite.checkpoint import Catalog, StoreOptions, open_store

    if "://" in source or source.startswith("/"):
        return Catalog(open_store(source, StoreOptions(endpoint=endpoint, region=region, insecure=insecure)))
    from samite.cli.place import find

    client, run = find(source)
    return Catalog(client.store(run))


def usable_entry(catalog: "Catalog", which: str) -> "Entry":
    """The checkpoint a person means, if it may be loaded. Raises CheckpointDamagedError or NotFoundError saying why not."""
    from samite.errors import CheckpointDamagedError, NotFoundError

    entry = catalog.find(which)
    if not entry.usable:
        kind = CheckpointDamagedError if entry.state in {"quarantined", "damaged"} else NotFoundError
        raise kind(f"{entry.checkpoint_id} is {entry.state}: {entry.reason or 'it was never committed'}")
    return entry
