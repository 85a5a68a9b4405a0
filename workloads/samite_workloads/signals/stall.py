"""Storage operations that take too long, told apart from hangs: a save in progress whose storage does not answer is a stall, not a dead rank."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Stall:
    """An operation over its limit."""

    operation: str
    seconds: float
    retries: int

    def attributes(self) -> dict[str, Any]:
        """Keywords for the event `samite.storage.stall`."""
        return {"storage_operation": self.operation, "duration": self.seconds, "retries": self.retries}


@dataclass(slots=True)
class _Running:
    since_s: float
    retries: int = 0
    told: bool = False


class StallWatch:
    """Knows which storage operations are running. `check` is cheap: call it with every step; each stall is reported once."""

    def __init__(self, *, limit_s: float = 60.0, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit_s = limit_s
        self._clock = clock
        self._running: dict[str, _Running] = {}

    def begin(self, operation: str) -> None:
        """`operation` (put, get, multipart...) starts now."""
        self._running.setdefault(operation, _Running(self._clock()))

    def retry(self, operation: str) -> None:
        """`operation` failed and is tried again."""
        if operation in self._running:
            self._running[operation].retries += 1

    def end(self, operation: str) -> None:
        """`operation` is over."""
        self._running.pop(operation, None)

    def check(self) -> list[Stall]:
        """Operations that crossed the limit since the last call."""
        now_s = self._clock()
        late = [(name, running) for name, running in self._running.items() if not running.told and now_s - running.since_s > self.limit_s]
        for _, running in late:
            running.told = True
        return [Stall(operation=name, seconds=now_s - running.since_s, retries=running.retries) for name, running in late]
