"""Repeat what may succeed on repetition, with growing jittered pauses, until a deadline. Refusals, facts and full disks pass at once."""

import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from samite.checkpoint.checksum import Buffer, Checksum
from samite.checkpoint.store.base import ObjectInfo, StorageFullError, Store
from samite.errors import TemporaryError

T = TypeVar("T")

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 10.0


_watching = threading.local()


def retry_watcher() -> Callable[[TemporaryError], None] | None:
    """Who wants to hear of repetitions in this thread's call: for a store that repeats parts of it by itself."""
    return getattr(_watching, "on_retry", None)


class RetryingStore:
    """`inner`, with every call repeated on TemporaryError until `deadline_s` on the monotonic clock.

    `on_retry` is told each error that is about to be retried; it may come from several threads.
    """

    def __init__(self, inner: Store, deadline_s: float, *, on_retry: Callable[[TemporaryError], None] | None = None) -> None:
        self._inner = inner
        self._deadline_s = deadline_s
        self._on_retry = on_retry

    @property
    def uri(self) -> str:
        """Canonical URI."""
        return self._inner.uri

    def get(self, key: str) -> bytes:
        """Whole content."""
        return self._repeat(lambda: self._inner.get(key))

    def read_into(self, key: str, offset: int, target: memoryview) -> None:
        """Fill `target` from `offset`."""
        self._repeat(lambda: self._inner.read_into(key, offset, target))

    def put(self, key: str, data: Buffer, *, crc64: Checksum | None = None) -> None:
        """Write or replace."""
        self._repeat(lambda: self._inner.put(key, data, crc64=crc64))

    def put_if_absent(self, key: str, data: Buffer) -> bool:
        """Create once; a repetition whose first try did succeed finds its own content and answers True."""
        return self._repeat(lambda: self._inner.put_if_absent(key, data))

    def compare_and_swap(self, key: str, data: Buffer, expected_etag: str | None) -> bool:
        """Replace if unchanged."""
        return self._repeat(lambda: self._inner.compare_and_swap(key, data, expected_etag))

    def head(self, key: str) -> ObjectInfo | None:
        """Facts about one object."""
        return self._repeat(lambda: self._inner.head(key))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Objects below `prefix`."""
        return iter(self._repeat(lambda: list(self._inner.list(prefix))))

    def children(self, prefix: str) -> Iterator[str]:
        """Names directly below `prefix`."""
        return iter(self._repeat(lambda: list(self._inner.children(prefix))))

    def delete(self, keys: Iterable[str]) -> None:
        """Remove objects."""
        kept = tuple(keys)
        self._repeat(lambda: self._inner.delete(kept))

    def sweep(self, older_than_s: float) -> int:
        """Remove leftovers."""
        return self._repeat(lambda: self._inner.sweep(older_than_s))

    def _repeat(self, call: Callable[[], T]) -> T:
        pause_s = FIRST_PAUSE_S
        while True:
            outer = retry_watcher()
            _watching.on_retry = self._on_retry or outer
            try:
                return call()
            except StorageFullError:
                raise
            except TemporaryError as error:
                wait_s = pause_s * (0.5 + random.random() / 2)
                if time.monotonic() + wait_s >= self._deadline_s:
                    raise
                if self._on_retry is not None:
                    self._on_retry(error)
                time.sleep(wait_s)
                pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
            finally:
                _watching.on_retry = outer
