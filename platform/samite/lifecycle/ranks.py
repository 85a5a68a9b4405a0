"""The ranks of the live attempt, seen in one pass: linear in their number, whatever is asked about them later."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from samite.lifecycle.classify import RankExit
from samite.lifecycle.evidence import PERIOD_S, Source
from samite.lifecycle.memory import AttemptMemory
from samite.lifecycle.observed import ProcessState, RankObserved

STEPPING = frozenset({"training", "evaluating", "saving", "finishing"})
"""Heartbeat phases that a rank reaches after its first finished step."""
LOADED = STEPPING | {"first_step"}
_FAILURES_KEPT = 64


@dataclass(slots=True)
class Ranks:
    """What the newest incarnation of the live attempt shows."""

    incarnation: int = 0
    current: list[RankObserved] = field(default_factory=list)
    """Ranks of the newest incarnation that have a heartbeat."""
    lead: RankObserved | None = None
    """The rank with the most finished steps; the younger heartbeat among equals."""
    youngest_s: float | None = None
    """Age of the newest sign of progress; None without any heartbeat."""
    failed: list[RankExit] = field(default_factory=list)
    """Ranks of the newest incarnation whose process ended badly or is gone, at most 64, lowest rank first."""
    num_failed: int = 0
    num_gone: int = 0
    num_alive: int = 0
    """Ranks that the process table, asked a moment ago, says are alive or stopped."""
    stopped: list[RankObserved] = field(default_factory=list)

    @property
    def all_gone(self) -> bool:
        """Every rank with a heartbeat is known to have no process."""
        return bool(self.current) and self.num_gone == len(self.current)

    @property
    def stepping(self) -> bool:
        """A step of this incarnation is finished."""
        return self.lead is not None and self.lead.phase in STEPPING


def look_at_ranks(observed: Iterable[RankObserved], live: AttemptMemory | None) -> Ranks:
    """The newest incarnation of `live` among what was observed; ranks of other submissions and older incarnations are left out."""
    if live is None:
        return Ranks()
    mine = [rank for rank in observed if rank.submission_id == live.submission_id]
    newest = max((rank.incarnation for rank in mine if rank.phase), default=0)
    seen = Ranks(incarnation=max(newest, live.incarnation))
    fresh_s = 2.0 * PERIOD_S[Source.PROCESS_TABLE]
    best = -2
    for rank in mine:
        if rank.incarnation < seen.incarnation or not rank.phase:
            continue
        seen.current.append(rank)
        age = rank.progress_age_s
        if age is not None and (seen.youngest_s is None or age < seen.youngest_s):
            seen.youngest_s = age
        if rank.step > best or (rank.step == best and _younger(rank, seen.lead)):
            best, seen.lead = rank.step, rank
        if rank.process is None and rank.exit_code is None and rank.exit_signal is None:
            continue
        gone = rank.process is ProcessState.GONE or rank.exit_code is not None or rank.exit_signal is not None
        if gone:
            seen.num_gone += 1
            if not _ended_well(rank):
                seen.num_failed += 1
                if len(seen.failed) < _FAILURES_KEPT:
                    seen.failed.append(RankExit(rank=rank.rank, node=rank.node, code=rank.exit_code, signal=rank.exit_signal))
        elif rank.process_age_s <= fresh_s:
            seen.num_alive += 1
            if rank.process is ProcessState.STOPPED:
                seen.stopped.append(rank)
    return seen


def _younger(rank: RankObserved, lead: RankObserved | None) -> bool:
    if lead is None or lead.progress_age_s is None:
        return True
    return rank.progress_age_s is not None and rank.progress_age_s < lead.progress_age_s


def _ended_well(rank: RankObserved) -> bool:
    """A rank that leaves while finishing, without a bad exit code, is going home."""
    return rank.exit_signal is None and rank.exit_code in (None, 0) and (rank.phase == "finishing" or rank.exit_code == 0)
