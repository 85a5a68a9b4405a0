"""Storage that stands still, told while it does: a save that waits for its storage is a stall and no hang, and the engine has to hear so.

Runs in a thread of its own on rank 0, because the loop itself may be what waits: at the end of a stage, or when no staging buffer is free.
"""

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from samite_workloads.checkpoint.results import Health

Tell = Callable[..., object]


class StorageWatch:
    """Tells `samite.storage.stall` once for each save that is not committed `limit_s` seconds after it began. A context manager."""

    def __init__(self, health: Callable[[], Health], tell: Tell, *, limit_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._health, self._tell, self._limit_s, self._clock = health, tell, limit_s, clock
        self._told_began_s = float("-inf")
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="storage-watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._stopping.set()
        self._thread.join(5.0)

    def look(self) -> None:
        """Tell of the oldest save that is pending, if it is over its limit and was not told of before."""
        health = self._health()
        if not health.pending or health.oldest_pending_s <= self._limit_s:
            return
        began_s = self._clock() - health.oldest_pending_s
        if began_s - self._told_began_s > 0.5:  # another save than the one that was told of: readings of one differ by milliseconds
            self._told_began_s = began_s
            self._tell("samite.storage.stall", storage_operation="put", duration=health.oldest_pending_s, retries=health.retries)

    def _run(self) -> None:
        while not self._stopping.wait(min(1.0, self._limit_s / 4)):
            self.look()
