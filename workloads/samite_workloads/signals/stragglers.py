"""Ranks that compute slower than the rest. Compute time leaves communication out: in a collective everybody waits for the slowest.

1.15 times the median for 50 steps is reported; acting on it needs hardware evidence and is the engine's decision.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Straggler:
    """A rank that has been slow for long enough."""

    rank: int
    ratio: float
    """Its compute time over the median of all ranks."""
    limit: float
    steps: int

    def attributes(self) -> dict[str, Any]:
        """Keywords for the event `samite.straggler.detected`."""
        return {"rank": self.rank, "value": self.ratio, "threshold": self.limit, "window": self.steps}


class StragglerRule:
    """Feed it the mean compute time of each rank over the last few steps."""

    def __init__(self, *, factor: float = 1.15, steps: int = 50) -> None:
        self.factor = factor
        self.steps = steps
        self._slow_steps: dict[int, int] = {}

    def update(self, compute_s_by_rank: Sequence[float], *, num_steps: int) -> tuple[float, list[Straggler]]:
        """The slowest rank over the median, and the ranks that became stragglers with these `num_steps` steps (each once until it recovers)."""
        # The lower median: of two ranks the faster one is the measure, or a rank of twice its time would stand at only 1.33 times the median.
        median = statistics.median_low(compute_s_by_rank) if compute_s_by_rank else 0.0
        if median <= 0.0 or len(compute_s_by_rank) < 2:
            return 1.0, []
        found = []
        for rank, seconds in enumerate(compute_s_by_rank):
            before = self._slow_steps.get(rank, 0)
            after = self._slow_steps[rank] = before + num_steps if seconds > self.factor * median else 0
            if before < self.steps <= after:
                found.append(Straggler(rank=rank, ratio=seconds / median, limit=self.factor, steps=after))
        return max(compute_s_by_rank) / median, found
