"""What the trainer is to do, read once from the attempt's document into plain values.

The document was validated by `samite.spec` before the attempt was written; this module only picks what the ranks need, without pydantic, so that
a GPU machine with nothing but torch can train. What this trainer can't do is refused here, before anything is loaded.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from samite.errors import Problem, SpecError
from samite.spec.attempt import AttemptSpec
from samite_workloads.config import ModelConfig
from samite_workloads.presets import preset


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerPlan:
    """Optimizer and curve of the whole run. Rates are per step."""

    name: str
    learning_rate: float
    minimum_fraction: float
    warmup_fraction: float
    decay_fraction: float
    schedule: str
    weight_decay: float
    momentum: float
    betas: tuple[float, float]
    epsilon: float
    grad_clip_norm: float


@dataclass(frozen=True, kw_only=True, slots=True)
class StagePlan:
    """One stage. Exactly one of `num_steps` and `wall_s` is set."""

    index: int
    name: str
    kind: str
    context_length: int
    tokens_per_step: int
    micro_rows: int
    num_steps: int | None
    wall_s: float | None
    handover: Mapping[str, str]
    """State name (camelCase, as in the spec) -> Carry | Reset | Rescale; empty for a stage that starts from nothing."""
    data: Mapping[str, Any] = field(default_factory=dict)

    @property
    def rows_per_step(self) -> int:
        """Packed rows of one optimizer step over all ranks."""
        return self.tokens_per_step // self.context_length


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointPlan:
    """When checkpoints are written; where and how stands in `options`."""

    every_steps: int | None
    every_s: float | None
    asynchronous: bool
    options: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainPlan:
    """Everything of one attempt at one stage."""

    run_name: str
    seed: int
    model: ModelConfig
    data_uri: str
    mixture: tuple[tuple[str, float], ...]
    shuffle_seed: int
    stages: tuple[StagePlan, ...]
    stage: StagePlan
    optimizer: OptimizerPlan
    checkpoint: CheckpointPlan
    sample_steps: int
    otlp_endpoint: str | None
    exports_every_rank: bool
    """Whether all ranks send to the endpoint; else rank 0 alone does. JSON lines are written by all."""
    decay_underflow_limit: int
    straggler_factor: float
    straggler_steps: int
    grad_norm_mads: float
    rolls_back_on_spike: bool
    """Whether a loss or gradient norm that leaves its band ends the attempt, for a roll-back."""


def plan_of(attempt: AttemptSpec) -> TrainPlan:
    """The plan of `attempt`. Raises SpecError for a document this trainer can't follow, with every reason at once."""
    spec = attempt.run["spec"]
    data = spec.get("data", {})
    stages = tuple(_stage(index, stage) for index, stage in enumerate(spec["stages"]))
    if not 0 <= attempt.stage_index < len(stages):
        raise SpecError(
            [Problem(path="stage_index", wanted=f"0 to {len(stages) - 1}", found=str(attempt.stage_index))], source="attempt.json"
        )
    stage = stages[attempt.stage_index]
    problems = [*_unsupported(spec["stages"][stage.index], stage), *_uneven(stage, attempt.num_workers)]
    if problems:
        raise SpecError(problems, source="attempt.json")
    interval = spec["checkpoint"].get("interval", {})
    mixture = stage.data.get("mixture") or data.get("mixture", ())
    shuffle_seed = stage.data.get("shuffleSeed", data.get("shuffleSeed"))
    detection = spec.get("detection", {})
    return TrainPlan(
        run_name=attempt.run["metadata"]["name"],
        seed=spec.get("seed", 0),
        model=_model(spec),
        data_uri=stage.data.get("uri") or data.get("uri", "builtin:quickstart"),
        mixture=tuple((entry["source"], float(entry["weight"])) for entry in mixture),
        shuffle_seed=spec.get("seed", 0) if shuffle_seed is None else shuffle_seed,
        stages=stages,
        stage=stage,
        optimizer=_optimizer(spec["optimizer"]),
        checkpoint=CheckpointPlan(
            every_steps=interval.get("steps"),
            every_s=interval.get("seconds"),
            asynchronous=spec["checkpoint"].get("async", True),
            options=spec["checkpoint"],
        ),
        sample_steps=spec.get("telemetry", {}).get("sampleSteps", 10),
        otlp_endpoint=spec.get("telemetry", {}).get("otlpEndpoint"),
        exports_every_rank=spec.get("telemetry", {}).get("perRank") == "All",
        decay_underflow_limit=detection.get("decay", {}).get("underflowLimit", 0),
        straggler_factor=detection.get("straggler", {}).get("factor", 1.5),
        straggler_steps=detection.get("straggler", {}).get("steps", 20),
        grad_norm_mads=detection.get("numeric", {}).get("gradNormMads", 6.0),
        rolls_back_on_spike=_on_spike(detection, spec["stages"][stage.index]) == "RollBack",
    )


def _on_spike(detection: Mapping[str, Any], stage: Mapping[str, Any]) -> str:
    """The stage's answer, else the run's."""
    own = (stage.get("numeric") or {}).get("onSpike")
    return str(own or detection.get("numeric", {}).get("onSpike", "Observe"))


def _model(spec: Mapping[str, Any]) -> ModelConfig:
    balancing = {"balancing": spec["router"]["balancing"]} if "balancing" in spec.get("router", {}) else {}
    try:
        return preset(spec["model"]["preset"], {**balancing, **spec["model"].get("overrides", {})})
    except (TypeError, ValueError) as error:
        problem = Problem(path="spec.model", wanted="a preset and overrides that fit together", found=str(error))
        raise SpecError([problem], source="attempt.json") from error


def _stage(index: int, document: Mapping[str, Any]) -> StagePlan:
    budget, batch = document["budget"], document["batch"]
    num_steps = budget.get("steps")
    if num_steps is None and budget.get("tokens") is not None:
        num_steps = -(-budget["tokens"] // batch["tokens"])
    return StagePlan(
        index=index,
        name=document["name"],
        kind=document.get("kind", "Pretrain"),
        context_length=document["contextLength"],
        tokens_per_step=batch["tokens"],
        micro_rows=batch.get("microBatch", 1),
        num_steps=num_steps,
        wall_s=budget.get("wallSeconds"),
        handover=document.get("handover") or {},
        data=document.get("data") or {},
    )


def _optimizer(document: Mapping[str, Any]) -> OptimizerPlan:
    return OptimizerPlan(
        name=document["name"],
        learning_rate=document["learningRate"],
        minimum_fraction=document["minLearningRateFraction"],
        warmup_fraction=document["warmupFraction"],
        decay_fraction=document.get("decayFraction", 0.2),
        schedule=document["schedule"],
        weight_decay=document["weightDecay"],
        momentum=document["momentum"],
        betas=(document["betas"][0], document["betas"][1]),
        epsilon=document["epsilon"],
        grad_clip_norm=document["gradClipNorm"],
    )


def _unsupported(document: Mapping[str, Any], stage: StagePlan) -> list[Problem]:
    where = f"spec.stages[{stage.index}]"
    problems = [
        Problem(path=f"{where}.parallel.{axis}", wanted="1: this trainer shards over the data axis", found=str(size))
        for axis in ("tensor", "pipeline", "context", "expert")
        if (size := document.get("parallel", {}).get(axis, 1)) != 1
    ]
    if stage.kind not in ("Pretrain", "Extend", "Anneal", "SFT"):
        problems.append(
            Problem(path=f"{where}.kind", wanted="a stage of next-token training (Pretrain, Extend, Anneal or SFT)", found=stage.kind)
        )
    return problems


def _uneven(stage: StagePlan, num_ranks: int) -> list[Problem]:
    path = f"spec.stages[{stage.index}].batch.tokens"
    if stage.tokens_per_step % stage.context_length:
        return [Problem(path=path, wanted=f"a multiple of contextLength {stage.context_length}", found=str(stage.tokens_per_step))]
    if stage.rows_per_step % num_ranks:
        wanted = f"rows of {stage.context_length} tokens that {num_ranks} ranks can share evenly"
        return [Problem(path=path, wanted=wanted, found=f"{stage.rows_per_step} rows")]
    return []
