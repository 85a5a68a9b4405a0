"""What exists in the simulated world: nodes, clusters, ranks, jobs, checkpoints. Mutable, without behaviour."""

from dataclasses import dataclass, field

from samite.lifecycle.actions import Submit
from samite.lifecycle.observed import JobStatus
from samite.spec.attempt import AttemptResult, FailureReport

LIVE = (JobStatus.PENDING, JobStatus.RUNNING)


class BrokenPromiseError(AssertionError):
    """Something happened in the simulated world that must never happen."""


@dataclass(slots=True)
class SimNode:
    """A worker node."""

    name: str
    ready_at: float
    dead_since: float | None = None
    preempted: bool = False


@dataclass(slots=True)
class SimCluster:
    """A cluster; `gone_at` is set while it is taken down."""

    cluster_id: str
    ready_at: float
    nodes: dict[str, SimNode] = field(default_factory=dict)
    head_dead_since: float | None = None
    gone_at: float | None = None
    gone: bool = False
    head_kept: bool = False
    """Its workers were given back after the end; the head stays."""


@dataclass(slots=True)
class SimRank:
    """A rank's process."""

    rank: int
    node: str
    alive: bool = True
    stopped: bool = False
    asleep: bool = False
    beat_at: float = 0.0
    phase: str = ""
    step: int = -1


@dataclass(slots=True)
class SimJob:
    """A submission and its worker group."""

    submit: Submit
    accepted_at: float
    status: JobStatus = JobStatus.RUNNING
    incarnation: int = 0
    group_since: float = 0.0
    ranks: list[SimRank] = field(default_factory=list)
    beats: dict[int, tuple[int, SimRank]] = field(default_factory=dict)
    """Newest heartbeat file of each rank: the incarnation and the process that wrote it."""
    step: int = -1
    stage_step: int = 0
    broken_at: float | None = None
    """When a rank died; Ray reacts after `ray_reacts_s`."""
    reports: list[FailureReport] = field(default_factory=list)
    result: AttemptResult | None = None
    stop_after_checkpoint: bool = False
    message: str = ""
    driver_alive: bool = True
    leaves_orphans: bool = False
    """Its ranks outlive it."""


@dataclass(slots=True)
class SimCheckpoint:
    """A committed checkpoint."""

    checkpoint_id: str
    step: int
    stage_index: int
    stage_step: int
    attempt: int
    committed_at: float
    verified: bool | None = True
