"""Progress as liveness: each rank replaces one small file at every step and phase change.

The engine reads ages from `monotonic_s`, which all processes of a machine share, and judges a rank by how long its step stands still; a
blocked training function is invisible to Ray. On SIGUSR1 a rank writes the stacks of all its threads, for the bundle of a hang.
"""

import faulthandler
import signal
import statistics
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from samite.spec.attempt import Heartbeat
from samite.spec.beacon import Beacon

_MEDIAN_OVER_STEPS = 21


class HeartbeatFile:
    """Writes `heartbeats/rank-<r>.json`. Owned by the training thread; one write costs about 0.1 ms and never blocks on a disk flush."""

    def __init__(
        self, folder: Path, *, rank: int, node: str, pid: int, submission_id: str, incarnation: int = 0, beacon: Beacon | None = None
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"rank-{rank}.json"
        self._identity = {"rank": rank, "node": node, "pid": pid, "submission_id": submission_id}
        self._beacon = beacon
        self.incarnation = incarnation
        self._durations_s: deque[float] = deque(maxlen=_MEDIAN_OVER_STEPS)
        self._compute_s: deque[float] = deque(maxlen=_MEDIAN_OVER_STEPS)
        self._rates: deque[tuple[float, int]] = deque(maxlen=_MEDIAN_OVER_STEPS)
        self.phase = "starting"
        self.step = 0
        self.stage_step = 0
        self.tokens = 0
        self.loss = float("nan")
        self.checkpoint_step = -1
        self.save_s = self.save_stall_s = 0.0

    def enter(self, phase: str) -> None:
        """A phase begins: starting | loading | first_step | training | evaluating | saving | finishing."""
        self.phase = phase
        self.write()

    def finish_step(self, *, step: int, stage_step: int, tokens: int, duration_s: float, compute_s: float, loss: float) -> None:
        """An optimizer step is done; `tokens` is the run's global count, `duration_s` the step's wall time on this rank, `compute_s` the part of it
        that was this rank's own work."""
        self.step, self.stage_step, self.tokens, self.loss = step, stage_step, tokens, loss
        self._durations_s.append(duration_s)
        self._compute_s.append(compute_s)
        self._rates.append((time.monotonic(), tokens))
        self.write()

    def write(self) -> None:
        """Replace the file now."""
        beat = Heartbeat(
            **self._identity,  # type: ignore[arg-type]
            incarnation=self.incarnation,
            step=self.step,
            tokens=self.tokens,
            phase=self.phase,
            monotonic_s=time.monotonic(),
            time_unix_s=time.time(),
            step_median_s=statistics.median(self._durations_s) if self._durations_s else 0.0,
            tokens_per_s=self._tokens_per_s(),
            loss=self.loss,
            stage_step=self.stage_step,
            checkpoint_step=self.checkpoint_step,
            save_s=self.save_s,
            save_stall_s=self.save_stall_s,
            compute_s=statistics.median(self._compute_s) if self._compute_s else 0.0,
        )
        beat.write(self._path)
        if self._beacon is not None:
            self._beacon.send(step=beat.step, compute_s=beat.compute_s)

    def _tokens_per_s(self) -> float:
        if len(self._rates) < 2:
            return 0.0
        (first_s, first_tokens), (last_s, last_tokens) = self._rates[0], self._rates[-1]
        return (last_tokens - first_tokens) / max(last_s - first_s, 1e-9)


@contextmanager
def stacks_on_signal(path: Path) -> Iterator[None]:
    """Inside, SIGUSR1 appends the stacks of all threads to `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as stacks:
        faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True, chain=False)
        try:
            yield
        finally:
            faulthandler.unregister(signal.SIGUSR1)
