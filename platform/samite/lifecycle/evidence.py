"""Facts, and the rule that a destructive action needs two of them.

A fact has a source, an age, and a class. An action that could destroy working training needs at least one *data-plane* fact and one
*independent* fact: of another class, or of the data plane but from another source. Both must be fresher than twice their source's period.
A missing answer is not a fact: sources that are silent contribute nothing here, whatever their silence might mean.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class FactClass(StrEnum):
    """Which plane a fact comes from."""

    DATA_PLANE = "data_plane"
    CONTROL_PLANE = "control_plane"
    HARDWARE = "hardware"


class Source(StrEnum):
    """Who says so. `CLASS_OF` gives each source's class and `PERIOD_S` how often it reports."""

    HEARTBEAT = "heartbeat"
    RANK_EXIT = "rank_exit"
    PROCESS_TABLE = "process_table"
    FAILURE_REPORT = "failure_report"
    ATTEMPT_RESULT = "attempt_result"
    STACKS = "stacks"
    COLLECTIVES = "collectives"
    STORAGE = "storage"
    RAY_NODE = "ray_node"
    RAY_JOB = "ray_job"
    NODE_SUPERVISOR = "node_supervisor"
    KUBERNETES = "kubernetes"
    DEVICE = "device"


CLASS_OF: dict[Source, FactClass] = {
    Source.HEARTBEAT: FactClass.DATA_PLANE,
    Source.RANK_EXIT: FactClass.DATA_PLANE,
    Source.PROCESS_TABLE: FactClass.DATA_PLANE,
    Source.FAILURE_REPORT: FactClass.DATA_PLANE,
    Source.ATTEMPT_RESULT: FactClass.DATA_PLANE,
    Source.STACKS: FactClass.DATA_PLANE,
    Source.COLLECTIVES: FactClass.DATA_PLANE,
    Source.STORAGE: FactClass.DATA_PLANE,
    Source.RAY_NODE: FactClass.DATA_PLANE,
    Source.RAY_JOB: FactClass.CONTROL_PLANE,
    Source.NODE_SUPERVISOR: FactClass.CONTROL_PLANE,
    Source.KUBERNETES: FactClass.CONTROL_PLANE,
    Source.DEVICE: FactClass.HARDWARE,
}

PERIOD_S: dict[Source, float] = {
    Source.HEARTBEAT: 10.0,
    Source.RANK_EXIT: 5.0,
    Source.PROCESS_TABLE: 5.0,
    Source.FAILURE_REPORT: 5.0,
    Source.ATTEMPT_RESULT: 5.0,
    Source.STACKS: 45.0,
    Source.COLLECTIVES: 15.0,
    Source.STORAGE: 10.0,
    Source.RAY_NODE: 10.0,
    Source.RAY_JOB: 5.0,
    Source.NODE_SUPERVISOR: 5.0,
    Source.KUBERNETES: 10.0,
    Source.DEVICE: 15.0,
}
"""Seconds between two reports of a source (the "fresh within" column of the detection table)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """One fact that supports a decision."""

    source: Source
    subject: str
    """`rank 3`, `node n1`, `job demo-s00-a2`, `cluster demo-s00-1f2e3`."""
    says: str
    """The fact with its number, as a person should read it: `no step for 131 s, limit 120 s`."""
    age_s: float = 0.0
    """Seconds since the source was read."""
    final: bool = False
    """True for facts that cannot become untrue: a process exit, a written report. They do not go stale."""

    @property
    def fact_class(self) -> FactClass:
        """The plane of the source."""
        return CLASS_OF[self.source]

    @property
    def fresh(self) -> bool:
        """Whether the fact may still be acted on: final, or younger than twice its source's period."""
        return self.final or 0.0 <= self.age_s <= 2.0 * PERIOD_S[self.source]


def sufficient(evidence: Iterable[Evidence]) -> bool:
    """True if `evidence` holds a fresh data-plane fact and a second fresh fact that is independent of it."""
    sources = {item.source for item in evidence if item.fresh}
    return len(sources) >= 2 and any(CLASS_OF[source] is FactClass.DATA_PLANE for source in sources)


def missing(evidence: Iterable[Evidence]) -> str:
    """What a person should know when `sufficient` is false: which fact is there, which is not. Empty if sufficient."""
    facts = [item for item in evidence if item.fresh]
    if sufficient(facts):
        return ""
    if not facts:
        return "no fresh fact"
    if any(item.fact_class is FactClass.DATA_PLANE for item in facts):
        return f"only {facts[0].source} says so ({facts[0].subject}: {facts[0].says}); a second, independent fact is missing"
    return f"{facts[0].source} says {facts[0].subject}: {facts[0].says}; no fact from the training itself supports it"
