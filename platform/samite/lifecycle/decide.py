"""One turn of a run: from what is wanted, seen and remembered to what is to be done. Pure; see the package's docstring for the loop."""

from collections.abc import Callable
from dataclasses import dataclass

from samite.lifecycle import finishing, leaving, preparing
from samite.lifecycle.actions import DESTRUCTIVE, Action
from samite.lifecycle.capacity import workers_are_gone
from samite.lifecycle.commits import note_commits
from samite.lifecycle.describe import account_of, status_of
from samite.lifecycle.memory import Memory
from samite.lifecycle.observed import Observed
from samite.lifecycle.phases import TERMINAL, Phase
from samite.lifecycle.plan import RunPlan
from samite.lifecycle.recovering import recovering
from samite.lifecycle.requests import answer_requests
from samite.lifecycle.status import Status
from samite.lifecycle.trust import note_node_facts
from samite.lifecycle.turn import Event, Turn

__all__ = ["Decision", "Event", "decide"]

_HOPS = 8
"""More phase changes than any one turn can need."""

_HANDLERS: dict[Phase, Callable[[Turn], None]] = {
    Phase.PENDING: preparing.pending,
    Phase.VALIDATING: preparing.validating,
    Phase.QUEUED: preparing.queued,
    Phase.PROVISIONING: preparing.provisioning,
    Phase.STARTING: preparing.starting,
    Phase.RUNNING: preparing.running,
    Phase.RECOVERING: recovering,
    Phase.GATING: finishing.gating,
    Phase.HANDING_OVER: finishing.handing_over,
    Phase.SUCCEEDED: finishing.ended,
    Phase.FAILED: finishing.ended,
    Phase.CANCELLED: finishing.ended,
    Phase.SUSPENDING: leaving.suspending,
    Phase.SUSPENDED: leaving.suspended,
    Phase.HELD: leaving.held,
    Phase.CANCELLING: leaving.cancelling,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """The outcome of one turn."""

    actions: tuple[Action, ...]
    memory: Memory
    status: Status
    events: tuple[Event, ...] = ()
    settled: bool = False
    """Nothing is left to watch (terminal, held or suspended, and the cluster gone): the engine may end until somebody asks for something."""

    @property
    def destructive(self) -> tuple[Action, ...]:
        """The actions that could end working training."""
        return tuple(action for action in self.actions if isinstance(action, DESTRUCTIVE))


def decide(plan: RunPlan, observed: Observed, memory: Memory, now_s: float) -> Decision:
    """Decide one turn. `now_s`: seconds on a clock that does not jump while the engine lives (monotonic time, anchored to the wall clock once).

    Store the returned memory before applying the returned actions. Calling again with the same arguments gives the same answer.
    """
    turn = Turn(plan, observed, memory, now_s)
    note_commits(turn)
    note_node_facts(turn)
    answer_requests(turn)
    for _ in range(_HOPS):
        before = turn.memory.phase
        _HANDLERS[before](turn)
        if turn.memory.phase is before:
            break
    turn.remember(ledger=turn.memory.ledger.opened(account_of(turn)))
    return Decision(
        actions=tuple(turn.actions),
        memory=turn.memory,
        status=status_of(turn),
        events=tuple(turn.events),
        settled=_settled(turn),
    )


def _settled(turn: Turn) -> bool:
    phase, plan = turn.memory.phase, turn.plan
    if phase in TERMINAL and phase.value in plan.keep_cluster_after:
        return True
    if phase in TERMINAL and phase.value in plan.keep_head_after:
        return workers_are_gone(turn)
    return phase in (*TERMINAL, Phase.HELD, Phase.SUSPENDED) and turn.memory.cluster is None
