"""A folder that appears whole or not at all: built beside its final place and renamed, by one process at a time.

Used by `prepare` and by the cache of remote corpora. The staging folder is also the lock: whoever holds `flock` on it builds, everybody
else waits and then finds the result. A killed builder leaves only the staging folder, which the next one empties.
"""

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from samite_workloads.data.layout import CorpusError


@contextmanager
def staged(target: Path, is_done: Callable[[], bool], on_wait: Callable[[], None] = lambda: None) -> Iterator[Path | None]:
    """Yield an empty folder to fill, renamed to `target` when the block ends without an error; or None when `is_done()`.

    `is_done` is asked once the lock is held, so of several concurrent callers one builds. An existing `target` is replaced.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CorpusError(f"{target} was not made: cannot create its folder: {error}") from error
    staging = target.parent / f".{target.name}.preparing"
    descriptor = _lock(staging, on_wait)
    try:
        try:
            done = is_done()
        except BaseException:
            shutil.rmtree(staging, ignore_errors=True)
            raise
        if done:
            shutil.rmtree(staging)
            yield None
            return
        for leftover in staging.iterdir():
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
        try:
            yield staging
            _swap(staging, target)
        except OSError as error:
            shutil.rmtree(staging, ignore_errors=True)
            raise CorpusError(f"{target} was not made: {error}") from error
        except BaseException:
            shutil.rmtree(staging, ignore_errors=True)
            raise
    finally:
        os.close(descriptor)


def _lock(staging: Path, on_wait: Callable[[], None]) -> int:
    """Descriptor of `staging`, created if needed, with an exclusive lock that the folder's current inode carries."""
    told = False
    while True:
        try:
            staging.mkdir(exist_ok=True)
            descriptor = os.open(staging, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue  # renamed away by its builder between the two calls
        except OSError as error:
            raise CorpusError(f"cannot write to {staging.parent}: {error.strerror or error}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not told:
                on_wait()
                told = True
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            except BaseException:
                os.close(descriptor)
                raise
        if _is_same(descriptor, staging):
            return descriptor
        os.close(descriptor)


def _is_same(descriptor: int, path: Path) -> bool:
    try:
        found = path.stat()
    except FileNotFoundError:
        return False
    held = os.fstat(descriptor)
    return (found.st_ino, found.st_dev) == (held.st_ino, held.st_dev)


def _swap(staging: Path, target: Path) -> None:
    """Put `staging` in the place of `target`. Readers that have the old files mapped keep them."""
    for path in staging.rglob("*"):
        if path.is_file():
            with path.open("rb") as stream:
                os.fsync(stream.fileno())
    if target.exists():
        old = staging.with_name(f".{target.name}.replaced")
        shutil.rmtree(old, ignore_errors=True)
        target.rename(old)
        try:
            staging.rename(target)
        except BaseException:
            old.rename(target)
            raise
        shutil.rmtree(old, ignore_errors=True)
    else:
        staging.rename(target)
