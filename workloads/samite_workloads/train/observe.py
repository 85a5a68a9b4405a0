"""What the loop tells the outside: the heartbeat at every step, metrics and events, and the check that no number was non-finite.

On CPU the numbers of a step are there when it ends. On CUDA they are read one step later, so that the host never waits for the device; a refused
step has changed nothing meanwhile, and `settle` reads the last one before anything is stored. Sampled steps wait for the device.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from samite_workloads.batch import Modality
from samite_workloads.model import BalanceReport, ModelSamples
from samite_workloads.signals import SignalRecorder, StepMeasure
from samite_workloads.signals.decay import add_decay_counts, decay_signals
from samite_workloads.signals.decay_rule import DecayRule
from samite_workloads.signals.memory import memory_points
from samite_workloads.signals.reduction import FusedReduction
from samite_workloads.signals.router import router_signals
from samite_workloads.signals.schedule import SampleSchedule
from samite_workloads.signals.spikes import Bands
from samite_workloads.signals.stragglers import StragglerRule
from samite_workloads.train.groups import FAMILIES
from samite_workloads.train.learner import Learner
from samite_workloads.train.numeric import NonFiniteError, SpikeError, StepNumbers, Verdict
from samite_workloads.train.plan import TrainPlan
from samite_workloads.train.rank_log import say, step_line
from samite_workloads.train.session import Session

_BURST = 3
"""Steps after a start that are all sampled; then every `telemetry.sampleSteps`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRecord:
    """What is known of a step on the host when it has been launched. Counts are over all ranks, durations of this rank."""

    step: int
    stage_step: int
    tokens: int
    """Run total after this step."""
    step_tokens: int
    rows: tuple[int, int]
    supervised: tuple[int, ...]
    padded: int
    learning_rate: float
    total_s: float
    busy_s: float
    data_s: float
    recomputed: bool
    sampled: bool
    busy_of_ranks_s: tuple[float, ...]
    """What each rank computed in the step before."""


class Observer:
    """Of one rank and one incarnation. Rank 0 speaks for all; the others tell their own memory."""

    def __init__(self, plan: TrainPlan, session: Session, learner: Learner) -> None:
        self._plan, self._session, self._learner = plan, session, learner
        self._is_cuda = session.groups.device.type == "cuda"
        self._schedule: SampleSchedule | None = None
        self._unread: tuple[int, Verdict, tuple[int, int]] | None = None
        self._untold: tuple[StepRecord, Verdict | None] | None = None
        self._numbers: StepNumbers | None = None
        self.recomputed_steps = 0
        # The reduced numbers are the same on all ranks, so all of them end a spike's attempt together.
        self._bands = Bands(grad_norm_mads=plan.grad_norm_mads) if plan.rolls_back_on_spike and not session.is_first else None
        self._recorder = (
            SignalRecorder(
                session.telemetry,
                context_length=plan.stage.context_length,
                decay_rule=DecayRule(lossy_limit=plan.decay_underflow_limit),
                straggler_rule=StragglerRule(factor=plan.straggler_factor, steps=plan.straggler_steps),
                grad_norm_mads=plan.grad_norm_mads,
            )
            if session.is_first
            else None
        )

    def samples(self, step: int) -> bool:
        """Whether this step also takes decay, router and memory signals; the same on all ranks."""
        if self._schedule is None:
            self._schedule = SampleSchedule(every=self._plan.sample_steps, burst=_BURST)
            self._schedule.began(step - 1)
        return self._schedule.due(step)

    def expect_finite(self, step: int, verdict: Verdict | None, rows: tuple[int, int]) -> None:
        """Raise NonFiniteError, on all ranks alike, for a step that is not finite: this one on CPU, the one before on CUDA."""
        waiting, self._unread = self._unread, None if verdict is None else (step, verdict, rows)
        if not self._is_cuda:
            waiting, self._unread = self._unread, None
        if waiting is not None:
            self._check(*waiting)

    def settle(self) -> None:
        """Read what is still unread; afterwards every step up to here is known to be finite and told."""
        waiting, self._unread = self._unread, None
        if waiting is not None:
            self._check(*waiting)
        told, self._untold = self._untold, None
        if told is not None:
            self._tell(*told)

    def finish_step(self, record: StepRecord, verdict: Verdict | None, balance: BalanceReport | None) -> None:
        """A step is done (on CUDA: launched). Collective on sampled steps."""
        self.recomputed_steps += int(record.recomputed)
        heartbeat = self._session.heartbeat
        if heartbeat.phase == "first_step":
            heartbeat.phase = "training"
            if self._recorder is not None:
                self._session.telemetry.event("samite.training.started", step_index=record.step, step_resumed=record.step - 1)
        heartbeat.finish_step(
            step=record.step,
            stage_step=record.stage_step,
            tokens=record.tokens,
            duration_s=record.total_s,
            compute_s=record.busy_s,
            loss=self._numbers.loss if self._numbers is not None and verdict is not None else heartbeat.loss,
        )
        if record.sampled and balance is not None:
            self._sample(record, self._learner.module.take_samples(), balance)
        if self._recorder is not None and any(record.busy_of_ranks_s):
            self._recorder.compute_times(record.step, record.busy_of_ranks_s, num_steps=1)
        told, self._untold = self._untold, (record, verdict)
        if not self._is_cuda:
            told, self._untold = self._untold, None
        if told is not None:
            self._tell(*told)

    def _check(self, step: int, verdict: Verdict, rows: tuple[int, int]) -> None:
        self._numbers = verdict.read()
        if not self._numbers.nonfinite:
            return
        if self._session.is_first:
            kind = self._numbers.nonfinite[0].split()[0]
            self._session.telemetry.record("samite.numeric.nonfinites", len(self._numbers.nonfinite), {"samite.tensor.kind": kind})
            where = ", ".join(self._numbers.nonfinite)
            self._session.telemetry.event(
                "samite.numeric.nonfinite",
                tensor_kind=kind,
                tensor_name=where,
                layer_block=named_layers(self._numbers.nonfinite_layers),
                step_index=step,
                data_window=list(rows),
            )
        layers = named_layers(self._numbers.nonfinite_layers)
        where_all = (*self._numbers.nonfinite, *([f"layer {layers}"] if layers else []))
        raise NonFiniteError(step, where_all, rows)

    def _sample(self, record: StepRecord, samples: ModelSamples, balance: BalanceReport) -> None:
        reduction = FusedReduction()
        add_decay_counts(reduction, samples.decay, samples.states)
        if samples.router:
            reduction.add("router/entropy", torch.stack([s.entropy for s in samples.router.values()]))
            reduction.maximum("router/logit_max", torch.stack([s.logit_max for s in samples.router.values()]))
        if samples.activation:
            reduction.maximum("activation/amax", torch.stack(list(samples.activation.values())))
        reduced = reduction.run(self._session.groups.world)
        if self._recorder is None:
            return
        self._recorder.decay(record.step, decay_signals(reduced, samples.decay))
        self._recorder.activation(dict(zip(samples.activation, reduced.get("activation/amax", []), strict=True)))
        world = self._session.facts.world_size
        layers = router_signals(
            balance.loads_LE.tolist(),
            list(samples.router),
            entropy=[total / world for total in reduced.get("router/entropy", [])],
            logit_max=reduced.get("router/logit_max", []),
        )
        self._recorder.router(record.step, layers)

    def _tell(self, record: StepRecord, verdict: Verdict | None) -> None:
        memory = memory_points(self._session.groups.device) if record.sampled else []
        numbers = None if verdict is None else verdict.read()
        say(step_line(record, numbers, of_stage=self._plan.stage.num_steps))
        excursions = []
        if self._recorder is not None:
            excursions = self._recorder.step(measure_of(record, numbers), extra=memory)
        elif memory:
            self._session.telemetry.record_step(record.step, memory)
        if self._bands is not None:
            excursions = self._bands.update(measure_of(record, numbers))
        if excursions and self._plan.rolls_back_on_spike:
            raise SpikeError(excursions[0])


def named_layers(layers: Sequence[str]) -> str:
    """The first few by name, the others by number: a loss that is not finite makes every layer's gradient so."""
    return ", ".join(layers[:4]) + (f" and {len(layers) - 4} more" if len(layers) > 4 else "")


def measure_of(record: StepRecord, numbers: StepNumbers | None) -> StepMeasure:
    """The step in the words of the signals. Without a supervised token there are no numbers: such a step has no loss, and none is invented."""
    captions = record.supervised[Modality.IMAGE_CAPTION]
    return StepMeasure(
        step=record.step,
        durations_s={"total": record.total_s, "compute": record.busy_s, "data": record.data_s},
        loss=None if numbers is None else numbers.loss,
        loss_by_modality={} if numbers is None else _by_modality(numbers.loss_by_modality),
        grad_norms={}
        if numbers is None
        else {"global": numbers.grad_norm, **dict(zip(FAMILIES, numbers.grad_norm_by_family, strict=True))},
        grad_norms_by_layer={} if numbers is None else numbers.grad_norm_by_layer,
        clipped=None if numbers is None else numbers.clipped,
        learning_rate=record.learning_rate,
        tokens={"text": record.step_tokens - record.padded - captions, "image": captions},
        padded=record.padded,
        recomputed=record.recomputed,
        data_window=record.rows,
    )


def _by_modality(losses: Sequence[float]) -> dict[str, float]:
    return {"text": losses[Modality.TEXT], "vision": losses[Modality.IMAGE_CAPTION]}
