"""Objects as files below one folder: local disks and shared file systems.

    put             temporary file beside the target, fsync, rename over it, fsync of the folder
    put_if_absent   temporary file, fsync, then link(): the kernel lets one caller win. Where links are refused (BeeGFS, exFAT, FUSE, SMB),
                    a claim file made with O_EXCL decides, and the winner renames its temporary file into place: never torn, never twice.

A process that dies leaves temporary files (swept later) and possibly a claim without its object (that key stays unused; ids are never reused).
"""

import contextlib
import errno
import fcntl
import io
import os
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

from samite.checkpoint.checksum import Buffer, Checksum
from samite.checkpoint.store.base import MissingKeyError, ObjectInfo, StorageFullError
from samite.errors import CheckpointDamagedError, NotAllowedError, SamiteError, TemporaryError, UsageError

NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EXDEV, errno.EMLINK, errno.EINVAL, errno.ENOSYS})
"""What file systems without hard links answer to link()."""

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_REFUSED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_TEMPORARY = ".tmp-"
_CLAIM = ".claim-"
_LOCK = ".lock-"
_TRIES = 100
_WRITE_BYTES = 64 * 1024 * 1024


class FileStore:
    """Files below `folder`, which is made when the first object is written. `durable=False` leaves out fsync (tests, scratch disks)."""

    def __init__(self, folder: Path, *, durable: bool = True) -> None:
        if not folder.is_absolute():
            raise UsageError(f"{folder}: a checkpoint folder must be an absolute path")
        self.folder = folder
        self._durable = durable
        self.links: bool = True
        """Whether create-once goes through link(); becomes False with the first refusal."""

    @property
    def uri(self) -> str:
        """Canonical URI; the path stands as it is, without percent encoding."""
        return f"file://{self.folder}"

    def get(self, key: str) -> bytes:
        """Whole content."""
        with self._errors(key):
            return self._path(key).read_bytes()

    def read_into(self, key: str, offset: int, target: memoryview) -> None:
        """Fill `target` from `offset`."""
        with self._errors(key), self._path(key).open("rb", buffering=0) as file:
            file.seek(offset)
            done = 0
            while done < len(target):
                count = file.readinto(target[done : done + _WRITE_BYTES])
                if not count:
                    raise CheckpointDamagedError(
                        f"{self._path(key)}: wanted bytes {offset} to {offset + len(target)}, it ends at {offset + done}"
                    )
                done += count

    def put(self, key: str, data: Buffer, *, crc64: Checksum | None = None) -> None:
        """Write or replace."""
        del crc64  # a local write has no transport that could check it
        with self._errors(key):
            path = self._path(key)
            temporary = self._write_temporary(path, data)
            try:
                temporary.replace(path)
            except OSError:
                temporary.unlink(missing_ok=True)
                raise
            self._sync_folder(path.parent)

    def put_if_absent(self, key: str, data: Buffer) -> bool:
        """Create once."""
        with self._errors(key):
            path = self._path(key)
            if path.exists():
                return path.read_bytes() == bytes(data)
            temporary = self._write_temporary(path, data)
            try:
                won = self._publish(temporary, path)
            finally:
                temporary.unlink(missing_ok=True)
            self._sync_folder(path.parent)
            return won or (path.exists() and path.read_bytes() == bytes(data))

    def compare_and_swap(self, key: str, data: Buffer, expected_etag: str | None) -> bool:
        """Replace if unchanged; exclusive among processes that use this class, by a lock that dies with its holder."""
        with self._errors(key):
            path = self._path(key)
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.with_name(f"{_LOCK}{path.name}").open("ab") as lock:
                with contextlib.suppress(OSError):  # file systems without locks: LATEST, the only caller, is a hint
                    fcntl.flock(lock, fcntl.LOCK_EX)
                found = self.head(key)
                if (None if found is None else found.etag) != expected_etag:
                    return False
                self.put(key, data)
                return True

    def head(self, key: str) -> ObjectInfo | None:
        """Facts about one object."""
        with self._errors(key):
            try:
                return _info(key, self._path(key).stat())
            except (FileNotFoundError, NotADirectoryError):
                return None

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Objects below `prefix`, folder by folder."""
        for name in self.children(prefix):
            if name.endswith("/"):
                yield from self.list(prefix + name)
            else:
                info = self.head(prefix + name)
                if info is not None:
                    yield info

    def children(self, prefix: str) -> Iterator[str]:
        """Names directly below `prefix`."""
        with self._errors(prefix):
            try:
                with os.scandir(self._path(prefix) if prefix else self.folder) as entries:
                    names = sorted(entry.name + ("/" if entry.is_dir() else "") for entry in entries if not _private(entry.name))
            except FileNotFoundError:
                return
        yield from names

    def delete(self, keys: Iterable[str]) -> None:
        """Remove files, and folders that become empty."""
        for key in keys:
            with self._errors(key):
                path = self._path(key)
                path.unlink(missing_ok=True)
                path.with_name(f"{_CLAIM}{path.name}").unlink(missing_ok=True)
                self._remove_empty_parents(path)

    def sweep(self, older_than_s: float) -> int:
        """Remove temporary files of writers that died."""
        count = 0
        for root, _, names in os.walk(self.folder):
            for name in names:
                path = Path(root, name)
                if name.startswith(_TEMPORARY):
                    with contextlib.suppress(FileNotFoundError):
                        if time.time() - path.stat().st_mtime >= older_than_s:
                            path.unlink()
                            count += 1
        return count

    def _publish(self, temporary: Path, path: Path) -> bool:
        if self.links:
            try:
                os.link(temporary, path)
            except FileExistsError:
                return temporary.stat().st_nlink == 2  # NFS: the link was made and its answer lost
            except OSError as error:
                if error.errno not in NO_LINKS:
                    raise
                self.links = False
            else:
                return True
        try:
            os.close(os.open(path.with_name(f"{_CLAIM}{path.name}"), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
        except FileExistsError:
            return False
        if path.exists():
            return False
        temporary.replace(path)
        return True

    def _write_temporary(self, path: Path, data: Buffer) -> Path:
        temporary = path.with_name(f"{_TEMPORARY}{os.getpid()}-{uuid.uuid4().hex[:8]}")
        try:
            with self._create(temporary) as file:
                view = memoryview(data).cast("B")
                done = 0
                while done < len(view):
                    done += file.write(view[done : done + _WRITE_BYTES]) or 0
                if self._durable:
                    os.fsync(file.fileno())
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        return temporary

    def _create(self, path: Path) -> io.FileIO:
        """Open a new file; its folder is made if needed, and made again if a deletion removes it while it is still empty."""
        for _ in range(_TRIES):
            made = not path.parent.is_dir()
            with contextlib.suppress(FileNotFoundError):
                if made:
                    path.parent.mkdir(parents=True, exist_ok=True)
                file = io.FileIO(path, "xb")
                for folder in path.parent.parents if made else ():
                    self._sync_folder(folder)
                    if folder == self.folder.parent:
                        break
                return file
        raise TemporaryError(f"{path.parent}: keeps disappearing while it is written to")

    def _sync_folder(self, folder: Path) -> None:
        if not self._durable:
            return
        with contextlib.suppress(FileNotFoundError):  # its last object was deleted just now, and the folder with it
            descriptor = os.open(folder, os.O_RDONLY)
            try:
                with contextlib.suppress(OSError):  # some network file systems refuse fsync of a folder
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def _remove_empty_parents(self, path: Path) -> None:
        for folder in path.parents:
            if folder == self.folder or self.folder not in folder.parents:
                return
            try:
                rest = list(folder.iterdir())
                if all(one.name.startswith((_CLAIM, _LOCK)) or one.is_dir() for one in rest):
                    for one in rest:
                        one.rmdir() if one.is_dir() else one.unlink(missing_ok=True)
                folder.rmdir()
            except OSError:
                return

    def _path(self, key: str) -> Path:
        if key.startswith("/") or ".." in key.split("/"):
            raise UsageError(f"{key!r}: a key is relative and has no '..'")
        return self.folder / key

    @contextlib.contextmanager
    def _errors(self, key: str) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, NotADirectoryError) as error:
            raise MissingKeyError(f"{self.folder / key}: no such file") from error
        except OSError as error:
            raise _translate(error, self.folder / key) from error


def _translate(error: OSError, path: Path) -> SamiteError:
    reason = os.strerror(error.errno) if error.errno else str(error)
    if error.errno in _FULL:
        return StorageFullError(f"{path}: {reason}; nothing was replaced. Free space, or lower checkpoint.keep")
    if error.errno in _REFUSED:
        return NotAllowedError(
            f"{path}: {reason}; give this user (uid {os.getuid()}) read and write permission there, or choose another checkpoint.uri"
        )
    return TemporaryError(f"{path}: {reason}")


def _info(key: str, stat: os.stat_result) -> ObjectInfo:
    return ObjectInfo(
        key=key, size=stat.st_size, etag=f"{stat.st_ino:x}-{stat.st_mtime_ns:x}-{stat.st_size:x}", modified_unix_s=stat.st_mtime
    )


def _private(name: str) -> bool:
    return name.startswith((_TEMPORARY, _CLAIM, _LOCK))
