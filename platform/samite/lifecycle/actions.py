"""Everything that `decide` can ask an engine to do: a closed set of values.

Each action is safe to repeat. It is either idempotent by its nature (stop what is stopped) or carries a deterministic name (submission id,
cluster id, request id): applying it when the named thing exists means *adopt it*. Engines apply actions in the order given, after the memory
that came with them has been stored. `decide` gives the same action again until an observation shows that it took effect.

Destructive actions carry the evidence they rest on, or `by_request` when a person asked.
"""

from dataclasses import dataclass, field
from typing import Any

from samite.lifecycle.evidence import Evidence


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeStorage:
    """Put, get, conditional put, list and delete below the real prefix, and take the prefix lease. Answer: `StorageObserved.probe`."""

    probe_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class StartCluster:
    """Bring up a head and the named worker nodes as one cluster. Exists already: adopt it, add nodes that are missing."""

    cluster_id: str
    stage_index: int
    nodes: tuple[str, ...]
    """Names of worker nodes, spares included. An engine that cannot choose names takes their number."""
    ranks_per_node: int
    gpus_per_node: int
    exclude_nodes: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplaceNode:
    """Remove what is left of `node` (grace period 0) and start `replacement`. A node of that name exists already: nothing to start."""

    cluster_id: str
    node: str
    replacement: str
    reason: str
    evidence: tuple[Evidence, ...] = ()
    idle: bool = False
    """True: no submission of ours can be alive on it, so no evidence is needed."""
    exclude_nodes: frozenset[str] = frozenset()
    """Machines that the replacement must not be put on, where the engine's scheduler chooses one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StopCluster:
    """Destroy a cluster whose head is lost or which does not come up (L3). Nothing of it may survive."""

    cluster_id: str
    reason: str
    evidence: tuple[Evidence, ...] = ()
    idle: bool = False
    """True: no submission of ours can be alive in it, so no evidence is needed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReleaseCluster:
    """Take down a cluster that is no longer needed: nothing runs in it."""

    cluster_id: str
    reason: str
    by_request: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ReleaseWorkers:
    """Give the workers of a cluster back in which nothing runs any more, and leave its head: Ray's dashboard and logs can still be looked at."""

    cluster_id: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Submit:
    """Write `attempt.json` (see `samite.spec.attempt.AttemptSpec`) and submit. Refused as existing: adopt."""

    cluster_id: str
    submission_id: str
    attempt: int
    stage_index: int
    num_workers: int
    """Ranks of this attempt."""
    num_nodes: int
    worker_group_restarts: int
    resume: str
    """`latest`, `none`, or a checkpoint id."""
    handover: str = ""
    skip_data_windows: tuple[tuple[int, int], ...] = ()
    exclude_nodes: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True, slots=True)
class StopSubmission:
    """Stop a submission through the Ray Jobs API. Terminal or unknown already: nothing to do."""

    cluster_id: str
    submission_id: str
    reason: str
    evidence: tuple[Evidence, ...] = ()
    by_request: bool = False
    finished: bool = False
    """True: its result says that its work is done; only the driver lingers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KillRanks:
    """SIGKILL the processes of these ranks, if they still belong to this submission and incarnation."""

    submission_id: str
    incarnation: int
    ranks: tuple[int, ...]
    reason: str
    evidence: tuple[Evidence, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectDiagnostics:
    """Dump stacks and counters of all ranks, in parallel, best effort, within 45 s. Answer: `Observed.diagnostics`."""

    diagnostics_id: str
    submission_id: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestCheckpoint:
    """Ask the trainer for a checkpoint after its current step; with `stop_after` it ends afterwards with outcome `stopped`."""

    request_id: str
    submission_id: str
    stop_after: bool
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifyCheckpoint:
    """Verify a committed checkpoint. Answer: `CheckpointObserved.verified`."""

    checkpoint_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class QuarantineCheckpoints:
    """Keep checkpoints of a stage from being chosen again: a gate rolls back to its beginning, or bad numbers to before them."""

    stage_index: int
    attempts_up_to: int
    """Only checkpoints of attempts with this number or a lower one."""
    reason: str
    after_step: int = -1
    """Only checkpoints of later steps than this."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GateQuestion:
    """One number that a gate needs: `quantile` of `metric` over the last `window` steps."""

    metric: str
    op: str
    value: float
    window: int = 50
    quantile: float = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluateGate:
    """Measure these numbers for the end of a stage. Answer: `Observed.gate` with the same id."""

    gate_id: str
    stage_index: int
    stage_name: str
    checkpoint_id: str
    checks: tuple[GateQuestion, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class CommitHandover:
    """Store `document` as `handover/<stage>.json` by conditional put. Exists already: leave it, report it in `Observed.handovers`."""

    stage_index: int
    stage_name: str
    content_hash: str
    document: dict[str, Any] = field(hash=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Finish:
    """The run is over and its cluster is gone: write the last record, release the lease, end the supervisor."""

    outcome: str
    """Succeeded | Failed | Cancelled"""


Action = (
    ProbeStorage
    | StartCluster
    | ReplaceNode
    | StopCluster
    | ReleaseCluster
    | ReleaseWorkers
    | Submit
    | StopSubmission
    | KillRanks
    | CollectDiagnostics
    | RequestCheckpoint
    | VerifyCheckpoint
    | QuarantineCheckpoints
    | EvaluateGate
    | CommitHandover
    | Finish
)

DESTRUCTIVE = (StopSubmission, KillRanks, ReplaceNode, StopCluster)
"""Actions that could end working training: each carries sufficient evidence or the reason why none is needed."""
