"""The trainer's side of a hand-over: refuse to start without the committed one, and carry or reset each state as it says.

The engine writes `handover/<stage>.json` below the checkpoint URI before the next stage is started; the attempt carries its content hash.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from samite.checkpoint import StoreOptions, open_store
from samite.checkpoint.handover import handover_key, read_document
from samite.errors import NotFoundError
from samite.spec.attempt import AttemptSpec
from samite_workloads.parallel.sharding import local
from samite_workloads.train.failures import HandoverMissingError
from samite_workloads.train.learner import Learner
from samite_workloads.train.plan import StagePlan
from samite_workloads.train.state import TrainState

STATES = ("weights", "optimizer", "lrSchedule", "stepCounter", "tokenCounter", "dataCursor", "routerBias")
"""What a hand-over answers for; `lrSchedule` acts in `schedule.stage_curve`."""
_RESCALABLE = ("lrSchedule",)
_ROUTER_BIAS = "e_score_correction_bias"


@dataclass(frozen=True, kw_only=True, slots=True)
class HandedOver:
    """The committed hand-over that a stage begins from."""

    checkpoint_id: str
    step: int


def require_handover(attempt: AttemptSpec, before: StagePlan, options: StoreOptions | None = None) -> HandedOver:
    """The hand-over at the end of stage `before`. Raises HandoverMissingError if none is committed, or not the one that the attempt was given."""
    from samite.lifecycle.handover import content_hash

    where = f"{attempt.checkpoint_uri.rstrip('/')}/{handover_key(before.name)}"
    if not attempt.handover:
        raise HandoverMissingError(f"the attempt names no hand-over, but stage {attempt.stage_index} needs the one in {where}")
    try:
        document = read_document(open_store(attempt.checkpoint_uri, options), before.name)
    except NotFoundError as error:
        raise HandoverMissingError(f"stage {before.name} has not handed over: {where} does not exist") from error
    found = content_hash(document)
    if found != attempt.handover:
        raise HandoverMissingError(f"{where} has content hash {found[:12]}..., but the attempt was started for {attempt.handover[:12]}...")
    return HandedOver(checkpoint_id=document["checkpointId"], step=int(document["step"]))


def take_over(state: TrainState, stage: StagePlan, learner: Learner) -> TrainState:
    """Turn the state and tensors that ended the stage before into those that begin `stage`. Raises HandoverMissingError for what can't be done."""
    actions = checked_actions(stage)
    if actions["weights"] == "Reset":
        kept = {name: local(t).clone() for name, t in _router_biases(learner).items()} if actions["routerBias"] == "Carry" else {}
        learner.begin_anew()
        for name, bias in _router_biases(learner).items():
            if name in kept:
                local(bias).copy_(kept[name])
    elif actions["routerBias"] == "Reset":
        for bias in _router_biases(learner).values():
            local(bias).zero_()
    if actions["optimizer"] == "Reset":
        learner.optimizer.reset()
    return begin_stage(state, stage, actions)


def begin_stage(state: TrainState, stage: StagePlan, actions: Mapping[str, str]) -> TrainState:
    """Counters and cursor at the start of `stage`; step and tokens of the run go on in any case."""
    return TrainState(
        stage_index=stage.index,
        stage_name=stage.name,
        step=state.step,
        tokens=state.tokens,
        step_counter=0 if actions["stepCounter"] == "Reset" else state.step_counter,
        token_counter=0 if actions["tokenCounter"] == "Reset" else state.token_counter,
        empty_steps=state.empty_steps,
        cursor=None if actions["dataCursor"] == "Reset" else state.cursor,
    )


def checked_actions(stage: StagePlan) -> dict[str, str]:
    """Carry, Reset or Rescale for each of STATES. Raises HandoverMissingError for a missing or impossible answer: there are no silent defaults."""
    missing = [name for name in STATES if name not in stage.handover]
    if missing:
        raise HandoverMissingError(
            f"stage {stage.name}: its hand-over says nothing about {', '.join(missing)}; wanted Carry or Reset for each"
        )
    actions = {name: stage.handover[name] for name in STATES}
    wrong = [f"{name}: {action}" for name, action in actions.items() if action not in ("Carry", "Reset") and name not in _RESCALABLE]
    if wrong:
        raise HandoverMissingError(
            f"stage {stage.name}: its hand-over asks for {', '.join(wrong)}; only {', '.join(_RESCALABLE)} can be rescaled"
        )
    return actions


def _router_biases(learner: Learner) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in learner.tensors().items() if name.endswith(_ROUTER_BIAS)}
