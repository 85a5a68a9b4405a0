"""How many restarts are left, how long the next one waits, and when committed checkpoints earn trust back. Pure arithmetic."""

import hashlib
from collections.abc import Mapping

from samite.lifecycle.phases import FailureClass
from samite.lifecycle.plan import Budget, RestartPolicy

_UNLIMITED = Budget(limit=1_000_000)
"""For class `user`: what a person asks for costs nothing."""

Spent = Mapping[FailureClass, tuple[float, ...]]


def budget_of(policy: RestartPolicy, failure_class: FailureClass) -> Budget:
    """The budget of a class."""
    return policy.budgets.get(failure_class, _UNLIMITED)


def counted(spent: Spent, failure_class: FailureClass, budget: Budget, now_s: float) -> tuple[float, ...]:
    """Times of restarts that still count: all, or those inside the sliding window."""
    times = spent.get(failure_class, ())
    return times if budget.window_s is None else tuple(at for at in times if now_s - at < budget.window_s)


def left(policy: RestartPolicy, spent: Spent, failure_class: FailureClass, now_s: float) -> int:
    """Restarts left for a class, never below 0."""
    budget = budget_of(policy, failure_class)
    return max(0, budget.limit - len(counted(spent, failure_class, budget, now_s)))


def refills_at_s(policy: RestartPolicy, spent: Spent, failure_class: FailureClass, now_s: float) -> float:
    """When the next restart of an empty class becomes free through its window; `now_s` if one is left already."""
    budget = budget_of(policy, failure_class)
    times = counted(spent, failure_class, budget, now_s)
    if len(times) < budget.limit or budget.window_s is None or not budget.limit:
        return now_s
    return times[-budget.limit] + budget.window_s


def spend(policy: RestartPolicy, spent: Spent, failure_class: FailureClass, now_s: float) -> dict[FailureClass, tuple[float, ...]]:
    """With one more restart of a class. Times beyond the limit are dropped, oldest first: they can no longer matter."""
    budget = budget_of(policy, failure_class)
    times = (*counted(spent, failure_class, budget, now_s), now_s)
    keep = min(max(budget.limit, 1), 1000)
    return {**spent, failure_class: times[-keep:]}


def after_commits(policy: RestartPolicy, spent: Spent, commits_since_failure: int) -> dict[FailureClass, tuple[float, ...]]:
    """After so many committed checkpoints since the last failure: budgets that reset by commits are full again."""
    kept = {}
    for failure_class, times in spent.items():
        resets = budget_of(policy, failure_class).reset_after_commits
        if resets is None or commits_since_failure < resets:
            kept[failure_class] = times
    return kept


def for_new_stage(policy: RestartPolicy, spent: Spent) -> dict[FailureClass, tuple[float, ...]]:
    """At the beginning of a stage: budgets that count per stage are full again."""
    return {key: times for key, times in spent.items() if not budget_of(policy, key).per_stage}


def in_place_restarts(policy: RestartPolicy, spent: Spent, cycles_without_commit: int, now_s: float) -> int:
    """How often a new submission may restart its worker group by itself (L1): never more than any budget it could draw on still has."""
    return max(
        0,
        min(
            policy.in_place_restarts,
            left(policy, spent, FailureClass.INFRA, now_s),
            left(policy, spent, FailureClass.APPLICATION, now_s),
            policy.no_progress_cycles - 1 - cycles_without_commit,
        ),
    )


def backoff_s(policy: RestartPolicy, *, uid: str, attempt: int, exponent: int, failure_class: FailureClass) -> float:
    """Seconds to wait before `attempt`: initial x 2^exponent, capped, with full jitter. The jitter is a hash of run and attempt.

    A first failure of infrastructure, a preemption and a person's wish do not wait.
    """
    if failure_class is FailureClass.USER:
        return 0.0
    if exponent == 0 and failure_class in (FailureClass.INFRA, FailureClass.PREEMPTION):
        return 0.0
    longest = min(policy.backoff_cap_s, policy.backoff_initial_s * 2.0 ** min(exponent, 30))
    return longest * jitter(uid, attempt)


def jitter(uid: str, attempt: int) -> float:
    """A number in [0, 1) that is the same in every replay and differs between runs and attempts."""
    digest = hashlib.sha256(f"{uid}/{attempt}".encode()).digest()
    return int.from_bytes(digest[:7], "big") / 2.0**56
