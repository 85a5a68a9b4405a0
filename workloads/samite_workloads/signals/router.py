"""Expert load against what chance alone would show, and the rule for a router that collapses.

MaxVio (largest load over mean load, minus 1) is never judged alone: with q tokens per expert and n experts a perfectly balanced router shows
about sqrt(2 ln n / q), so small batches look unbalanced.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from samite.telemetry.records import Point


@dataclass(frozen=True, kw_only=True, slots=True)
class RouterSignals:
    """One MoE layer on one step, over all ranks and micro-batches."""

    layer: int
    loads: tuple[int, ...]
    """Tokens that each expert got."""
    entropy: float | None = None
    """Mean entropy of a token's normalised scores in nats, on sampled steps."""
    logit_max: float | None = None

    @property
    def mean_load(self) -> float:
        """q: tokens per expert."""
        return sum(self.loads) / max(1, len(self.loads))

    @property
    def maxvio(self) -> float:
        """Largest load over mean load, minus 1; 0 for a step without tokens."""
        return max(self.loads) / self.mean_load - 1.0 if self.mean_load else 0.0

    @property
    def maxvio_floor(self) -> float:
        """What chance alone shows: sqrt(2 ln n / q)."""
        return math.sqrt(2.0 * math.log(len(self.loads)) / self.mean_load) if self.mean_load else 0.0

    @property
    def load_cv(self) -> float:
        """Standard deviation of the loads over their mean."""
        return statistics.pstdev(self.loads) / self.mean_load if self.mean_load else 0.0

    @property
    def idle(self) -> int:
        """Experts without any token."""
        return sum(load == 0 for load in self.loads)

    @property
    def idle_by_chance(self) -> float:
        """How many experts a balanced router would leave without any token: n e^-q."""
        return len(self.loads) * math.exp(-self.mean_load)

    def points(self) -> list[Point]:
        """Its metrics."""
        block = {"samite.layer.block": str(self.layer)}
        points = [
            Point("samite.moe.expert.load.cv", self.load_cv, block),
            Point("samite.moe.expert.load.maxvio", self.maxvio, block),
            Point("samite.moe.expert.load.maxvio_floor", self.maxvio_floor, block),
            Point("samite.moe.expert.idle.count", self.idle, block),
        ]
        if self.entropy is not None:
            points.append(Point("samite.moe.router.entropy", self.entropy, block))
        if self.logit_max is not None:
            points.append(Point("samite.moe.router.logit.max", self.logit_max, block))
        return points


def router_signals(
    loads_by_layer: Iterable[Sequence[int]], layers: Sequence[int], *, entropy: Sequence[float] = (), logit_max: Sequence[float] = ()
) -> list[RouterSignals]:
    """Signals of all MoE layers; `layers` names the layer of each row. `entropy` and `logit_max` are given on sampled steps only."""
    rows = [tuple(int(load) for load in row) for row in loads_by_layer]
    return [
        RouterSignals(
            layer=layer,
            loads=row,
            entropy=entropy[index] if index < len(entropy) else None,
            logit_max=logit_max[index] if index < len(logit_max) else None,
        )
        for index, (layer, row) in enumerate(zip(layers, rows, strict=True))
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class Collapse:
    """A layer whose router collapsed, as the event carries it."""

    signals: RouterSignals

    def attributes(self) -> dict[str, Any]:
        """Keywords for the event `samite.moe.expert.collapse`."""
        return {"layer_block": str(self.signals.layer), "experts_idle": self.signals.idle, "experts_cv": self.signals.load_cv}


class CollapseRule:
    """Far more idle experts than chance leaves, or loads that vary by more than `cv_limit` beyond chance, for `samples` samples in a row."""

    def __init__(self, *, cv_limit: float = 1.5, samples: int = 5) -> None:
        self.cv_limit = cv_limit
        self.samples = samples
        self._in_a_row: dict[int, int] = {}

    def update(self, layers: Iterable[RouterSignals]) -> list[Collapse]:
        """Layers whose collapse is confirmed with this sample; each is reported once until it recovers."""
        found = []
        for layer in layers:
            bad = layer.mean_load > 0 and (self._too_idle(layer) or self._too_uneven(layer))
            count = self._in_a_row[layer.layer] = self._in_a_row.get(layer.layer, 0) + 1 if bad else 0
            if count == self.samples:
                found.append(Collapse(signals=layer))
        return found

    def _too_idle(self, layer: RouterSignals) -> bool:
        chance = layer.idle_by_chance
        return layer.idle > chance + 4.0 * math.sqrt(chance) + 0.5

    def _too_uneven(self, layer: RouterSignals) -> bool:
        return layer.load_cv > self.cv_limit + 1.0 / math.sqrt(layer.mean_load)
