"""The workbench of one turn: what is wanted, seen and remembered, and what has been decided so far.

Created by `decide`, changed by the phase modules, thrown away after the turn. The only mutable thing in this package.
"""

from dataclasses import dataclass, field, replace
from typing import Any

from samite.lifecycle.actions import Action
from samite.lifecycle.memory import AttemptMemory, Memory, StageMemory
from samite.lifecycle.observed import AttemptObserved, ClusterObserved, Observed
from samite.lifecycle.phases import Phase, followers
from samite.lifecycle.plan import RunPlan, StagePlan
from samite.lifecycle.ranks import Ranks, look_at_ranks

LONGEST_GAP_S = 60.0
"""A gap between two turns counts as watched for at most this long."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """Something for the run's event log. Names and attribute keywords are those of `samite.telemetry.names`, which also knows the severity."""

    name: str
    attributes: dict[str, Any] = field(default_factory=dict, hash=False)


class Turn:
    """One turn. `memory` is replaced, never changed."""

    def __init__(self, plan: RunPlan, observed: Observed, memory: Memory, now_s: float) -> None:
        self.plan = plan
        self.actions: list[Action] = []
        self.events: list[Event] = []
        self.notes: list[str] = []
        """What this turn waits for, for the status message."""
        self._ranks: dict[str, Ranks] = {}
        self.now_s = now_s if memory.started_at_s is None else max(now_s, memory.now_s)
        elapsed = 0.0 if memory.started_at_s is None else self.now_s - memory.now_s
        stale = observed.at_s < memory.observed_at_s
        # A late observation tells nothing, but what people asked for stays asked.
        self.observed = observed if not stale else _only_wishes(observed)
        self.memory = replace(
            memory,
            now_s=self.now_s,
            started_at_s=self.now_s if memory.started_at_s is None else memory.started_at_s,
            watched_s=memory.watched_s + min(elapsed, LONGEST_GAP_S),
            observed_at_s=max(memory.observed_at_s, observed.at_s),
            ledger=memory.ledger.booked(elapsed),
        )

    @property
    def watched_s(self) -> float:
        """The clock that limits are measured on."""
        return self.memory.watched_s

    @property
    def stage(self) -> StagePlan:
        """The current stage's plan."""
        return self.plan.stages[self.memory.stage_index]

    @property
    def stage_memory(self) -> StageMemory:
        """The current stage's record."""
        return self.memory.stages[self.memory.stage_index]

    @property
    def ranks(self) -> Ranks:
        """The live attempt's newest incarnation; looked at once a turn."""
        key = self.memory.live.submission_id if self.memory.live is not None else ""
        if key not in self._ranks:
            self._ranks[key] = look_at_ranks(self.observed.ranks, self.memory.live)
        return self._ranks[key]

    @property
    def live_seen(self) -> AttemptObserved:
        """What was observed of the live attempt; nothing known if nothing was."""
        return self.attempt_seen(self.memory.live.submission_id if self.memory.live is not None else "")

    def attempt_seen(self, submission_id: str) -> AttemptObserved:
        """What was observed of a submission."""
        for seen in self.observed.attempts:
            if seen.submission_id == submission_id:
                return seen
        return AttemptObserved(submission_id=submission_id)

    def cluster_seen(self) -> ClusterObserved:
        """What was observed of the cluster that memory knows."""
        cluster_id = self.memory.cluster.cluster_id if self.memory.cluster is not None else ""
        for seen in self.observed.cluster:
            if seen.cluster_id == cluster_id:
                return seen
        return ClusterObserved(cluster_id=cluster_id)

    def machine_of(self, node: str) -> str:
        """The machine that a node of the cluster runs on; `node` itself if nobody says more."""
        return next((seen.machine for seen in self.cluster_seen().nodes if seen.name == node), node)

    def after(self, age_s: float, moment_s: float) -> bool:
        """Whether something seen `age_s` ago was seen after `moment_s`: only then can it answer what was wanted then."""
        return self.now_s - age_s >= moment_s

    def remember(self, **changes: Any) -> None:
        """Replace fields of the memory."""
        self.memory = replace(self.memory, **changes)

    def remember_live(self, **changes: Any) -> None:
        """Replace fields of the live attempt's record."""
        assert self.memory.live is not None
        self.memory = replace(self.memory, live=replace(self.memory.live, **changes))

    def remember_cluster(self, **changes: Any) -> None:
        """Replace fields of the cluster's record."""
        assert self.memory.cluster is not None
        self.memory = replace(self.memory, cluster=replace(self.memory.cluster, **changes))

    def remember_recovery(self, **changes: Any) -> None:
        """Replace fields of the recovery's record."""
        assert self.memory.recovery is not None
        self.memory = replace(self.memory, recovery=replace(self.memory.recovery, **changes))

    def remember_stage(self, **changes: Any) -> None:
        """Replace fields of the current stage's record."""
        stages = list(self.memory.stages)
        stages[self.memory.stage_index] = replace(stages[self.memory.stage_index], **changes)
        self.memory = replace(self.memory, stages=tuple(stages))

    def act(self, action: Action) -> None:
        """Ask for an action; the same one twice in a turn counts once."""
        if action not in self.actions:
            self.actions.append(action)

    def emit(self, name: str, **attributes: Any) -> None:
        """Append an event."""
        self.events.append(Event(name=name, attributes=attributes))

    def wait_for(self, what: str) -> None:
        """Note what the run waits for; shown in the status message, not stored."""
        self.notes.append(what)

    def goto(self, phase: Phase, reason: str, message: str = "") -> None:
        """Change the phase. The same phase only changes reason and message."""
        memory = self.memory
        if phase is memory.phase:
            self.remember(reason=reason, message=message)
            return
        assert phase in followers(memory.phase), f"{memory.phase} -> {phase} is no transition"
        self.emit("samite.run.phase.changed", phase_from=memory.phase.value, phase_to=phase.value, reason=reason, message=message)
        self.remember(
            phase=phase,
            reason=reason,
            message=message,
            phase_since_s=self.now_s,
            phase_since_watched_s=self.watched_s,
        )

    @property
    def in_phase_s(self) -> float:
        """Watched seconds in the current phase."""
        return self.watched_s - self.memory.phase_since_watched_s


def live_of(turn: Turn) -> AttemptMemory:
    """The live attempt; only to be called where there is one."""
    assert turn.memory.live is not None
    return turn.memory.live


def _only_wishes(observed: Observed) -> Observed:
    return Observed(
        at_s=observed.at_s,
        admitted=None,
        suspend=observed.suspend,
        cancel=observed.cancel,
        requests=observed.requests,
    )
