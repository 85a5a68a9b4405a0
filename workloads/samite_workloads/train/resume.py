"""Where an attempt begins: in the newest checkpoint that verifies, at a hand-over, or with fresh weights; and the data from that very place."""

import time

from samite.spec.attempt import AttemptSpec
from samite_workloads.config import ModelConfig
from samite_workloads.data import Corpus, CorpusError, DataCursor, Loader, build_loader, open_corpus
from samite_workloads.train.failures import HandoverMissingError
from samite_workloads.train.handover import HandedOver, require_handover, take_over
from samite_workloads.train.learner import Learner
from samite_workloads.train.plan import TrainPlan
from samite_workloads.train.saving import NothingSaved, Saver, store_options_of
from samite_workloads.train.session import Session
from samite_workloads.train.state import TrainState


def restore_or_begin(attempt: AttemptSpec, plan: TrainPlan, learner: Learner, saver: Saver | NothingSaved, session: Session) -> TrainState:
    """The state of the first step, with all tensors in place. Collective. Raises HandoverMissingError if the stage may not start."""
    handed_over = _handed_over(attempt, plan)
    began_s = time.monotonic()
    wanted = resume_of(attempt, incarnation=session.incarnation)
    restored = None if wanted == "none" else saver.restore(wanted, learner.tensors())
    if restored is None:
        if handed_over is not None:
            raise HandoverMissingError(
                f"stage {plan.stage.name} starts from checkpoint {handed_over.checkpoint_id}, but no checkpoint that verifies "
                f"is left at {attempt.checkpoint_uri}"
            )
        learner.begin_anew()
        return TrainState(stage_index=plan.stage.index, stage_name=plan.stage.name)
    state = TrainState.from_json(restored.extra["state"])
    if session.is_first:
        for passed, reason in restored.walked_past:
            session.telemetry.event("samite.checkpoint.quarantined", checkpoint_id=passed, reason=reason)
        session.telemetry.event(
            "samite.checkpoint.restored",
            checkpoint_id=restored.checkpoint_id,
            step_index=restored.step,
            duration=time.monotonic() - began_s,
        )
    session.heartbeat.step, session.heartbeat.tokens = state.step, state.tokens
    if state.stage_index == plan.stage.index:
        saver.began_from(restored.checkpoint_id, state.step)
        session.heartbeat.stage_step = state.stage_step
        return state
    if handed_over is None or restored.checkpoint_id != handed_over.checkpoint_id:
        needed = handed_over.checkpoint_id if handed_over else f"one of stage {plan.stage.name}"
        raise HandoverMissingError(
            f"stage {plan.stage.name} must start from checkpoint {needed}, but the newest that verifies is {restored.checkpoint_id} "
            f"of stage {state.stage_name}"
        )
    return take_over(state, plan.stage, learner)


def resume_of(attempt: AttemptSpec, *, incarnation: int) -> str:
    """What to restore: as the engine said for the first worker group of a submission; the newest for those that Ray starts after it.

    The engine spoke before this submission had written anything. Its later worker groups must not throw away what the first one committed.
    """
    return attempt.resume if incarnation == 0 else "latest"


def open_loader(attempt: AttemptSpec, plan: TrainPlan, state: TrainState, session: Session, config: ModelConfig) -> Loader:
    """This rank's data from the state's cursor on. Raises CorpusError for a corpus that does not fit the cursor or the model."""
    corpus = open_corpus(plan.data_uri)
    if corpus.vocab_size > config.vocab_size:
        raise CorpusError(f"{plan.data_uri} has {corpus.vocab_size} tokens, the model {config.vocab_size}: set model.overrides.vocab_size")
    return build_loader(
        corpus,
        dict(plan.mixture) or _by_size(corpus),
        plan.stage.context_length,
        rows_per_step=plan.stage.rows_per_step,
        rank=session.facts.rank,
        world=session.facts.world_size,
        seed=plan.shuffle_seed,
        micro_rows=plan.stage.micro_rows,
        cursor=DataCursor.from_json(state.cursor) if state.cursor else None,
        skip_windows=attempt.skip_data_windows,
        patch_size=config.vision_patch_size,
    )


def _handed_over(attempt: AttemptSpec, plan: TrainPlan) -> HandedOver | None:
    if plan.stage.index == 0:
        return None
    return require_handover(attempt, plan.stages[plan.stage.index - 1], store_options_of(plan.checkpoint.options))


def _by_size(corpus: Corpus) -> dict[str, float]:
    """Without a mixture, each source counts by its tokens."""
    return {name: float(record.splits["train"].num_tokens) for name, record in corpus.manifest.sources.items()}
