"""A prepared corpus copied to storage that every node reaches: the files first, its manifest last, so that nobody ever opens half of one.

Called by `samite data push`; `remote.fetch` is the way back. A URI holds one corpus for ever: what trains from it must find the same bytes after a restart.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from samite.errors import ConflictError
from samite_workloads.data.layout import MANIFEST_NAME, Manifest, check_files

if TYPE_CHECKING:
    from samite.checkpoint.store import Store, StoreOptions


def publish(folder: Path, uri: str, options: "StoreOptions | None" = None, *, progress: Callable[[int, int], None] | None = None) -> bool:
    """Copy the corpus in `folder` to `uri` (s3:// or what fsspec knows); returns False if that very corpus was there already.

    `progress` is called with bytes sent and bytes in all. An interrupted copy is begun again by the same call. Raises CorpusError for a damaged folder,
    ConflictError if another corpus is there, and what storage answers.
    """
    from samite.checkpoint.store import open_store

    manifest = Manifest.read(folder)
    check_files(folder, manifest, verify="full")
    store = open_store(uri, options)
    if _is_there(store, manifest):
        return False
    records = manifest.files()
    total_bytes, sent_bytes = sum(record.num_bytes for record in records), 0
    for record in records:
        store.put(record.path, (folder / record.path).read_bytes())
        sent_bytes += record.num_bytes
        if progress is not None:
            progress(sent_bytes, total_bytes)
    if not store.put_if_absent(MANIFEST_NAME, manifest.to_json().encode()):
        _is_there(store, manifest)  # somebody else finished first: with this corpus all is well, with another it is a conflict
    return True


def _is_there(store: "Store", manifest: Manifest) -> bool:
    from samite.checkpoint.store import MissingKeyError

    try:
        found = json.loads(store.get(MANIFEST_NAME)).get("digest", "")
    except MissingKeyError:
        return False
    except ValueError:
        found = "something that is no corpus"
    if found != manifest.digest:
        raise ConflictError(
            f"{store.uri} holds another corpus ({str(found)[:19]}, this one is {manifest.digest[:19]}). A corpus at a URI never changes, because runs "
            "resume from it: choose another URI, for instance with the date in it"
        )
    return True
