"""Scales and ticks of a chart axis: pure arithmetic."""

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps [low, high] to [0, 1], linearly or by logarithm."""

    low: float
    high: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Position of `value`; outside [0, 1] if it is outside the range."""
        if self.log:
            value = max(value, self.low * 1e-3)
            return (math.log(value) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        return (value - self.low) / (self.high - self.low)

    def ticks(self, about: int = 5, *, binary: bool = False) -> list[float]:
        """Round numbers inside the range; with `binary`, round in KiB, MiB and so on."""
        if self.log:
            return _log_ticks(self.low, self.high)
        unit = 1024.0 ** math.floor(math.log(self.high, 1024)) if binary and self.high >= 1 else 1.0
        return [tick * unit for tick in _linear_ticks(self.low / unit, self.high / unit, about)]


def scale_for(values: Iterable[float], *, zero: bool = False, log: bool = False, whole: bool = False) -> Scale:
    """A scale that shows the finite ones of `values` with a little air. `log` holds only if all are positive and span more than a decade."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return Scale(0.0, 1.0)
    low, high = min(finite), max(finite)
    if log and low > 0 and high / low > 10:
        return Scale(low / 1.15, high * 1.15, log=True)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if high - low <= 1e-12 * max(abs(high), abs(low), 1e-300):
        pad = abs(high) * 0.1 or 1.0
        return Scale(low - (0.0 if zero and low == 0 else pad), high + pad)
    if whole:
        return Scale(low, high)
    air = 0.06 * (high - low)
    return Scale(low if zero and low == 0 else low - air, high + air)


def _linear_ticks(low: float, high: float, about: int) -> list[float]:
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1.0, 2.0, 5.0) if len(decades) <= 4 else (1.0,)
    every = max(1, len(decades) // 5)
    ticks = [factor * 10.0**decade for decade in decades if decade % every == 0 for factor in factors]
    return [tick for tick in ticks if low <= tick <= high]
