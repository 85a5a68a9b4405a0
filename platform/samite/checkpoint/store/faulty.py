"""A store that fails on command: the faults of real storage, by rule, for tests, drills and `samite chaos`.

    store = FaultyStore(open_store(uri), [Fault("put", "*/data/*", Action.UNAVAILABLE, times=6)])

Wraps any store. Faults fire in order of the list, each on the calls it matches; `store.calls` records every operation.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import TypeVar

from samite.checkpoint.checksum import Buffer, Checksum
from samite.checkpoint.store.base import ObjectInfo, StorageFullError, Store
from samite.errors import NotAllowedError, TemporaryError

T = TypeVar("T")


class Action(StrEnum):
    """What goes wrong."""

    UNAVAILABLE = "unavailable"
    """503: nothing is done, the caller may try again."""
    SLOW = "slow"
    """Done, but only after `seconds`."""
    STALL = "stall"
    """No answer for `seconds`, or until `clear`; then done."""
    FULL = "full"
    """Disk or quota full: nothing is done."""
    FORBIDDEN = "forbidden"
    """403: nothing is done."""
    TORN = "torn"
    """Half of the bytes are stored under the key, and the caller is told that it failed."""
    LOST_REPLY = "lost_reply"
    """Done, but the caller is told that it failed."""
    KILL_BEFORE = "kill_before"
    """SIGKILL of this process instead of the operation."""
    KILL_AFTER = "kill_after"
    """SIGKILL of this process right after the operation."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One rule. `operation` is a method's name or `*`, `key` a pattern; the first `skip` matches pass, then `times` fail (None: all)."""

    operation: str
    key: str
    action: Action
    skip: int = 0
    times: int | None = None
    seconds: float = 0.0


class FaultyStore:
    """`inner` with faults. Thread-safe; a fault's counts are over all threads."""

    def __init__(self, inner: Store, faults: Iterable[Fault] = ()) -> None:
        self.inner = inner
        self.calls: list[tuple[str, str]] = []
        self._lock = threading.Lock()
        self._faults: list[Fault] = []
        self._seen: dict[int, int] = {}
        self._released = threading.Event()
        self.add(*faults)

    @property
    def uri(self) -> str:
        """URI of the inner store."""
        return self.inner.uri

    def add(self, *faults: Fault) -> None:
        """Add rules; counting starts now."""
        with self._lock:
            self._faults += faults

    def clear(self) -> None:
        """Remove all rules and let stalled calls go on."""
        with self._lock:
            self._faults.clear()
            self._seen.clear()
            released, self._released = self._released, threading.Event()
        released.set()

    def get(self, key: str) -> bytes:
        """Whole content."""
        return self._do("get", key, lambda: self.inner.get(key))

    def read_into(self, key: str, offset: int, target: memoryview) -> None:
        """Fill `target` from `offset`."""
        self._do("read_into", key, lambda: self.inner.read_into(key, offset, target))

    def put(self, key: str, data: Buffer, *, crc64: Checksum | None = None) -> None:
        """Write or replace."""
        self._do("put", key, lambda: self.inner.put(key, data, crc64=crc64), data)

    def put_if_absent(self, key: str, data: Buffer) -> bool:
        """Create once."""
        return self._do("put_if_absent", key, lambda: self.inner.put_if_absent(key, data), data)

    def compare_and_swap(self, key: str, data: Buffer, expected_etag: str | None) -> bool:
        """Replace if unchanged."""
        return self._do("compare_and_swap", key, lambda: self.inner.compare_and_swap(key, data, expected_etag), data)

    def head(self, key: str) -> ObjectInfo | None:
        """Facts about one object."""
        return self._do("head", key, lambda: self.inner.head(key))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Objects below `prefix`."""
        return iter(self._do("list", prefix, lambda: tuple(self.inner.list(prefix))))

    def children(self, prefix: str) -> Iterator[str]:
        """Names directly below `prefix`."""
        return iter(self._do("children", prefix, lambda: tuple(self.inner.children(prefix))))

    def delete(self, keys: Iterable[str]) -> None:
        """Remove objects, one operation each."""
        for key in keys:
            self._do("delete", key, lambda key=key: self.inner.delete([key]))  # type: ignore[misc]

    def sweep(self, older_than_s: float) -> int:
        """Remove leftovers."""
        return self._do("sweep", "", lambda: self.inner.sweep(older_than_s))

    def _do(self, operation: str, key: str, call: Callable[[], T], data: Buffer | None = None) -> T:
        fault, released = self._match(operation, key)
        if fault is None:
            return call()
        where = f"{self.uri}/{key}"
        match fault.action:
            case Action.UNAVAILABLE:
                raise TemporaryError(f"{where}: storage answered 503 SlowDown (injected)")
            case Action.FULL:
                raise StorageFullError(f"{where}: no space left on device (injected); nothing was replaced")
            case Action.FORBIDDEN:
                raise NotAllowedError(f"{where}: refused (403 AccessDenied, injected); these credentials need {operation}")
            case Action.SLOW | Action.STALL:
                released.wait(fault.seconds or None)
                return call()
            case Action.TORN:
                if data is not None:
                    self.inner.put(key, bytes(data)[: len(data) // 2])
                raise TemporaryError(f"{where}: the connection was reset half way (injected)")
            case Action.LOST_REPLY:
                call()
                raise TemporaryError(f"{where}: the answer was lost (injected)")
            case Action.KILL_BEFORE:
                os.kill(os.getpid(), signal.SIGKILL)
            case Action.KILL_AFTER:
                call()
                os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("this process was killed above")

    def _match(self, operation: str, key: str) -> tuple[Fault | None, threading.Event]:
        with self._lock:
            self.calls.append((operation, key))
            for number, fault in enumerate(self._faults):
                if fault.operation not in {"*", operation} or not fnmatchcase(key, fault.key):
                    continue
                seen = self._seen[number] = self._seen.get(number, 0) + 1
                if seen > fault.skip and (fault.times is None or seen <= fault.skip + fault.times):
                    return fault, self._released
            return None, self._released
