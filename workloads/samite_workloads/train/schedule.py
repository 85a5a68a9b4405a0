"""Learning rate over a run, as a pure function of progress.

Default: linear warm-up over 1 % of the steps, then cosine to a fixed minimum, one curve over all stages (K3 report). WSD keeps the peak and falls
linearly at the end; Constant stays at the peak after the warm-up. A stage whose hand-over resets the schedule begins a curve of its own, which the
stages behind it continue as long as they carry; one that rescales it stays on the curve and multiplies it by the square root of the batch's growth.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from samite_workloads.train.plan import OptimizerPlan, StagePlan


def learning_rate(optimizer: OptimizerPlan, progress: float) -> float:
    """Rate at `progress` of the curve, in (0, 1]: the share of the curve that is done when the step is. At 1 it is the minimum."""
    warmup = optimizer.warmup_fraction
    peak, minimum = optimizer.learning_rate, optimizer.learning_rate * optimizer.minimum_fraction
    if progress < warmup:
        return peak * progress / warmup
    if optimizer.schedule == "Constant":
        return peak
    if optimizer.schedule == "Cosine":
        after = min(1.0, (progress - warmup) / max(1.0 - warmup, 1e-12))
        return minimum + (peak - minimum) * 0.5 * (1.0 + math.cos(math.pi * after))
    into_decay = min(1.0, (progress - (1.0 - optimizer.decay_fraction)) / max(optimizer.decay_fraction, 1e-12))
    return peak if into_decay <= 0.0 else peak + (minimum - peak) * into_decay


@dataclass(frozen=True, kw_only=True, slots=True)
class StageCurve:
    """Where one stage lies on its curve: progress runs from `start` to `end` while the stage does; the rate is multiplied by `factor`."""

    start: float
    end: float
    factor: float = 1.0

    def progress(self, share_of_stage: float) -> float:
        """Progress of the curve when `share_of_stage` (0 to 1) of the stage is done."""
        return self.start + (self.end - self.start) * min(1.0, share_of_stage)


def stage_curve(stages: Sequence[StagePlan], index: int) -> StageCurve:
    """The part of its curve that stage `index` covers.

    Stages count by their steps when all of the curve have steps, by their seconds when all have seconds, and equally when they are mixed.
    """
    first = max(i for i in range(index + 1) if i == 0 or _action(stages[i]) == "Reset")
    behind = [i for i in range(index + 1, len(stages)) if _action(stages[i]) == "Reset"]
    curve = list(stages[first : behind[0] if behind else len(stages)])
    lengths = _lengths(curve)
    total = sum(lengths)
    done = sum(lengths[: index - first])
    growth = 1.0
    for before, stage in itertools.pairwise(curve[: index - first + 1]):
        if _action(stage) == "Rescale":
            growth *= stage.tokens_per_step / before.tokens_per_step
    return StageCurve(start=done / total, end=(done + lengths[index - first]) / total, factor=math.sqrt(growth))


def _action(stage: StagePlan) -> str:
    return stage.handover.get("lrSchedule", "Carry")


def _lengths(stages: Sequence[StagePlan]) -> list[float]:
    steps = [stage.num_steps for stage in stages if stage.num_steps is not None]
    if len(steps) == len(stages):
        return [float(value) for value in steps]
    seconds = [stage.wall_s for stage in stages if stage.wall_s is not None]
    return seconds if len(seconds) == len(stages) else [1.0] * len(stages)
