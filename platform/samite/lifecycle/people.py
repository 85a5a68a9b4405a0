"""What people ask of a run: requests with an id, each answered once however often it is observed."""

from dataclasses import dataclass
from enum import StrEnum


class RequestKind(StrEnum):
    """What a person can ask for."""

    RESUME = "resume"
    """Go on from Held, with fresh budgets for the class that was used up."""
    RESTART = "restart"
    """Next attempt now, at L2, or at L3 with argument `L3`."""
    SKIP = "skip"
    """Leave out data windows from the next attempt on: `windows`. Restarts."""
    APPROVE = "approve"
    """Open a manual gate, or let a failed one pass: argument is the stage's name."""
    EXCLUDE = "exclude"
    """Do not use a node: argument is its name."""
    UNCORDON = "uncordon"
    """Use a node again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One wish of a person. May be observed any number of times; it is answered once for each id."""

    request_id: str
    kind: RequestKind
    argument: str = ""
    by: str = ""
    windows: tuple[tuple[int, int], ...] = ()
