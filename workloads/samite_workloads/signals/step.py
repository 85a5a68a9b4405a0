"""One optimizer step as the training loop measured it, and its metrics."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from samite.telemetry.records import Point


@dataclass(frozen=True, kw_only=True, slots=True)
class StepMeasure:
    """Numbers of one step over all ranks, on the host. Everything that was not measured is left out of the metrics, never shown as 0."""

    step: int
    """Optimizer steps finished over the whole run, this one included."""
    durations_s: Mapping[str, float]
    """By `samite.step.part`: total, compute, communication, data, optimizer."""
    loss: float | None
    """Mean over supervised tokens; None for a step without any (nothing was learnt, and 0.0 would look healthy)."""
    loss_by_modality: Mapping[str, float] = field(default_factory=dict)
    """By `samite.loss.kind`: text, vision. NaN for a modality without supervised tokens in this step."""
    grad_norms: Mapping[str, float] = field(default_factory=dict)
    """By `samite.param.group`; `global` is the whole norm, before clipping."""
    grad_norms_by_layer: Mapping[str, float] = field(default_factory=dict)
    """By layer; evidence of a spike, no metric."""
    clipped: bool | None = None
    learning_rate: float | None = None
    tokens: Mapping[str, int] = field(default_factory=dict)
    """By `samite.modality`: text, image; without padding."""
    padded: int = 0
    """Padding positions."""
    recomputed: bool = False
    """A step that an earlier attempt had finished already."""
    data_window: tuple[int, int] | None = None
    """Half-open range of global sequence rows."""
    skipped: bool = False
    """The update was refused because something was not finite."""

    def points(self) -> list[Point]:
        """Its metrics."""
        points = [Point("samite.step.number", self.step)]
        points += [Point("samite.step.duration", seconds, {"samite.step.part": part}) for part, seconds in self.durations_s.items()]
        if "data" in self.durations_s:
            points.append(Point("samite.data.wait.duration", self.durations_s["data"]))
        if self.loss is not None:
            points.append(Point("samite.loss", self.loss, {"samite.loss.kind": "total"}))
        points += [
            Point("samite.loss", value, {"samite.loss.kind": k}) for k, value in self.loss_by_modality.items() if not math.isnan(value)
        ]
        points += [Point("samite.grad.norm", norm, {"samite.param.group": group}) for group, norm in self.grad_norms.items()]
        if self.clipped is not None:
            points.append(Point("samite.grad.clipped", float(self.clipped)))
        if self.learning_rate is not None:
            points.append(Point("samite.optimizer.learning_rate", self.learning_rate))
        kind = "recomputed" if self.recomputed else "trained"
        points += [
            Point("samite.tokens", count, {"samite.token.kind": kind, "samite.modality": m}) for m, count in self.tokens.items() if count
        ]
        if self.padded:
            points.append(Point("samite.tokens", self.padded, {"samite.token.kind": "padded"}))
        if self.skipped:
            kind = "loss" if self.loss is None or not math.isfinite(self.loss) else "gradient"
            points.append(Point("samite.numeric.nonfinites", 1, {"samite.tensor.kind": kind}))
        return points
