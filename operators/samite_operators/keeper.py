"""Who has the next turn: one at a time for each run, several runs at a time, sooner when something has changed.

A change wakes its run; without one a turn comes when the last turn said. A run that is woken while it has its turn gets another one afterwards.
"""

import heapq
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from samite_operators.instruments import Instruments
from samite_operators.liveness import Vitals
from samite_operators.run_state import Next

_logger = logging.getLogger(__name__)
Key = tuple[str, str]
"""(namespace, name)"""
GATHER_S = 0.1
"""A change waits this long for others that come with it: the pods of a cluster change together."""


class Keeper:
    """Schedules turns. `wake` may be called from any thread."""

    def __init__(
        self,
        take: Callable[[str, str], Next],
        *,
        instruments: Instruments,
        vitals: Vitals,
        workers: int = 20,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._take, self._instruments, self._vitals, self._clock = take, instruments, vitals, clock
        self._condition = threading.Condition()
        self._due: dict[Key, float] = {}
        self._queue: list[tuple[float, Key]] = []
        self._running: set[Key] = set()
        self._again: dict[Key, float] = {}
        self._stopping = False
        self._pool = ThreadPoolExecutor(max_workers=workers, thread_name_prefix="turn")
        self._thread = threading.Thread(target=self._run, name="keeper", daemon=True)

    def start(self) -> None:
        """Begin to give turns."""
        self._thread.start()

    def stop(self, *, patience_s: float = 20.0) -> bool:
        """Give no more turns and wait for those that are on, at most `patience_s`. True if all have ended."""
        with self._condition:
            self._stopping = True
            self._condition.notify_all()
            ended = self._condition.wait_for(lambda: not self._running, timeout=patience_s)
        self._thread.join(timeout=1.0)
        self._pool.shutdown(wait=False, cancel_futures=True)
        return ended

    def wake(self, namespace: str, name: str, *, in_s: float = GATHER_S) -> None:
        """The run should have a turn in `in_s` seconds, or sooner if it was due sooner."""
        key = (namespace, name)
        at_s = self._clock() + in_s
        with self._condition:
            if key in self._running:
                self._again[key] = min(at_s, self._again.get(key, at_s))
            else:
                self._schedule(key, at_s)

    @property
    def runs(self) -> int:
        """Runs that have a turn ahead or on."""
        with self._condition:
            return len(self._due.keys() | self._running)

    def _schedule(self, key: Key, at_s: float) -> None:
        if at_s < self._due.get(key, float("inf")):
            self._due[key] = at_s
            heapq.heappush(self._queue, (at_s, key))
            self._condition.notify_all()

    def _run(self) -> None:
        while True:
            with self._condition:
                found = self._next()
                if found is None:
                    return
                key, due_s = found
                self._running.add(key)
            self._vitals.is_due(_text(key))
            self._pool.submit(self._give, key, due_s)

    def _next(self) -> tuple[Key, float] | None:
        """Wait for the next run that is due. None when stopping. The condition is held."""
        while not self._stopping:
            while self._queue and self._due.get(self._queue[0][1]) != self._queue[0][0]:
                heapq.heappop(self._queue)  # was woken sooner since
            now_s = self._clock()
            if self._queue and self._queue[0][0] <= now_s:
                due_s, key = heapq.heappop(self._queue)
                del self._due[key]
                return key, due_s
            self._condition.wait(min(self._queue[0][0] - now_s, 1.0) if self._queue else 1.0)
        return None

    def _give(self, key: Key, due_s: float) -> None:
        self._vitals.turn_begins(_text(key))
        following = Next(in_s=5.0, outcome="error")
        try:
            following = self._take(*key)
        except Exception:
            _logger.exception("turn of %s", _text(key))
        finally:
            self._vitals.turn_ends(_text(key))
            self._instruments.record("samite.operator.reconcile.duration", self._clock() - due_s)
            self._after(key, following)

    def _after(self, key: Key, following: Next) -> None:
        with self._condition:
            self._running.discard(key)
            woken_s = self._again.pop(key, None)
            times = [at_s for at_s in (woken_s, None if following.in_s is None else self._clock() + following.in_s) if at_s is not None]
            if times:
                self._schedule(key, min(times))
            else:
                self._vitals.forget(_text(key))
            self._condition.notify_all()


def _text(key: Key) -> str:
    return f"{key[0]}/{key[1]}"
