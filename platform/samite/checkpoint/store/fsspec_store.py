"""Objects through fsspec: every scheme that is not ours (gs, az, hdfs, sftp, ...). Correct first: one request per object, no parallel parts.

Create-once is asked of the file system (`mode="create"`, or exclusive open). Several file systems only imitate it by looking first; `probe` finds
those that overwrite, and `single_writer` is the promise that makes the others safe.
"""

import contextlib
import hashlib
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

from samite.checkpoint.checksum import Buffer, Checksum
from samite.checkpoint.store.base import MissingKeyError, ObjectInfo, StorageFullError
from samite.errors import CheckpointDamagedError, ConflictError, NotAllowedError, SamiteError, TemporaryError, UsageError


class FsspecStore:
    """Objects below `uri` of any fsspec file system."""

    def __init__(self, uri: str, *, single_writer: bool = False) -> None:
        import fsspec

        try:
            self._fs, root = fsspec.core.url_to_fs(uri)
        except (ValueError, ImportError) as error:
            raise UsageError(f"checkpoint uri {uri!r}: {error}") from error
        self._uri = uri
        self._root = root.rstrip("/") + "/"
        self._single_writer = single_writer

    @property
    def uri(self) -> str:
        """Canonical URI."""
        return self._uri

    def get(self, key: str) -> bytes:
        """Whole content."""
        with self._errors(key):
            return bytes(self._fs.cat_file(self._root + key))

    def read_into(self, key: str, offset: int, target: memoryview) -> None:
        """Fill `target` from `offset`."""
        with self._errors(key):
            data = self._fs.cat_file(self._root + key, start=offset, end=offset + len(target))
        if len(data) != len(target):
            raise CheckpointDamagedError(f"{self._uri}/{key}: wanted bytes {offset} to {offset + len(target)}, found {len(data)} of them")
        target[:] = data

    def put(self, key: str, data: Buffer, *, crc64: Checksum | None = None) -> None:
        """Write or replace."""
        del crc64
        with self._errors(key):
            self._make_parent(key)
            self._fs.pipe_file(self._root + key, bytes(data))

    def put_if_absent(self, key: str, data: Buffer) -> bool:
        """Create once, as far as the file system can; with `single_writer`, look and then write."""
        with self._errors(key):
            if self._fs.exists(self._root + key):
                return bool(self._fs.cat_file(self._root + key) == bytes(data))
            self._make_parent(key)
            try:
                self._fs.pipe_file(self._root + key, bytes(data), mode="create")
            except FileExistsError:
                return bool(self._fs.cat_file(self._root + key) == bytes(data))
            except (TypeError, NotImplementedError, ValueError) as error:
                if not self._single_writer:
                    raise ConflictError(
                        f"{self._uri}: this file system cannot create an object only if it is absent, so two writers could both commit. "
                        "Use file:// or s3://, or promise checkpoint.singleWriter"
                    ) from error
                self._fs.pipe_file(self._root + key, bytes(data))
        return True

    def compare_and_swap(self, key: str, data: Buffer, expected_etag: str | None) -> bool:
        """Look, then replace: not atomic here. Only LATEST uses it, which is a hint."""
        found = self.head(key)
        if (None if found is None else found.etag) != expected_etag:
            return False
        self.put(key, data)
        return True

    def head(self, key: str) -> ObjectInfo | None:
        """Facts about one object."""
        with self._errors(key):
            try:
                self._fs.invalidate_cache()
                return self._info(self._fs.info(self._root + key))
            except FileNotFoundError:
                return None

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Objects below `prefix`."""
        with self._errors(prefix):
            self._fs.invalidate_cache()
            try:
                found = self._fs.find(self._root + prefix, detail=True)
            except FileNotFoundError:
                return
        for _, details in sorted(found.items()):
            yield self._info(details)

    def children(self, prefix: str) -> Iterator[str]:
        """Names directly below `prefix`."""
        with self._errors(prefix):
            self._fs.invalidate_cache()
            try:
                found = self._fs.ls(self._root + prefix, detail=True)
            except FileNotFoundError:
                return
        yield from sorted(
            details["name"].rstrip("/").rpartition("/")[2] + ("/" if details["type"] == "directory" else "") for details in found
        )

    def delete(self, keys: Iterable[str]) -> None:
        """Remove objects."""
        for key in keys:
            with self._errors(key), contextlib.suppress(FileNotFoundError):
                self._fs.rm_file(self._root + key)

    def sweep(self, older_than_s: float) -> int:
        """fsspec has no word for unfinished uploads."""
        del older_than_s
        return 0

    def _make_parent(self, key: str) -> None:
        self._fs.makedirs((self._root + key).rpartition("/")[0], exist_ok=True)

    def _info(self, details: dict[str, Any]) -> ObjectInfo:
        modified = details.get("mtime") or details.get("LastModified") or details.get("updated") or details.get("created") or 0.0
        if isinstance(modified, datetime):
            modified = modified.timestamp()
        elif isinstance(modified, str):
            modified = datetime.fromisoformat(modified).timestamp()
        size = int(details["size"] or 0)
        etag = details.get("ETag") or details.get("etag") or hashlib.sha256(repr((size, modified)).encode()).hexdigest()[:16]
        name = str(details["name"])
        root = self._root.lstrip("/")
        return ObjectInfo(key=name.lstrip("/").removeprefix(root), size=size, etag=str(etag), modified_unix_s=float(modified))

    @contextlib.contextmanager
    def _errors(self, key: str) -> Iterator[None]:
        where = f"{self._uri}/{key}"
        try:
            yield
        except FileNotFoundError as error:
            raise MissingKeyError(f"{where}: no such object") from error
        except PermissionError as error:
            raise NotAllowedError(f"{where}: refused ({error}); these credentials need read, write, list and delete there") from error
        except OSError as error:
            raise _translate(error, where) from error


def _translate(error: OSError, where: str) -> SamiteError:
    import errno

    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return StorageFullError(f"{where}: {error}; nothing was replaced")
    return TemporaryError(f"{where}: {error}")
