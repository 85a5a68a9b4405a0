"""Corpora behind other URIs: copied once to this machine, checked, and opened from there.

Storage is reached through `samite.checkpoint.store`, which knows `s3://` and whatever fsspec knows. The copy is named after the corpus's
digest, so a corpus that was replaced at its URI is fetched anew and an unchanged one is not. A damaged copy is fetched again. Called by
`open_corpus`; ranks on one machine share the copy, and one of them makes it.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from samite.errors import NotFoundError, SamiteError, UsageError
from samite.settings import Settings
from samite_workloads.data.layout import MANIFEST_NAME, CorpusError, FileRecord, Manifest, check_files
from samite_workloads.data.staging import staged

if TYPE_CHECKING:
    from samite.checkpoint.store import Store, StoreOptions

_BLOCK_BYTES = 16 << 20


def fetch(uri: str, cache: Path | None = None, options: "StoreOptions | None" = None) -> Path:
    """Local folder with the corpus at `uri`, below `cache` (default $SAMITE_HOME/cache/corpora).

    Raises NotFoundError, NotAllowedError, TemporaryError or UsageError from the storage, CorpusError for a corpus that is incomplete.
    """
    from samite.checkpoint.store import MissingKeyError, open_store

    try:
        store = open_store(uri, options)
    except UsageError as error:
        raise UsageError(str(error).replace("checkpoint uri", "data uri")) from None
    try:
        text = store.get(MANIFEST_NAME).decode("utf-8", errors="replace")
    except MissingKeyError:
        raise NotFoundError(f"{uri} has no {MANIFEST_NAME}: it is not a prepared corpus, or the URI is wrong") from None
    manifest = Manifest.from_json(text, f"{store.uri}/{MANIFEST_NAME}")
    folder = (cache or Settings.from_environment().home / "cache" / "corpora") / manifest.digest.removeprefix("sha256:")

    def is_done() -> bool:
        try:
            check_files(folder, manifest)
            return Manifest.read(folder).digest == manifest.digest
        except SamiteError:
            return False

    if is_done():
        return folder
    with staged(folder, is_done) as staging:
        if staging is not None:
            for record in manifest.files():
                _copy(store, record, staging / record.path)
            check_files(staging, manifest, verify="full")
            manifest.write(staging)
    return folder


def _copy(store: "Store", record: FileRecord, target: Path) -> None:
    from samite.checkpoint.store import MissingKeyError

    target.parent.mkdir(parents=True, exist_ok=True)
    block = bytearray(_BLOCK_BYTES)
    with target.open("wb") as stream:
        for offset in range(0, record.num_bytes, _BLOCK_BYTES):
            view = memoryview(block)[: min(_BLOCK_BYTES, record.num_bytes - offset)]
            try:
                store.read_into(record.path, offset, view)
            except MissingKeyError:
                raise CorpusError(f"{store.uri}/{record.path} is missing: the corpus was copied there incompletely") from None
            stream.write(view)
