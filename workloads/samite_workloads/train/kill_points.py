"""Points inside the writing of a checkpoint at which a drill can kill a rank: a store that says where it is and otherwise only delegates.

checkpoint.shard      a data object is about to be written          checkpoint.index     the shards of this rank are written, its index is not
checkpoint.commit     everything is written but the manifest        checkpoint.committed the manifest is written, nothing after it
"""

from collections.abc import Iterable, Iterator

from samite.checkpoint import Store
from samite.checkpoint.checksum import Buffer, Checksum
from samite.checkpoint.layout import MANIFEST, CheckpointId
from samite.checkpoint.store import ObjectInfo
from samite_workloads import faults


class KillPointStore:
    """`store`, with `faults.reach` around the writes that matter. Costs a string comparison for each request."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def uri(self) -> str:
        """As the store's."""
        return self._store.uri

    def get(self, key: str) -> bytes:
        """As the store's."""
        return self._store.get(key)

    def read_into(self, key: str, offset: int, target: memoryview) -> None:
        """As the store's."""
        self._store.read_into(key, offset, target)

    def put(self, key: str, data: Buffer, *, crc64: Checksum | None = None) -> None:
        """As the store's, after the points of shards and indexes."""
        if key.endswith(".bin"):
            faults.reach("checkpoint.shard", _step_of(key))
        elif key.endswith(".idx"):
            faults.reach("checkpoint.index", _step_of(key))
        self._store.put(key, data, crc64=crc64)

    def put_if_absent(self, key: str, data: Buffer) -> bool:
        """As the store's, between the points of the commit."""
        if not key.endswith(f"/{MANIFEST}"):
            return self._store.put_if_absent(key, data)
        faults.reach("checkpoint.commit", _step_of(key))
        created = self._store.put_if_absent(key, data)
        faults.reach("checkpoint.committed", _step_of(key))
        return created

    def compare_and_swap(self, key: str, data: Buffer, expected_etag: str | None) -> bool:
        """As the store's."""
        return self._store.compare_and_swap(key, data, expected_etag)

    def head(self, key: str) -> ObjectInfo | None:
        """As the store's."""
        return self._store.head(key)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """As the store's."""
        return self._store.list(prefix)

    def children(self, prefix: str) -> Iterator[str]:
        """As the store's."""
        return self._store.children(prefix)

    def delete(self, keys: Iterable[str]) -> None:
        """As the store's."""
        self._store.delete(keys)

    def sweep(self, older_than_s: float) -> int:
        """As the store's."""
        return self._store.sweep(older_than_s)


def _step_of(key: str) -> int:
    """Step of the checkpoint that `ckpt/<id>/...` belongs to; 0 for other keys."""
    parts = key.split("/")
    found = CheckpointId.parse(parts[1]) if len(parts) > 1 else None
    return found.step if found is not None else 0
