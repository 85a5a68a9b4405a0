"""Runs a producer one or two items ahead in one background thread; its errors surface in the consumer, and closing it leaves nothing behind."""

import queue
import threading
import time
import weakref
from collections.abc import Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")
_POLL_S = 0.1


class Prefetcher(Generic[Item]):
    """Calls `produce` over and over in a thread and hands out the results in order. `wait_s` is the time the consumer spent waiting."""

    def __init__(self, produce: Callable[[], Item], *, depth: int = 2) -> None:
        self.wait_s = 0.0
        self._queue: queue.Queue[Item | _Failure] = queue.Queue(maxsize=depth)
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        # The thread knows the queue and the stop sign, not this object: dropping the last reference stops it too.
        self._thread = threading.Thread(target=_run, args=(produce, self._queue, self._stop), name="samite-data", daemon=True)
        self._finalizer = weakref.finalize(self, self._stop.set)
        self._thread.start()

    def get(self) -> Item:
        """The next item. Raises what `produce` raised, again on every further call."""
        if self._failure is not None:
            raise self._failure
        started_s = time.monotonic()
        try:
            while True:
                try:
                    item = self._queue.get(timeout=_POLL_S)
                    break
                except queue.Empty:
                    if self._stop.is_set():
                        raise RuntimeError("the data loader was closed; build a new one from its cursor") from None
        finally:
            self.wait_s += time.monotonic() - started_s
        if isinstance(item, _Failure):
            self._failure = item.error
            raise item.error
        return item

    def close(self, timeout_s: float = 10.0) -> None:
        """Stop the thread and wait for it. May be called twice, and from the thread of another call to `get`."""
        self._finalizer()
        self._thread.join(timeout=timeout_s)


class _Failure:
    def __init__(self, error: BaseException) -> None:
        self.error = error


def _run(produce: "Callable[[], Item]", items: "queue.Queue[Item | _Failure]", stop: threading.Event) -> None:
    while not stop.is_set():
        try:
            item: Item | _Failure = produce()
        except BaseException as error:  # noqa: BLE001  handed to the consumer, which raises it
            item = _Failure(error)
        while not stop.is_set():
            try:
                items.put(item, timeout=_POLL_S)
                break
            except queue.Full:
                continue
        if isinstance(item, _Failure):
            return
