"""What the memory holds against nodes and moments: strikes that count (`blame`), and suspicions that nothing was done about yet (`suspicion`)."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class BlameMemory:
    """Strikes of one node, and whether it is excluded."""

    node: str
    strikes: float = 0.0
    updated_s: float = 0.0
    excluded_until_s: float | None = None
    reason: str = ""
    seen: tuple[str, ...] = ()
    """Facts that were counted already, so that repeated observations do not count twice. At most 8."""
    last_flap_s: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Suspicion:
    """Something that looks wrong on too little evidence to act."""

    kind: str
    """hang | storage | straggler | failure"""
    submission_id: str
    incarnation: int
    since_s: float
    since_watched_s: float
    diagnostics_id: str = ""
    confirmed: bool = False
    detail: str = ""
