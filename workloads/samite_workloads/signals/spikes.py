"""Loss and gradient norm that leave their band: six median absolute deviations above the median, several steps in a row.

Only upward: a loss that falls quickly is good news. Values outside the band do not enter it, until there are so many that they are the new
normal (a longer context, another mixture).
"""

import math
import statistics
from collections import deque
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Spike:
    """A value outside its band."""

    value: float
    median: float
    deviations: float
    """Distance from the median in median absolute deviations."""
    window: int
    """Steps in a row that were outside."""

    def attributes(self) -> dict[str, Any]:
        """Keywords for `samite.loss.spike` and `samite.grad.norm.spike`."""
        return {"value": self.value, "median": self.median, "deviation": self.deviations, "window": self.window}


class SpikeDetector:
    """One curve. `limit` median absolute deviations above the median for `in_a_row` values in a row is a spike, reported once."""

    def __init__(self, *, limit: float = 6.0, in_a_row: int = 3, window: int = 64, warm_up: int = 20, give_up: int = 50) -> None:
        self.limit = limit
        self.in_a_row = in_a_row
        self.warm_up = warm_up
        self.give_up = give_up
        self._band: deque[float] = deque(maxlen=window)
        self._outside: list[float] = []

    def update(self, value: float) -> Spike | None:
        """Look at the next value; NaN is ignored (the non-finite guard owns it), infinity counts as outside."""
        if math.isnan(value):
            return None
        if len(self._band) < self.warm_up:
            if math.isfinite(value):
                self._band.append(value)
            return None
        median = statistics.median(self._band)
        # A curve that hardly moves has a deviation near 0: one part in a thousand of the median is never a spike.
        deviation = max(statistics.median(abs(item - median) for item in self._band), 1e-3 * abs(median), 1e-12)
        deviations = (value - median) / deviation
        if deviations <= self.limit:
            self._outside.clear()
            self._band.append(value)
            return None
        self._outside.append(value)
        if len(self._outside) >= self.give_up:
            self.restart()
            return None
        if len(self._outside) != self.in_a_row:
            return None
        return Spike(value=value, median=median, deviations=deviations, window=self.in_a_row)

    def restart(self) -> None:
        """Forget the band: another stage, or a resumed run."""
        self._band.clear()
        self._outside.clear()
