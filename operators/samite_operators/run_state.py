"""What a process remembers of one run between two turns, to save work. All of it can be lost."""

from dataclasses import dataclass

from samite.lifecycle import Status
from samite_operators.clearing import Clearing
from samite_operators.plans import Planned
from samite_operators.status import StatusWriter


@dataclass(frozen=True, kw_only=True, slots=True)
class Next:
    """When the next turn is due, and how this one ended (`samite.turn.outcome`)."""

    in_s: float | None
    """None: the run is gone, there is none."""
    outcome: str = "done"


@dataclass(slots=True)
class RunState:
    """What this process remembers of one run to save work; all of it can be lost."""

    uid: str
    writer: StatusWriter
    clearing: Clearing
    planned: Planned | None = None
    status: Status | None = None
    signalled_at_s: float = -1e9
    problems: tuple[str, ...] = ()
    """What the last actions could not do, if waiting will not help."""
    failures: int = 0
    """Turns in a row that ended in an error of ours."""
    denied: tuple[str, ...] = ()
    """Rights that were missing in the last turn."""
