"""The stages of a run: how long the context is, on how many workers, for how long, and what passes from one stage to the next."""

from typing import Annotated, Literal

from pydantic import Field

from samite.spec.base import Fraction, LongText, NonNegativeInt, PositiveFloat, PositiveInt, SpecModel
from samite.spec.data import MixtureEntry
from samite.spec.detection import StageNumeric

StageKind = Literal["Pretrain", "Extend", "Anneal", "SFT", "RL", "Eval"]
HandoverAction = Literal["Carry", "Reset", "Rescale"]
GateOperator = Literal["<", "<=", ">", ">="]


class Workers(SpecModel):
    """How many worker nodes a stage runs on. With min below max a stage goes on with fewer nodes when some are lost and no spare is left."""

    min: Annotated[int, Field(ge=1, le=100_000)] = 1
    """Fewest worker nodes that may train this stage. Unit: nodes. Default 1: one node can always train."""
    max: Annotated[int, Field(ge=1, le=100_000)] = 1
    """Worker nodes asked for. Unit: nodes. Default 1. Equal to min means a fixed size."""


class Parallel(SpecModel):
    """The parallel layout: how the ranks of a stage are divided. One rank is one GPU, or one worker node without GPUs."""

    data: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Data-parallel ranks; parameters are sharded over them (FSDP). Unit: ranks. Left out, it is derived: ranks / (tensor x pipeline x context).
    Give it only to have the layout checked against the workers."""
    tensor: Annotated[int, Field(ge=1, le=64)] = 1
    """Ranks that split each matrix. Unit: ranks. Default 1. Keep it inside one node: it talks twice per layer."""
    pipeline: Annotated[int, Field(ge=1, le=256)] = 1
    """Pipeline steps that the layers are divided into. Unit: ranks. Default 1."""
    context: Annotated[int, Field(ge=1, le=1024)] = 1
    """Ranks that split one sequence. Unit: ranks. Default 1. contextLength must be a multiple of 2 x context, so that both halves of the causal
    balance are whole."""
    expert: Annotated[int, Field(ge=1, le=4096)] = 1
    """Ranks that the experts are spread over. Unit: ranks. Default 1. They are taken from the data and context ranks."""

    @property
    def model_ranks(self) -> int:
        """Ranks that hold one copy of a sequence's computation: tensor x pipeline x context."""
        return self.tensor * self.pipeline * self.context


class Batch(SpecModel):
    """How much one optimizer step sees, and how it is cut."""

    tokens: PositiveInt
    """Tokens of one optimizer step over all ranks. Unit: tokens, padding included. No default: it decides the result of the training. Must be a
    multiple of contextLength; keep it constant over the stages, so that the learning rate keeps its meaning when the context grows."""
    micro_batch: Annotated[int, Field(ge=1, le=4096)] = 1
    """Rows of contextLength tokens that one rank computes at a time. Unit: rows. Default 1: the least memory. It changes speed and memory, never
    the result."""


class Budget(SpecModel):
    """How long a stage trains: exactly one of tokens, steps and wallSeconds."""

    tokens: PositiveInt | None = None
    """Tokens to train in this stage; rounded up to a whole optimizer step. Unit: tokens."""
    steps: PositiveInt | None = None
    """Optimizer steps to train in this stage. Unit: steps."""
    wall_seconds: PositiveFloat | None = None
    """Training time of this stage, without the time lost to restarts. Unit: seconds. The stage ends after the step in which it runs out; the
    learning-rate schedule follows the clock then, so runs are not repeatable."""


class Handover(SpecModel):
    """What this stage takes over from the one before it. Carry keeps a state as it is, Reset starts it anew, Rescale fits it to the new stage.

    optimizer, lrSchedule and dataCursor have no default on purpose: an implicit answer to these three is how curricula go wrong unseen.
    """

    weights: HandoverAction = "Carry"
    """The parameters. Default Carry: a curriculum continues one model."""
    optimizer: HandoverAction
    """Momentum and second moments. No default. Carry for a longer context of the same data; Reset when the objective changes."""
    lr_schedule: HandoverAction
    """The learning-rate curve. No default. Carry: one curve over all stages. Reset: a new warm-up and a new curve for this stage."""
    step_counter: HandoverAction = "Carry"
    """The optimizer step number. Default Carry, so that steps are unique within a run. Unit: steps."""
    token_counter: HandoverAction = "Carry"  # noqa: S105
    """The number of tokens trained. Default Carry. Unit: tokens."""
    data_cursor: HandoverAction
    """The place in the data. No default. Carry goes on where the last stage stopped; Reset sees the data from the start again."""
    router_bias: HandoverAction = "Carry"
    """The balancing bias of the routers. Default Carry: the experts keep their load."""


class GateCheck(SpecModel):
    """One number that must be good before the next stage starts."""

    metric: Annotated[str, Field(min_length=1, max_length=120, pattern=r"^[a-z][a-z0-9_.]*$")]
    """What is measured: loss, grad_norm, decay_underflow, expert_load_cv, probe_score, checkpoint_verified, or the name of a metric."""
    op: GateOperator
    """How the measured value must compare with `value`. In YAML, write it in quotes: op: "<=" ."""
    value: float
    """The bound. Unit: that of the metric."""
    window: PositiveInt = 50
    """Steps at the end of the stage that are looked at. Unit: steps. Default 50: enough to average a noisy loss."""
    quantile: Fraction = 0.5
    """Which quantile of the window is compared. Unit: none, 0 to 1. Default 0.5, the median: one bad batch neither opens nor closes a gate."""


class Gate(SpecModel):
    """What must hold at the end of a stage before the run goes on."""

    checks: Annotated[tuple[GateCheck, ...], Field(max_length=16, strict=False)] = ()
    """Checks that must all pass. Default none: the gate only waits for the verified final checkpoint."""
    on_fail: Literal["Hold", "Retry", "Fail", "Rollback"] = "Hold"
    """What happens when a check fails. Default Hold: a person looks; nothing is lost by waiting."""
    manual: bool = False
    """True: a person must approve before the next stage starts, even if all checks pass. Default false."""


class StageData(SpecModel):
    """What a stage changes in the run's data."""

    mixture: Annotated[tuple[MixtureEntry, ...], Field(min_length=1, max_length=64, strict=False)] | None = None
    """Sources and weights for this stage alone. Left out: the run's mixture."""
    uri: LongText | None = None
    """Another prepared corpus for this stage. Left out: the run's corpus."""
    shuffle_seed: NonNegativeInt | None = None
    """Another seed for the order of the samples. Left out: the run's. Only with handover.dataCursor: Reset."""


class Stage(SpecModel):
    """One stage of the curriculum."""

    name: Annotated[str, Field(min_length=1, max_length=40, pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$")]
    """Name of the stage: small letters, digits and dashes, at most 40; unique in the run. It is part of the hand-over's file name."""
    kind: StageKind = "Pretrain"
    """What the stage does. Pretrain: learn from the mixture. Extend: the same with a longer context. Anneal: the same while the learning rate
    ends. SFT, RL and Eval follow training. Default Pretrain."""
    context_length: Annotated[int, Field(ge=16, le=16_777_216)]
    """Length of one packed row. Unit: tokens. No default. It may only grow from stage to stage (before RL); a multiple of 2 x parallel.context."""
    workers: Workers = Workers.defaults()
    """Worker nodes of this stage."""
    gpus_per_worker: Annotated[int, Field(ge=0, le=64)] = 0
    """GPUs of each worker node; one rank runs on each. Unit: GPUs. Default 0: one rank on the CPU, so that a laptop needs no setting."""
    parallel: Parallel = Parallel.defaults()
    """How the ranks are divided. Default: data parallelism alone."""
    batch: Batch
    """Tokens of one optimizer step."""
    budget: Budget
    """How long the stage trains: exactly one of tokens, steps and wallSeconds."""
    data: StageData | None = None
    """What this stage changes in the run's data. Left out: nothing."""
    handover: Handover | None = None
    """What this stage takes over. Must be given from the second stage on, and in the first stage when checkpoint.loadFrom is set."""
    gate: Gate = Gate.defaults()
    """What must hold at the end of this stage."""
    numeric: StageNumeric | None = None
    """What this stage does differently when the numbers go wrong. Left out: detection.numeric."""

    def num_ranks(self, workers: int | None = None) -> int:
        """Ranks on `workers` nodes (workers.max if None): one for each GPU, one for each node without GPUs."""
        return (workers or self.workers.max) * max(self.gpus_per_worker, 1)

    @property
    def rows_per_step(self) -> int:
        """Packed rows of one optimizer step, over all ranks."""
        return self.batch.tokens // self.context_length

    @property
    def num_steps(self) -> int | None:
        """Optimizer steps of this stage's budget; None if the budget is wall time."""
        if self.budget.steps is not None:
            return self.budget.steps
        if self.budget.tokens is not None:
            return -(-self.budget.tokens // self.batch.tokens)
        return None
