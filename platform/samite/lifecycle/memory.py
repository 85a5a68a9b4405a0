"""What the lifecycle remembers between two turns. The engine stores it, atomically, *before* it applies the actions that came with it.

Small and bounded, whatever the number of ranks. A crash between storing and applying is harmless: the next turn gives the missing actions again.
"""

import json
from dataclasses import dataclass, field
from typing import Self

from samite.lifecycle.alarms import Pause
from samite.lifecycle.codec import from_document, to_document
from samite.lifecycle.doubts import BlameMemory, Suspicion
from samite.lifecycle.evidence import Evidence
from samite.lifecycle.ledger import Ledger
from samite.lifecycle.phases import FailureClass, Level, Phase
from samite.lifecycle.rollback import RollBack

HISTORY = 20
"""Failures and recoveries kept."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptMemory:
    """The submission that is wanted or alive. At most one exists, at any time."""

    submission_id: str
    attempt: int
    stage_index: int
    cluster_id: str
    num_workers: int
    num_nodes: int
    worker_group_restarts: int
    resume: str
    handover: str = ""
    skip_data_windows: tuple[tuple[int, int], ...] = ()
    since_s: float = 0.0
    since_watched_s: float = 0.0
    known_to_ray: bool = False
    """The dashboard has answered with a status at least once."""
    heartbeat_seen: bool = False
    incarnation: int = 0
    handled: int = -1
    """Failures of incarnations up to this one have been answered."""
    asked_at_s: float = 0.0
    """When `Submit` was last given."""
    recompute_until: int = -1
    """Steps up to this one had been finished before this attempt or incarnation began."""
    start_step: int = -1
    """First step number that this attempt reported; -1 before its first heartbeat."""
    start_stage_step: int = 0
    start_tokens: int = 0
    first_step_at_s: float | None = None
    """When the first step of this attempt and incarnation was seen finished."""
    first_step: int = 0
    last_step: int = -1
    last_step_at_s: float = 0.0
    ended_seen_at_s: float | None = None
    """When Ray was first seen to say that it ended."""
    result_seen_at_s: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterMemory:
    """The cluster that is wanted, or being removed."""

    cluster_id: str
    stage_index: int
    shape: str
    nodes: tuple[str, ...]
    replaced: tuple[tuple[str, str], ...] = ()
    """(lost node, its replacement), newest last."""
    since_s: float = 0.0
    since_watched_s: float = 0.0
    was_ready: bool = False
    leaving: bool = False
    """It is to be gone."""
    leaving_since_s: float = 0.0
    cannot_start: str = ""
    cannot_start_since_watched_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class StageMemory:
    """One stage that has begun."""

    name: str
    started_at_s: float = 0.0
    final_checkpoint: str = ""
    """Id of the checkpoint that completed the stage; empty while it trains."""
    final_step: int = 0
    final_tokens: int = 0
    start_tokens: int = 0
    start_productive_s: float = 0.0
    """Productive time of the run when the stage began; what came since counts against a wall-time budget."""
    gate_tries: int = 0
    gate_passed: bool = False
    gate_lines: tuple[str, ...] = ()
    """One line for each check with its numbers; part of the hand-over."""
    handover_hash: str = ""
    """Hash of the committed hand-over that ended this stage."""
    rolled_back_attempt: int = 0
    """Checkpoints of this stage by attempts up to this one are withdrawn, because its gate rolled it back; 0 if it never did."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FailureRecord:
    """A failure as it was judged."""

    failure_class: FailureClass
    error_type: str
    message: str
    """First cause first."""
    traceback: str = ""
    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    machines: tuple[str, ...] = ()
    """The machines of `nodes`: what a repeated failure has in common where nodes are exchanged but machines stay."""
    submission_id: str = ""
    attempt: int = 0
    incarnation: int = 0
    step: int = -1
    evidence: tuple[Evidence, ...] = ()
    data_window: tuple[int, int] | None = None
    good_step: int = -1
    restartable: bool = True
    """False for exit code 93 and rules that say so."""
    verdict: str = ""
    """`Hold` or `Fail` where a rule of the run about exit codes says so."""
    lost_nodes: bool = False
    lost_head: bool = False
    detect_s: float = 0.0
    """From the fault to this judgement."""
    at_s: float = 0.0
    level: int = 0
    """What was decided: 1 to 5."""
    evicted: bool = False
    commits: int = 0
    """Committed checkpoints of the run when it happened."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RecoveryMemory:
    """A recovery in progress."""

    failure: FailureRecord
    level: Level
    outcome: str = "Restart"
    """Restart | Hold | Fail: what follows when the old submission has ended."""
    reason: str = ""
    message: str = ""
    decided_at_s: float = 0.0
    deadline_watched_s: float = 0.0
    not_before_s: float = 0.0
    old_submission: str = ""
    old_incarnation: int = 0
    ended: bool = False
    """The old submission is known to have ended."""
    old_cluster: str = ""
    replace_nodes: tuple[str, ...] = ()
    """Nodes to be exchanged although they look alive: evicted, or excluded."""
    kill_ranks: tuple[int, ...] = ()
    by_request: bool = False
    withheld: str = ""
    """Which evidence is missing; told once."""
    alive_at_s: float | None = None
    """First heartbeat of the new attempt or incarnation."""
    loaded_at_s: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RecoveryRecord:
    """A finished recovery. Durations in seconds; their sum is the time from the fault to the first new step."""

    level: int
    failure_class: FailureClass
    error_type: str
    attempt: int
    """The attempt that came out of it."""
    at_s: float
    detect_s: float
    restart_s: float
    """From the decision to the first heartbeat."""
    load_s: float
    """From the first heartbeat to a loaded checkpoint."""
    first_step_s: float
    """From there to the first finished step."""
    recomputed_steps: int = 0

    @property
    def total_s(self) -> float:
        """From the fault to the first finished step."""
        return self.detect_s + self.restart_s + self.load_s + self.first_step_s


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """The whole memory of one run. `Memory()` is a run that was never looked at."""

    version: int = 1
    phase: Phase = Phase.PENDING
    reason: str = "Created"
    message: str = ""
    phase_since_s: float = 0.0
    phase_since_watched_s: float = 0.0
    started_at_s: float | None = None
    now_s: float = 0.0
    """Time of the last turn. Time never goes back for a run: an earlier `now_s` counts as this one."""
    watched_s: float = 0.0
    """Time during which somebody was looking: a gap between two turns counts for at most a minute. Limits are measured on it, not on clocks."""
    observed_at_s: float = -1.0
    attempt: int = 0
    generation: int = 0
    next_node: int = 0
    cluster: ClusterMemory | None = None
    live: AttemptMemory | None = None
    stage_index: int = 0
    stages: tuple[StageMemory, ...] = ()
    spent: dict[FailureClass, tuple[float, ...]] = field(default_factory=dict)
    """Times of restarts that still count against each budget; `restarts`: how many there were, by class."""
    restarts: dict[FailureClass, int] = field(default_factory=dict)
    cycles_without_commit: int = 0
    backoff_exponent: int = 0
    commits: int = 0
    newest_commit: str = ""
    newest_commit_step: int = -1
    newest_commit_at_s: float | None = None
    newest_save: tuple[float, float] | None = None  # seconds that the newest save a rank told of took, and of that training waited
    commits_at_failure: int = 0
    best_step: int = -1
    """Largest step ever finished; steps up to here are recomputed after a restart."""
    recomputed_steps: int = 0
    last_failure: FailureRecord | None = None
    failures: tuple[FailureRecord, ...] = ()
    recovery: RecoveryMemory | None = None
    recoveries: tuple[RecoveryRecord, ...] = ()
    skip_data_windows: tuple[tuple[int, int], ...] = ()
    roll_back: RollBack | None = None
    blame: tuple[BlameMemory, ...] = ()
    approvals: tuple[str, ...] = ()
    handled_requests: tuple[str, ...] = ()
    suspicion: Suspicion | None = None
    pause: Pause | None = None
    decay_acknowledged_stage: int = -1
    """A person let this stage go on although its decay underflows; `collapse_accepted_stage`: although a router collapsed."""
    decay_paused_step: int = -1
    """Step of the event that paused the run last: the same event pauses once; `alarm_paused_step`: of the last spike or collapse that did."""
    alarm_paused_step: int = -1
    collapse_accepted_stage: int = -1
    preempted: tuple[tuple[str, float], ...] = ()
    """(node, when its preemption notice was first seen), newest last."""
    attempt_ended_at_s: float = 0.0
    stragglers: tuple[tuple[int, int], ...] = ()
    """(rank, first step at which it was slow), at most 8."""
    ledger: Ledger = field(default_factory=Ledger)

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(to_document(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Parse `text`; raises ValueError if it is no memory."""
        return from_document(cls, json.loads(text))
