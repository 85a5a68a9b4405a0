"""Standing still: whether a run makes progress, and whether a second fact says that it hangs.

Progress is the finished step. All ranks of a step wait for each other, so a run stands still only when *every* rank is over its limit; one old
heartbeat among young ones is a lost file. The limit depends on what the rank says it is doing. A write that waits for the storage is no hang.
"""

from dataclasses import dataclass

from samite.lifecycle.evidence import Evidence, Source
from samite.lifecycle.memory import AttemptMemory
from samite.lifecycle.observed import ProcessState, RankObserved, StorageObserved
from samite.lifecycle.plan import DetectionPolicy
from samite.lifecycle.ranks import Ranks

LEARNING_WINDOW_STEPS = 5
"""Finished steps in one learning window."""
_LISTED = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Stillness:
    """What standing still looks like now."""

    over_limit: bool = False
    age_s: float = 0.0
    limit_s: float = 0.0
    phase: str = ""
    storage: bool = False
    """The storage explains it."""
    suspects: tuple[int, ...] = ()
    """Ranks to look at first: busy ones among idle ones, the minority of the stacks, or the oldest heartbeat."""
    evidence: tuple[Evidence, ...] = ()
    """The heartbeat's fact first, then second facts."""


def learnt(live: AttemptMemory, policy: DetectionPolicy) -> bool:
    """Whether this attempt has shown enough clean steps for the learnt limit to count."""
    return live.start_step >= 0 and live.last_step - live.start_step >= policy.learning_windows * LEARNING_WINDOW_STEPS


def limits_s(live: AttemptMemory, step_median_s: float, policy: DetectionPolicy) -> dict[str, float]:
    """The longest time without progress for each heartbeat phase."""
    training = max(policy.hang_floor_s, policy.hang_factor * step_median_s)
    if not learnt(live, policy):
        training = max(training, policy.first_step_s)
    return {
        "starting": policy.start_s,
        "loading": policy.load_s,
        "first_step": policy.first_step_s,
        "training": training,
        "evaluating": max(training, policy.eval_s),
        "saving": max(training, policy.save_s),
        "finishing": max(training, policy.save_s),
    }


def stillness(ranks: Ranks, live: AttemptMemory, storage: StorageObserved | None, policy: DetectionPolicy) -> Stillness:
    """Judge the newest incarnation. Without heartbeats nothing stands still: that is unknown."""
    if ranks.lead is None or ranks.youngest_s is None:
        return Stillness()
    limits = limits_s(live, ranks.lead.step_median_s, policy)
    over, saving, oldest = True, False, ranks.lead
    for rank in ranks.current:
        age = rank.progress_age_s
        if age is None or age <= limits.get(rank.phase, policy.first_step_s):
            over = False
            break
        saving = saving or rank.phase in ("saving", "finishing")
        if age > (oldest.progress_age_s or 0.0):
            oldest = rank
    limit = limits.get(ranks.lead.phase, policy.first_step_s)
    if not over:
        return Stillness(age_s=ranks.youngest_s, limit_s=limit, phase=ranks.lead.phase)
    first = Evidence(
        source=Source.HEARTBEAT,
        subject=f"{len(ranks.current)} ranks",
        says=f"no progress for {ranks.youngest_s:.1f} s in phase {ranks.lead.phase}, limit {limit:.1f} s",
    )
    second, suspects = _second_facts(ranks, limit, policy)
    return Stillness(
        over_limit=True,
        age_s=ranks.youngest_s,
        limit_s=limit,
        phase=ranks.lead.phase,
        storage=saving and storage is not None and storage.failing_for_s is not None,
        suspects=suspects or (oldest.rank,),
        evidence=(first, *second),
    )


def _second_facts(ranks: Ranks, limit_s: float, policy: DetectionPolicy) -> tuple[list[Evidence], tuple[int, ...]]:
    facts: list[Evidence] = []
    suspects: tuple[int, ...] = ()
    idle, busy, age_s = _by_activity(ranks.current, policy)
    enough = len(idle) > len(busy) or (idle and (ranks.youngest_s or 0.0) > 2.0 * limit_s)
    if enough:
        facts.append(
            Evidence(
                source=Source.PROCESS_TABLE,
                subject=f"{len(idle)} of {len(idle) + len(busy)} ranks",
                says=f"processes are idle (CPU below {100 * policy.idle_share:.0f} % for {policy.idle_window_s:.0f} s or more)",
                age_s=age_s,
            )
        )
        suspects = tuple(rank.rank for rank in busy[:_LISTED])
    devices = [rank.device_share for rank in ranks.current if rank.device_share is not None]
    if devices and max(devices) < policy.idle_share:
        facts.append(
            Evidence(
                source=Source.DEVICE,
                subject=f"{len(devices)} devices",
                says=f"busiest device computes {100 * max(devices):.1f} % of the time",
            )
        )
    minority = _minority(ranks.current)
    if minority:
        facts.append(
            Evidence(
                source=Source.STACKS,
                subject=f"ranks {', '.join(map(str, minority[:_LISTED]))}",
                says="stacks differ from those of the other ranks, which wait in one place",
            )
        )
        suspects = minority[:_LISTED]
    return facts, suspects


def _by_activity(ranks: list[RankObserved], policy: DetectionPolicy) -> tuple[list[RankObserved], list[RankObserved], float]:
    idle: list[RankObserved] = []
    busy: list[RankObserved] = []
    age_s = 0.0
    for rank in ranks:
        if rank.process is ProcessState.GONE or rank.cpu_share is None or rank.cpu_window_s < policy.idle_window_s:
            continue
        (idle if rank.cpu_share < policy.idle_share else busy).append(rank)
        age_s = max(age_s, rank.process_age_s)
    return idle, busy, age_s


def _minority(ranks: list[RankObserved]) -> tuple[int, ...]:
    groups: dict[str, list[int]] = {}
    for rank in ranks:
        if rank.stack_group is not None:
            groups.setdefault(rank.stack_group, []).append(rank.rank)
    if len(groups) < 2:
        return ()
    largest = max(groups.values(), key=len)
    others = sorted(number for group in groups.values() if group is not largest for number in group)
    return tuple(others) if len(others) < len(largest) else ()
