"""One turn of a run: from what is wanted, seen and remembered to what is to be done. Pure; see the package's docstring for the loop."""

from dataclasses import dataclass, field
from typing import Any

from samite.lifecycle.actions import DESTRUCTIVE, Action
from samite.lifecycle.memory import Memory
from samite.lifecycle.status import Status


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """Something to append to the run's event log. Names are those of `samite.telemetry.names`."""

    name: str
    severity: str = "info"
    attributes: dict[str, Any] = field(default_factory=dict, hash=False)


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
