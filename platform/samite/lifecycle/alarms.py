"""Numbers that left their range, as the trainer's events tell them, and the pause that a stage may answer with."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class NumericAlarm:
    """The newest event of the trainer that says that numbers left their range: a spike, or a router that collapsed."""

    kind: str
    """LossSpike | GradNormSpike | ExpertCollapse"""
    step: int
    message: str

    @classmethod
    def from_event(cls, name: str, attributes: Mapping[str, Any]) -> "NumericAlarm | None":
        """From an event and its attributes by their full names; None for any other event."""
        step = int(attributes.get("samite.step.index") or 0)
        if name == "samite.moe.expert.collapse":
            layer, idle = attributes.get("samite.layer.block", "?"), attributes.get("samite.experts.idle", 0)
            message = (
                f"the router of layer {layer} collapsed: {idle} idle experts, load cv {float(attributes.get('samite.experts.cv') or 0):.2f}"
            )
            return cls(kind="ExpertCollapse", step=step, message=message)
        kinds = {"samite.loss.spike": ("LossSpike", "loss"), "samite.grad.norm.spike": ("GradNormSpike", "gradient norm")}
        if name not in kinds:
            return None
        kind, what = kinds[name]
        value, median = float(attributes.get("samite.value") or 0), float(attributes.get("samite.median") or 0)
        return cls(
            kind=kind,
            step=step,
            message=f"{what} {value:.4g} where {median:.4g} is usual; data rows {attributes.get('samite.data.window')}",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Pause:
    """The run is to stop at its next checkpoint."""

    reason: str
    message: str
    request_id: str
    since_watched_s: float
