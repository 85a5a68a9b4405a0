"""When the decay signals deserve an alarm, and when they do not.

An alarm needs one of four facts: products lost (`lossy_flushes` above the limit), a tile whose exponent overflowed (`tile_margin` below 0),
or a sustained rise of saturated gates or of memoryless heads. A product whose true value is below 1e-38 and flushes to zero is correct
arithmetic and wakes nobody, and neither do gates that sit at their floor from the start: nothing is lost that was there before.
"""

import statistics
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from samite_workloads.signals.decay import DecaySignals


class DecayCause(StrEnum):
    """The clause that fired."""

    LOSSY_FLUSH = "lossy_flush"
    TILE_OVERFLOW = "tile_overflow"
    GATE_SATURATION = "gate_saturation_trend"
    MEMORYLESS_HEADS = "memoryless_heads_trend"


@dataclass(frozen=True, kw_only=True, slots=True)
class DecayAlarm:
    """One alarm: the cause, and the evidence as the event carries it."""

    cause: DecayCause
    signals: DecaySignals
    value: float
    threshold: float

    def attributes(self) -> dict[str, Any]:
        """Keywords for the event `samite.decay.underflow`."""
        return {
            "decay_cause": self.cause,
            "layer_block": str(self.signals.layer),
            "decay_share": self.signals.underflow,
            "decay_lost": self.signals.lossy_flushes,
            "decay_exponent": self.signals.chunk_exponent_min,
            "decay_margin": self.signals.tile_margin,
            "value": self.value,
            "threshold": self.threshold,
        }


@dataclass(slots=True)
class Trend:
    """A share that rises and stays: the later half of the window lies `rise` above the earlier one, and above `level`.

    A constant is no trend, however high, and one outlier moves no median.
    """

    level: float
    rise: float = 0.05
    window: int = 12
    """Samples that are looked at; nothing is said before there are as many."""

    def holds(self, values: Iterable[float]) -> bool:
        """True if the newest `window` of `values` show it."""
        recent = list(values)[-self.window :]
        if len(recent) < self.window:
            return False
        earlier, later = recent[: self.window // 2], recent[self.window // 2 :]
        return statistics.median(later) > self.level and statistics.median(later) - statistics.median(earlier) >= self.rise


class DecayRule:
    """Feed it each sampled step; it returns the alarms that are new. An alarm repeats only after its fact was gone for a whole window."""

    def __init__(self, *, lossy_limit: int = 0, saturation: Trend | None = None, memoryless: Trend | None = None) -> None:
        self.lossy_limit = lossy_limit
        self.saturation = saturation or Trend(level=0.2)
        self.memoryless = memoryless or Trend(level=0.1)
        self._history: dict[tuple[int, DecayCause], deque[float]] = {}
        self._quiet: dict[tuple[int, DecayCause], int] = {}
        """Samples since the fact was last seen, for alarms that were raised."""

    def update(self, signals: Iterable[DecaySignals]) -> list[DecayAlarm]:
        """The alarms of this sample, one for each layer and cause."""
        return [alarm for layer in signals for alarm in self._facts(layer) if self._is_new(alarm)]

    def restart(self) -> None:
        """Forget trends and raised alarms: another stage, another context length."""
        self._history.clear()
        self._quiet.clear()

    def _facts(self, layer: DecaySignals) -> list[DecayAlarm]:
        for key in self._quiet:
            if key[0] == layer.layer:
                self._quiet[key] += 1
        facts = []
        if layer.lossy_flushes > self.lossy_limit:
            facts.append(DecayAlarm(cause=DecayCause.LOSSY_FLUSH, signals=layer, value=layer.lossy_flushes, threshold=self.lossy_limit))
        if not layer.tile_margin >= 0:
            facts.append(DecayAlarm(cause=DecayCause.TILE_OVERFLOW, signals=layer, value=layer.tile_margin, threshold=0.0))
        for cause, value, trend in (
            (DecayCause.GATE_SATURATION, layer.gate_saturated, self.saturation),
            (DecayCause.MEMORYLESS_HEADS, layer.memoryless_heads, self.memoryless),
        ):
            history = self._history.setdefault((layer.layer, cause), deque(maxlen=trend.window))
            history.append(value)
            if trend.holds(history):
                facts.append(DecayAlarm(cause=cause, signals=layer, value=value, threshold=trend.level))
        return facts

    def _is_new(self, alarm: DecayAlarm) -> bool:
        key = (alarm.signals.layer, alarm.cause)
        quiet = self._quiet.get(key)
        self._quiet[key] = 0
        return quiet is None or quiet > self.saturation.window
