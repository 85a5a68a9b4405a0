"""What to do about a failure: the restart ladder as a pure function.

Reads as the policy does: first the reasons to stop trying, then how much is restarted, then when.
"""

from dataclasses import dataclass

from samite.lifecycle import budgets
from samite.lifecycle.memory import FailureRecord, Memory
from samite.lifecycle.phases import FailureClass, Level
from samite.lifecycle.plan import RunPlan
from samite.lifecycle.rollback import covered

HANGS_BEFORE_REGROUPING = 3
SPIKES = frozenset({"LossSpike", "GradNormSpike"})
"""Error types of a trainer that was told to end its attempt when the numbers leave their band."""
UNCOUNTED = frozenset({FailureClass.USER, FailureClass.PREEMPTION})
"""Classes that are not the run's fault: they make no cycle without progress."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Restart:
    """Start again at `level`, not before `not_before_s`; exchange `evict` first."""

    level: Level
    not_before_s: float
    evict: tuple[str, ...] = ()
    skip_window: tuple[int, int] | None = None
    good_step: int = -1
    """Go back to a checkpoint of this step or an older one; -1: to the newest."""
    roll_back_steps: int = 0
    """And at least so much older, if there is one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stop:
    """Stop trying. `outcome` is Hold (a person is asked) or Fail. `message` is shown as it is: it says what would help."""

    outcome: str
    reason: str
    message: str


def next_step(plan: RunPlan, memory: Memory, failure: FailureRecord, *, now_s: float, in_place: bool) -> Restart | Stop:
    """`in_place`: the submission is still alive and Ray may restart its worker group once more. `failure` is not yet part of `memory.failures`."""
    policy, failure_class = plan.restart, failure.failure_class
    if failure.verdict:
        return Stop(outcome=failure.verdict, reason="ExitCodeRule", message=f"{failure.message}; restart.exitCodes says {failure.verdict}")
    if not failure.restartable:
        return _stop(plan, "NoRestart", f"{failure.message}; fix the cause, then `samite resume {plan.name}`")
    if failure_class is FailureClass.NUMERIC:
        answer = plan.stages[memory.stage_index].numeric.on_nonfinite
        if answer != "RollBack" and failure.error_type not in SPIKES:
            return Stop(outcome=answer, reason="Numeric", message=f"{failure.message}; numeric.onNonfinite is {answer}")
        if failure.data_window is not None and covered(failure.data_window, memory.skip_data_windows):
            return Stop(
                outcome="Hold",
                reason="SameDataWindow",
                message=f"data window {_window(failure.data_window)} was skipped once and failed again: the data is not the cause",
            )
    repeated = same_failures(plan, memory, failure)
    if any(record.evicted for record in repeated):
        where = f"rank {', '.join(map(str, failure.ranks))}" if failure.ranks else f"node {', '.join(failure.nodes)}"
        return _stop(
            plan,
            "SameFailureAfterEviction",
            f"{failure_class} failure of {where} came back on other nodes, {len(repeated) + 1} times in all: "
            f"more restarts won't help; see `samite logs {plan.name}`",
        )
    if failure_class not in UNCOUNTED and memory.cycles_without_commit + 1 >= policy.no_progress_cycles:
        return _stop(
            plan,
            "NoProgress",
            f"{memory.cycles_without_commit + 1} failures in a row without a new checkpoint; last: {failure.message}",
        )
    left = budgets.left(policy, memory.spent, failure_class, now_s)
    waits = budgets.budget_of(policy, failure_class).waits
    if left <= 0 and not waits:
        return _stop(plan, "BudgetExhausted", _exhausted(plan, failure))
    level = _level(plan, memory, failure, in_place=in_place)
    if level > policy.max_level:
        return _stop(plan, "MaxLevel", f"{failure.message}; a restart at L{level} is needed and restart.maxLevel is {policy.max_level}")
    wait_s = budgets.backoff_s(
        policy,
        uid=plan.uid,
        attempt=memory.attempt + 1,
        exponent=memory.backoff_exponent,
        failure_class=failure_class,
    )
    return Restart(
        level=level,
        not_before_s=now_s
        if level is Level.L1_WORKER_GROUP
        else max(now_s + wait_s, budgets.refills_at_s(policy, memory.spent, failure_class, now_s)),
        evict=_evict(plan, failure, repeated) if level > Level.L1_WORKER_GROUP else (),
        skip_window=failure.data_window if failure_class is FailureClass.NUMERIC else None,
        good_step=failure.good_step if failure_class is FailureClass.NUMERIC else -1,
        roll_back_steps=plan.stages[memory.stage_index].numeric.roll_back_steps,
    )


def same_failures(plan: RunPlan, memory: Memory, failure: FailureRecord) -> tuple[FailureRecord, ...]:
    """Earlier failures of the same class and the same ranks (the same nodes for `infra`), since checkpoints last earned trust back."""
    recent = (
        record
        for record in memory.failures
        if record.failure_class is failure.failure_class and memory.commits - record.commits < plan.restart.forget_after_commits
    )
    if failure.failure_class in (FailureClass.PREEMPTION, FailureClass.USER):
        return ()
    if failure.failure_class is FailureClass.INFRA:
        return tuple(record for record in recent if failure.nodes and _places(record) == _places(failure))
    return tuple(record for record in recent if failure.ranks and record.ranks == failure.ranks)


def _level(plan: RunPlan, memory: Memory, failure: FailureRecord, *, in_place: bool) -> Level:
    if failure.lost_head:
        return Level.L3_CLUSTER
    level = Level.L1_WORKER_GROUP
    if failure.lost_nodes or not in_place:
        level = Level.L2_ATTEMPT
    if failure.failure_class in (FailureClass.NUMERIC, FailureClass.OOM, FailureClass.PREEMPTION, FailureClass.USER, FailureClass.OPERATOR):
        level = Level.L2_ATTEMPT
    if failure.failure_class is FailureClass.HANG and _hangs_in_a_row(memory) + 1 >= HANGS_BEFORE_REGROUPING:
        level = Level.L2_ATTEMPT
    return max(level, Level(min(plan.restart.start_level, Level.L3_CLUSTER)))


def _hangs_in_a_row(memory: Memory) -> int:
    row = 0
    for record in reversed(memory.failures):
        if record.failure_class is not FailureClass.HANG:
            break
        row += 1
    return row


def _evict(plan: RunPlan, failure: FailureRecord, repeated: tuple[FailureRecord, ...]) -> tuple[str, ...]:
    """Nodes to exchange although they live: the same place failed before."""
    if failure.lost_nodes or failure.lost_head or not repeated or not plan.nodes.exclude_blamed:
        return ()
    if failure.failure_class in (FailureClass.NUMERIC, FailureClass.OPERATOR):
        return ()
    return failure.nodes[:1]


def _places(record: FailureRecord) -> tuple[str, ...]:
    return record.machines or record.nodes


def _stop(plan: RunPlan, reason: str, message: str) -> Stop:
    return Stop(outcome=plan.restart.on_exhausted, reason=reason, message=message)


def _exhausted(plan: RunPlan, failure: FailureRecord) -> str:
    budget = budgets.budget_of(plan.restart, failure.failure_class)
    used = f"{budget.limit} {failure.failure_class} restart{'s' if budget.limit != 1 else ''} used"
    if budget.window_s is not None:
        used += f" within {budget.window_s / 3600.0:g} h"
    hint = f"raise restart.budgets.{failure.failure_class}.limit or fix the cause"
    if failure.failure_class is FailureClass.OOM:
        hint = "the same shape will not fit: lower batch.microBatch or contextLength, or raise parallel.context or the number of workers"
    return f"{used}; last: {failure.message}; {hint}"


def _window(window: tuple[int, int]) -> str:
    return f"[{window[0]}, {window[1]})"
