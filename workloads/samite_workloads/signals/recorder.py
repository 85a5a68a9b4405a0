"""All signals behind one object: the training loop hands over what it measured; metrics and events come out.

    recorder = SignalRecorder(telemetry, context_length=8192, chunk_length=64)
    recorder.step(StepMeasure(...), extra=memory_points(device))       # rank 0, each step
    recorder.decay(step, decay_signals(...))                          # rank 0, sampled steps
    recorder.router(step, router_signals(...))
    recorder.compute_times(step, seconds_by_rank, num_steps=10)

Runs on plain numbers, so it never waits for a device. Returns what fired, for a loop that acts on it (pause at the next checkpoint).
"""

from collections.abc import Iterable, Mapping, Sequence

from samite.telemetry.records import Point
from samite.telemetry.setup import Telemetry
from samite_workloads.signals.decay import DecaySignals
from samite_workloads.signals.decay_rule import DecayAlarm, DecayRule
from samite_workloads.signals.memory import pressure
from samite_workloads.signals.router import Collapse, CollapseRule, RouterSignals
from samite_workloads.signals.spikes import Bands, Excursion
from samite_workloads.signals.step import StepMeasure
from samite_workloads.signals.stragglers import Straggler, StragglerRule


class SignalRecorder:
    """One per attempt, on rank 0. Rules are created with their defaults unless given."""

    def __init__(
        self,
        telemetry: Telemetry,
        *,
        context_length: int,
        chunk_length: int = 64,
        decay_rule: DecayRule | None = None,
        collapse_rule: CollapseRule | None = None,
        straggler_rule: StragglerRule | None = None,
        grad_norm_mads: float = 6.0,
    ) -> None:
        self._telemetry = telemetry
        self._context_length = context_length
        self._chunk_length = chunk_length
        self._decay_rule = decay_rule or DecayRule()
        self._collapse_rule = collapse_rule or CollapseRule()
        self._straggler_rule = straggler_rule or StragglerRule()
        self._bands = Bands(grad_norm_mads=grad_norm_mads)
        self._tight = False
        # A counter that begins with its first event shows no increase: a NaN would never raise an alert.
        kinds = ("loss", "gradient")
        self._pending: list[Point] = [Point("samite.numeric.nonfinites", 0, {"samite.tensor.kind": kind}) for kind in kinds]

    def step(self, measure: StepMeasure, *, extra: Sequence[Point] = ()) -> list[Excursion]:
        """Write the metrics of a finished step, with the samples that were taken in it. Returns the curves that left their band, each an event too."""
        points, self._pending = [*measure.points(), *extra, *self._pending], []
        self._telemetry.record_step(measure.step, points)
        excursions = self._bands.update(measure)
        for excursion in excursions:
            self._telemetry.event(excursion.name, **excursion.attributes())
        tight = pressure(extra)
        if tight is not None and not self._tight:
            self._telemetry.event(
                "samite.memory.pressure", rank=0, memory_bytes=tight[0], memory_limit_bytes=tight[1], step_index=measure.step
            )
        self._tight = tight is not None if extra else self._tight
        return excursions

    def decay(self, step: int, signals: Sequence[DecaySignals]) -> list[DecayAlarm]:
        """Take a sample of the decay signals; they are written with the step. Returns the alarms that fired, each as an event too."""
        self._pending += [point for layer in signals for point in layer.points()]
        alarms = self._decay_rule.update(signals)
        for alarm in alarms:
            self._telemetry.event(
                "samite.decay.underflow",
                **alarm.attributes(),
                step_index=step,
                stage_context_length=self._context_length,
                decay_chunk_length=self._chunk_length,
            )
        return alarms

    def router(self, step: int, layers: Iterable[RouterSignals]) -> list[Collapse]:
        """Take a sample of the router; written with the step."""
        layers = list(layers)
        self._pending += [point for layer in layers for point in layer.points()]
        collapses = self._collapse_rule.update(layers)
        for collapse in collapses:
            self._telemetry.event("samite.moe.expert.collapse", **collapse.attributes(), step_index=step)
        return collapses

    def activation(self, amax_by_layer: Mapping[int, float]) -> None:
        """Take a sample of the layers' outputs, in the model's order; written with the step."""
        self._pending += [
            Point("samite.activation.amax", amax, {"samite.layer.block": str(layer)}) for layer, amax in amax_by_layer.items()
        ]

    def compute_times(self, step: int, seconds_by_rank: Sequence[float], *, num_steps: int) -> list[Straggler]:
        """Compare the ranks' mean compute time over the last `num_steps` steps; written with the step."""
        ratio, stragglers = self._straggler_rule.update(seconds_by_rank, num_steps=num_steps)
        self._pending.append(Point("samite.step.straggler", ratio))
        for straggler in stragglers:
            self._telemetry.event("samite.straggler.detected", **straggler.attributes(), step_index=step)
        return stragglers
