"""Slow reads (storage, driver logs) beside the turn: a turn takes the last answer and never waits for the next one."""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from samite.errors import SamiteError

_logger = logging.getLogger(__name__)


class Background:
    """Answers by key, each asked for by at most one thread at a time."""

    def __init__(self, *, threads: int = 8, clock: Callable[[], float] = time.monotonic) -> None:
        self._pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="kuberay")
        self._clock = clock
        self._lock = threading.Lock()
        self._answers: dict[str, tuple[Any, float]] = {}
        self._under_way: dict[str, Future[None]] = {}

    def close(self) -> None:
        """Ask for nothing more."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def ask(self, key: str, work: Callable[[], Any], *, every_s: float) -> Any:
        """The last answer of `work` for this key, None before the first; asks again when the answer is older than `every_s`."""
        with self._lock:
            answer, at_s = self._answers.get(key, (None, -1e9))
            running = self._under_way.get(key)
            if self._clock() - at_s >= every_s and (running is None or running.done()):
                self._under_way[key] = self._pool.submit(self._run, key, work)
            return answer

    def once(self, key: str, work: Callable[[], object], *, wait_s: float) -> bool:
        """Do `work`, unless the same key is still being done; waits for it up to `wait_s`. False while it goes on. Raises what it raised."""
        with self._lock:
            running = self._under_way.get(key)
            if running is None or running.done():
                running = self._under_way[key] = self._pool.submit(_discard, work)
        try:
            running.result(timeout=wait_s)
        except TimeoutError:
            return False
        return True

    def forget(self, prefix: str) -> None:
        """Drop every answer whose key begins with `prefix`."""
        with self._lock:
            self._answers = {key: value for key, value in self._answers.items() if not key.startswith(prefix)}
            self._under_way = {key: value for key, value in self._under_way.items() if not key.startswith(prefix)}

    def _run(self, key: str, work: Callable[[], Any]) -> None:
        try:
            answer = work()
        except SamiteError as error:
            # Silence is not an answer: what was known stays, and is asked for again after its time.
            _logger.info("%s: %s", key, error)
            answer = self._answers.get(key, (None, 0.0))[0]
        with self._lock:
            self._answers[key] = (answer, self._clock())


def _discard(work: Callable[[], object]) -> None:
    work()
