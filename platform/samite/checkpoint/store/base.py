"""The seam to storage: what the checkpoint format asks of a file system or an object store.

Seven backends fit behind it (local files, S3, fsspec, memory, and wrappers that retry, inject faults or limit), which is why it is a Protocol.
Keys are relative to the store's URI, use `/`, and never begin with one. Every call either does what it says or raises one of

    MissingKeyError     the key is not there: a fact (never used for a refusal: 403 is not 404)
    NotAllowedError     credentials or permission; the message names the permission that would help
    StorageFullError    no space or quota; nothing was replaced
    TemporaryError      may succeed if repeated (throttled, timed out, connection lost)
    NotFoundError       the bucket or root folder itself is not there
    ConflictError       the store cannot give a guarantee that was asked for
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from samite.checkpoint.checksum import Buffer, Checksum
from samite.errors import NotFoundError, TemporaryError


class MissingKeyError(NotFoundError):
    """No object has this key. Raised only when storage said so, not when it refused to answer."""


class StorageFullError(TemporaryError):
    """Disk, quota or bucket limit reached. Older objects are as they were; the same call works once space returns."""

    def __init__(self, message: str, *, retry_after_s: float = 60.0) -> None:
        super().__init__(message, retry_after_s=retry_after_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class ObjectInfo:
    """What storage says about one object."""

    key: str
    size: int
    etag: str
    """Changes whenever the content does; opaque."""
    modified_unix_s: float
    """Storage's clock."""
    crc64: int | None = None
    """CRC64-NVME if storage keeps one."""


@runtime_checkable
class Store(Protocol):
    """Objects below one URI. Safe to use from several threads."""

    @property
    def uri(self) -> str:
        """Canonical URI, without a trailing slash."""
        ...

    def get(self, key: str) -> bytes:
        """Whole content."""
        ...

    def read_into(self, key: str, offset: int, target: memoryview) -> None:
        """Fill `target` with the bytes from `offset`. Raises CheckpointDamagedError if the object ends before."""
        ...

    def put(self, key: str, data: Buffer, *, crc64: Checksum | None = None) -> None:
        """Write or replace. All or nothing: a reader sees the old content or the new. `crc64` is sent along where storage checks it."""
        ...

    def put_if_absent(self, key: str, data: Buffer) -> bool:
        """Create the object; False, and nothing written, if the key exists with other content. At most one of many callers gets True.

        True also if the key exists with exactly this content: the answer to an earlier try was lost.
        """
        ...

    def compare_and_swap(self, key: str, data: Buffer, expected_etag: str | None) -> bool:
        """Replace only if the object still has `expected_etag` (None: is absent); False if it does not."""
        ...

    def head(self, key: str) -> ObjectInfo | None:
        """Facts about one object, None if it is not there."""
        ...

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Every object whose key begins with `prefix` (which ends in `/` or is empty), in key order."""
        ...

    def children(self, prefix: str) -> Iterator[str]:
        """Names directly below `prefix`, in order; those that contain more end in `/`."""
        ...

    def delete(self, keys: Iterable[str]) -> None:
        """Remove objects; keys that are not there are no error."""
        ...

    def sweep(self, older_than_s: float) -> int:
        """Remove what crashed writers left outside of any key (temporary files, unfinished multipart uploads). Returns how many."""
        ...


def get_range(store: Store, key: str, offset: int, length: int) -> bytes:
    """`length` bytes from `offset`, as bytes."""
    target = bytearray(length)
    store.read_into(key, offset, memoryview(target))
    return bytes(target)
