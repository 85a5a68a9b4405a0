"""The status of a run, derived from plan, memory and what was seen in this turn."""

from samite.lifecycle import blame, budgets
from samite.lifecycle.conditions import conditions
from samite.lifecycle.ledger import Account
from samite.lifecycle.nodes import usable_nodes
from samite.lifecycle.phases import TERMINAL, Phase
from samite.lifecycle.plan import StagePlan
from samite.lifecycle.ranks import STEPPING
from samite.lifecycle.status import Ettr, Progress, Status
from samite.lifecycle.turn import Turn

SHOWN_WINDOWS = 20
"""Newest skipped data windows in the status."""
_BEFORE_LOADED = ("", "starting", "loading")
"""Phases of a rank in which its counters are not those of the run yet."""


def status_of(turn: Turn) -> Status:
    """The whole status."""
    memory, plan = turn.memory, turn.plan
    ledger = memory.ledger
    waiting = "; ".join(turn.notes)
    message = memory.message
    if waiting:
        message = f"{message}; waiting for {waiting}" if message else f"waiting for {waiting}"
    recovery = memory.recovery
    return Status(
        phase=memory.phase,
        reason=memory.reason,
        message=message,
        conditions=conditions(turn),
        current_stage=turn.stage.name,
        stage_index=memory.stage_index,
        started_stages=tuple(stage.name for stage in memory.stages),
        attempt=memory.attempt,
        submission_id=memory.live.submission_id if memory.live is not None else "",
        cluster_id=memory.cluster.cluster_id if memory.cluster is not None else "",
        progress=progress_of(turn),
        ettr=Ettr(
            percent=ledger.percent,
            productive_s=ledger.productive,
            wall_s=ledger.wall,
            suspended_s=ledger.suspended,
            lost=ledger.lost,
        ),
        restarts={key.value: count for key, count in memory.restarts.items()},
        budgets_left={key.value: budgets.left(plan.restart, memory.spent, key, turn.now_s) for key in plan.restart.budgets},
        last_failure=memory.last_failure,
        next_retry_at_s=recovery.not_before_s if recovery is not None and recovery.not_before_s > turn.now_s else None,
        recoveries=memory.recoveries,
        excluded_nodes=tuple(sorted(blame.excluded(memory.blame, turn.now_s))),
        nodes_ready=usable_nodes(turn) if turn.cluster_seen().state is not None else None,
        last_checkpoint=memory.newest_commit,
        last_checkpoint_step=memory.newest_commit_step if memory.newest_commit_step >= 0 else None,
        last_save_s=memory.newest_save[0] if memory.newest_save is not None else None,
        last_save_stall_s=memory.newest_save[1] if memory.newest_save is not None else None,
        recomputed_steps=memory.recomputed_steps,
        skipped_data_windows=memory.skip_data_windows[-SHOWN_WINDOWS:],
    )


def progress_of(turn: Turn) -> Progress:
    """Progress of the run. Everything that is a rate belongs to the current attempt."""
    memory = turn.memory
    lead, live = turn.ranks.lead, memory.live
    finished = memory.stages[memory.stage_index] if memory.stages else None
    if finished is not None and finished.final_checkpoint:
        share = 1.0
        stage_step = turn.stage.steps or 0
        step, tokens = finished.final_step, finished.final_tokens
    elif lead is None or lead.step < 0 or lead.phase in _BEFORE_LOADED:
        # A rank that has not loaded its state yet counts from zero; the run does not.
        start_step = memory.stages[-2].final_step if len(memory.stages) > 1 else 0
        step = max(memory.best_step, memory.newest_commit_step, start_step)  # what is stored was trained, whatever the last heartbeat said
        stage_step = step - start_step
        tokens = (finished.start_tokens if finished is not None else 0) + stage_step * (turn.stage.batch_tokens or 0)
        share = _stage_share(turn, stage_step)
    else:
        step, stage_step, tokens = lead.step, lead.stage_step, lead.tokens
        share = _stage_share(turn, stage_step)
    step_s = _step_s(turn)
    tokens_per_s = None
    if live is not None and lead is not None and step_s:
        trained = lead.step - live.start_step
        per_step = (lead.tokens - live.start_tokens) / trained if trained > 0 else float(turn.stage.batch_tokens)
        tokens_per_s = per_step / step_s
    return Progress(
        step=step,
        tokens=tokens,
        stage_step=stage_step,
        percent=_percent(turn, share),
        stage_percent=100.0 * share,
        tokens_per_s=tokens_per_s,
        step_s=step_s,
        eta_s=0.0 if memory.phase is Phase.SUCCEEDED else _eta_s(turn, stage_step, step_s),
        updated_age_s=turn.ranks.youngest_s,
    )


def account_of(turn: Turn) -> Account:
    """What the time from now to the next turn is booked under."""
    memory, phase = turn.memory, turn.memory.phase
    if phase in TERMINAL:
        return Account.CLOSED
    if phase in (Phase.PENDING, Phase.VALIDATING, Phase.QUEUED):
        return Account.QUEUE
    if phase in (Phase.HELD, Phase.GATING, Phase.HANDING_OVER):
        return Account.HOLD
    if phase in (Phase.SUSPENDING, Phase.SUSPENDED, Phase.CANCELLING):
        return Account.SUSPENDED
    lead, live = turn.ranks.lead, memory.live
    doing = lead.phase if lead is not None else ""
    recovering = phase is Phase.RECOVERING
    if recovering:
        fresh = memory.recovery is not None and memory.recovery.alive_at_s is not None
        return Account.LOAD if fresh and doing == "loading" else Account.RESTART
    if doing == "loading":
        return Account.LOAD
    if doing == "saving":
        return Account.CHECKPOINT_STALL
    if doing not in STEPPING or live is None:
        return Account.START
    return Account.RECOMPUTE if live.last_step < live.recompute_until else Account.PRODUCTIVE


def _stage_share(turn: Turn, stage_step: int) -> float:
    stage = turn.stage
    if stage.steps:
        return min(1.0, stage_step / stage.steps)
    if stage.wall_s:
        return min(1.0, _trained_s(turn) / stage.wall_s)
    return 0.0


def _trained_s(turn: Turn) -> float:
    """Productive seconds of the current stage."""
    start = turn.stage_memory.start_productive_s if turn.memory.stages else 0.0
    return max(0.0, turn.memory.ledger.productive - start)


def _percent(turn: Turn, share: float) -> float | None:
    """Weighted by tokens where every stage has them, by stages otherwise."""
    if turn.memory.phase is Phase.SUCCEEDED:
        return 100.0
    weights = [_tokens(stage) for stage in turn.plan.stages]
    if any(weight is None for weight in weights):
        if len(weights) > 1:
            return None
        weights = [1.0]
    sizes = [float(weight or 0.0) for weight in weights]
    done = sum(sizes[: turn.memory.stage_index]) + sizes[turn.memory.stage_index] * share
    return 100.0 * done / sum(sizes) if sum(sizes) > 0.0 else None


def _tokens(stage: StagePlan) -> float | None:
    return float(stage.steps * stage.batch_tokens) if stage.steps and stage.batch_tokens else None


def _step_s(turn: Turn) -> float | None:
    """Seconds per step over this attempt: measured between its first and its last step, else the trainer's own median."""
    live, lead = turn.memory.live, turn.ranks.lead
    if live is None:
        return None
    if live.first_step_at_s is not None and live.last_step - live.first_step >= 2:
        return (live.last_step_at_s - live.first_step_at_s) / (live.last_step - live.first_step)
    if lead is not None and lead.step_median_s > 0.0 and lead.phase in STEPPING:
        return lead.step_median_s
    return None


def _eta_s(turn: Turn, stage_step: int, step_s: float | None) -> float | None:
    """Time left at this attempt's rate. Later stages are counted by their tokens at the same tokens per second."""
    stage = turn.stage
    if step_s is None:
        return None
    if stage.steps:
        left = max(0, stage.steps - stage_step) * step_s
    elif stage.wall_s:
        left = max(0.0, stage.wall_s - _trained_s(turn))
    else:
        return None
    for later in turn.plan.stages[turn.memory.stage_index + 1 :]:
        tokens = _tokens(later)
        if tokens is None or not stage.batch_tokens:
            return None
        left += tokens / stage.batch_tokens * step_s
    return left
