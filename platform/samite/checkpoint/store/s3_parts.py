"""Parts of a large object sent at the same time: how many, how often, and what is done about one that does not arrive.

    Window     how many at once: doubles while that makes it faster, goes back when it does not, halves when storage says SlowDown; one for a store
    send_all   repeats a part by itself, so that one lost packet does not send a gigabyte again; sends a straggler a second time, the first copy wins

A second copy is harmless: it has the same number, the same bytes and the same checksum, and once the upload is complete storage knows it no more.
"""

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Generic, TypeVar

from samite.checkpoint.store.base import StorageFullError
from samite.checkpoint.store.retry import retry_watcher
from samite.errors import TemporaryError

T = TypeVar("T")

TRIES = 4
FIRST_PAUSE_S = 0.1
_BETTER = 1.4
_TRIED_AGAIN_S = 60.0
"""More parts at once that did not help are tried again after this long: the network may have changed."""
_LOOK_S = 0.25
_STRAGGLER_S = 2.0
"""A part is sent again when it has taken this long, and three times as long as the slowest that has arrived."""
_ARRIVED_BEFORE_HEDGE = 3


class Window:
    """How many parts may be under way. Thread-safe."""

    def __init__(self, first: int, most: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit = first
        self._clock = clock
        self._most = max(first, most)
        self._under_way, self._fullest = 0, 0
        self._arrived_bytes, self._arrived, self._began_s = 0, 0, clock()
        self._best_rate, self._best_limit = 0.0, first
        self._settled_until_s = 0.0
        self._condition = threading.Condition()

    def enter(self) -> None:
        """Wait for a place."""
        with self._condition:
            while self._under_way >= self.limit:
                self._condition.wait()
            if self._under_way == 0:
                self._begin_round()
            self._under_way += 1
            self._fullest = max(self._fullest, self._under_way)

    def leave(self, num_bytes: int) -> None:
        """A part has arrived, or failed (0 bytes)."""
        with self._condition:
            self._under_way -= 1
            self._arrived_bytes += num_bytes
            self._arrived += num_bytes > 0
            if self._arrived >= self.limit or (self._under_way == 0 and self._arrived > self.limit // 2):
                self._end_round()
            self._condition.notify(max(1, self.limit - self._under_way))

    def slow_down(self) -> None:
        """Storage asked for less."""
        with self._condition:
            self.limit = max(1, self.limit // 2)
            self._best_rate, self._best_limit = 0.0, self.limit
            self._settled_until_s = self._clock() + _TRIED_AGAIN_S
            self._begin_round()

    def _begin_round(self) -> None:
        self._arrived_bytes, self._arrived, self._began_s, self._fullest = 0, 0, self._clock(), self._under_way

    def _end_round(self) -> None:
        """As many parts as fit at once have arrived: compare with the best round so far. One that never filled the window says nothing."""
        now_s = self._clock()
        rate = self._arrived_bytes / max(now_s - self._began_s, 1e-6)
        if self._fullest > self.limit // 2 and now_s >= self._settled_until_s:
            if rate > self._best_rate * _BETTER:
                self._best_rate, self._best_limit = rate, self.limit
                self.limit = min(2 * self.limit, self._most)
            elif self.limit > self._best_limit:
                self.limit = self._best_limit
                self._settled_until_s = now_s + _TRIED_AGAIN_S
            else:
                self._best_rate = rate  # storage is slower, or as fast, at the same number: what more of them would bring is unknown again
                self.limit = min(2 * self.limit, self._most)
        self._begin_round()

    @property
    def most(self) -> int:
        """The largest limit."""
        return self._most


class PartSender(Generic[T]):
    """Sends parts 0 to `count` - 1 with `send`, which is told a part's number; `size` says how many bytes it has."""

    def __init__(self, window: Window, send: Callable[[int], T], size: Callable[[int], int]) -> None:
        self._on_retry = retry_watcher()
        self._window = window
        self._send = send
        self._size = size
        self._started_s: dict[int, float] = {}
        self._slowest_s = 0.0
        self._given_up = threading.Event()

    def send_all(self, count: int) -> list[T]:
        """The answers in order. Raises the first error that repeating did not cure; parts that were not begun are then left out."""
        pool = ThreadPoolExecutor(min(count, self._window.most), thread_name_prefix="samite-part")
        second = ThreadPoolExecutor(2, thread_name_prefix="samite-part-again")
        numbers: dict[Future[T], int] = {pool.submit(self._deliver, number): number for number in range(count)}
        answers: dict[int, T] = {}
        hedged: set[int] = set()
        try:
            pending = set(numbers)
            while len(answers) < count:
                done, pending = wait(pending, timeout=_LOOK_S, return_when=FIRST_COMPLETED)
                for future in done:
                    number = numbers[future]
                    if number in answers:
                        continue
                    error = future.exception()
                    if error is None:
                        answers[number] = future.result()
                    elif not any(numbers[other] == number for other in pending):
                        raise error
                for number in self._stragglers(answers, hedged):
                    hedged.add(number)
                    future = second.submit(self._send, number)
                    numbers[future] = number
                    pending.add(future)
        finally:
            self._given_up.set()
            pool.shutdown(wait=False, cancel_futures=True)
            second.shutdown(wait=False, cancel_futures=True)
        return [answers[number] for number in range(count)]

    def _deliver(self, number: int) -> T:
        pause_s = FIRST_PAUSE_S
        for attempt in range(TRIES):
            self._window.enter()
            began_s = self._started_s[number] = time.monotonic()
            arrived = 0
            try:
                answer = self._send(number)
                arrived = self._size(number)
                self._slowest_s = max(self._slowest_s, time.monotonic() - began_s)
                return answer
            except StorageFullError:
                raise
            except TemporaryError as error:
                if "SlowDown" in str(error) or " 503 " in str(error):
                    self._window.slow_down()
                if attempt == TRIES - 1 or self._given_up.is_set():
                    raise
                if self._on_retry is not None:
                    self._on_retry(error)
            finally:
                self._started_s.pop(number, None)
                self._window.leave(arrived)
            self._given_up.wait(pause_s * (0.5 + random.random() / 2))
            pause_s *= 3
        raise AssertionError("the last try returns or raises")

    def _stragglers(self, answers: dict[int, T], hedged: set[int]) -> list[int]:
        if len(answers) < _ARRIVED_BEFORE_HEDGE:
            return []
        late_s = max(_STRAGGLER_S, 3 * self._slowest_s)
        now_s = time.monotonic()
        return [
            number
            for number, began_s in list(self._started_s.items())
            if now_s - began_s > late_s and number not in hedged | answers.keys()
        ]
