"""Loss and gradient norm that leave their band: six median absolute deviations above the median, several steps in a row.

Only upward: a loss that falls quickly is good news. Values outside the band do not enter it, until there are so many that they are the new
normal (a longer context, another mixture).
"""

import math
import statistics
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from samite_workloads.signals.step import StepMeasure


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

    @property
    def outside(self) -> bool:
        """Whether the last value was outside the band."""
        return bool(self._outside)

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Excursion:
    """A curve that left its band, with the evidence: when it began, on which rows, and which layer's gradient grew most."""

    kind: str
    """LossSpike | GradNormSpike"""
    spike: Spike
    first_step: int
    step: int
    rows: tuple[int, int] | None
    """Half-open range of global data rows of all steps outside; None if they are not known."""
    layer: str = ""
    layer_growth: float = 0.0
    """The layer's gradient norm over what it was in the last step inside the band; 0 if nothing is known of layers."""

    @property
    def name(self) -> str:
        """Of the event."""
        return "samite.loss.spike" if self.kind == "LossSpike" else "samite.grad.norm.spike"

    @property
    def message(self) -> str:
        """In one sentence."""
        what, spike = "loss" if self.kind == "LossSpike" else "gradient norm", self.spike
        rows = f"; data rows {self.rows[0]} to {self.rows[1]}" if self.rows else ""
        layer = f"; layer {self.layer} grew most, {self.layer_growth:.3g} times" if self.layer else ""
        return f"steps {self.first_step} to {self.step}: {what} {spike.value:.4g} where {spike.median:.4g} is usual{layer}{rows}"

    def attributes(self) -> dict[str, Any]:
        """Keywords for its event."""
        layer = {"layer_block": self.layer, "layer_growth": self.layer_growth} if self.layer else {}
        rows = {"data_window": list(self.rows)} if self.rows else {}
        return {**self.spike.attributes(), **rows, **layer, "step_index": self.step, "step_first": self.first_step}


class Bands:
    """Loss and gradient norm of one attempt. Every rank that asks the same numbers gets the same answer."""

    def __init__(self, *, grad_norm_mads: float = 6.0) -> None:
        self._detectors = {"LossSpike": SpikeDetector(), "GradNormSpike": SpikeDetector(limit=grad_norm_mads)}
        self._steps: deque[StepMeasure] = deque(maxlen=self._detectors["LossSpike"].in_a_row)
        self._usual: Mapping[str, float] = {}

    def update(self, measure: StepMeasure) -> list[Excursion]:
        """Curves that are out of their band for long enough with this step, each once."""
        found = []
        self._steps.append(measure)
        values = {"LossSpike": measure.loss, "GradNormSpike": measure.grad_norms.get("global")}
        for kind, value in values.items():
            spike = None if value is None else self._detectors[kind].update(value)
            if spike is not None:
                found.append(self._excursion(kind, spike))
        if not any(detector.outside for detector in self._detectors.values()):
            self._usual = measure.grad_norms_by_layer
        return found

    def _excursion(self, kind: str, spike: Spike) -> Excursion:
        first, last = self._steps[0], self._steps[-1]
        growth = {layer: norm / self._usual[layer] for layer, norm in last.grad_norms_by_layer.items() if self._usual.get(layer)}
        layer = max(growth, key=lambda name: growth[name], default="")
        known = first.data_window is not None and last.data_window is not None
        return Excursion(
            kind=kind,
            spike=spike,
            first_step=first.step,
            step=last.step,
            rows=(first.data_window[0], last.data_window[1]) if known and first.data_window and last.data_window else None,
            layer=layer,
            layer_growth=growth.get(layer, 0.0),
        )
