"""What a run wants, as plain values: the part of a TrainingRun that decisions depend on.

Made once from the spec (`RunPlan.from_run`); `decide` never sees pydantic. Durations are seconds, limits are counts.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from samite.lifecycle.actions import GateQuestion
from samite.lifecycle.phases import FailureClass

if TYPE_CHECKING:
    from samite.spec import TrainingRun

HANDOVER_STATES = ("weights", "optimizer", "lrSchedule", "stepCounter", "tokenCounter", "dataCursor", "routerBias")
"""The states whose fate a hand-over records, in the order of the document."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NumericPolicy:
    """What a stage does when the numbers go wrong."""

    on_nonfinite: str = "RollBack"
    """RollBack | Hold | Fail"""
    spike_pauses: bool = False
    """Hold at the next checkpoint when loss or gradient norm leave their band. (A roll-back after a spike is the trainer's failure report.)"""
    roll_back_steps: int = 0
    """A roll-back's checkpoint is at least so many steps older than the first bad step, if there is one."""
    collapse_pauses: bool = False
    """The same when a router collapses."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StagePlan:
    """One stage. A stage is finished when the trainer says so; `steps` and `tokens` are for progress only."""

    name: str
    kind: str = "Pretrain"
    context_length: int = 1024
    min_workers: int = 1
    max_workers: int = 1
    gpus_per_worker: int = 0
    rank_multiple: int = 1
    """Ranks must be a multiple of this: tensor x pipeline x context."""
    batch_tokens: int = 0
    steps: int | None = None
    tokens: int | None = None
    wall_s: float | None = None
    handover: tuple[tuple[str, str], ...] = ()
    """(state, Carry | Reset | Rescale) for what this stage takes over; empty in a first stage."""
    checks: tuple[GateQuestion, ...] = ()
    on_gate_fail: str = "Hold"
    manual_gate: bool = False
    numeric: NumericPolicy = NumericPolicy()

    @property
    def ranks_per_node(self) -> int:
        """One rank for each GPU, one for a node without GPUs."""
        return max(self.gpus_per_worker, 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """How many restarts one class of failure may cost."""

    limit: int
    window_s: float | None = None
    """Length of the sliding window; None: until reset."""
    reset_after_commits: int | None = None
    """Full again after so many committed checkpoints; None: never."""
    per_stage: bool = False
    waits: bool = False
    """True: when used up, the next restart waits for the window instead of holding (a rate limit)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExitCodeRule:
    """What an exit code of the training program means."""

    codes: frozenset[int]
    action: str
    """Restart | Hold | Fail"""
    failure_class: FailureClass = FailureClass.APPLICATION


def _default_budgets() -> dict[FailureClass, Budget]:
    return {
        FailureClass.INFRA: Budget(limit=20, window_s=86400.0),
        FailureClass.PREEMPTION: Budget(limit=6, window_s=3600.0, waits=True),
        FailureClass.APPLICATION: Budget(limit=3, reset_after_commits=3),
        FailureClass.HANG: Budget(limit=5, window_s=86400.0),
        FailureClass.OOM: Budget(limit=1, per_stage=True),
        FailureClass.NUMERIC: Budget(limit=2, per_stage=True),
        FailureClass.OPERATOR: Budget(limit=3, reset_after_commits=3),
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class RestartPolicy:
    """The ladder, the budgets, back-off, and when to stop trying."""

    budgets: dict[FailureClass, Budget] = field(default_factory=_default_budgets, hash=False)
    backoff_initial_s: float = 10.0
    backoff_cap_s: float = 600.0
    backoff_reset_commits: int = 2
    start_level: int = 1
    max_level: int = 5
    level_timeouts_s: tuple[float, float, float] = (120.0, 300.0, 900.0)
    """Of L1, L2, L3."""
    in_place_restarts: int = 2
    """Most L1 restarts that one submission is given; what the budgets leave may be less."""
    no_progress_cycles: int = 3
    forget_after_commits: int = 3
    """Failures older than so many committed checkpoints no longer count as "the same again"."""
    on_exhausted: str = "Hold"
    exit_codes: tuple[ExitCodeRule, ...] = ()
    no_restart_code: int = 93
    hold_release_s: float = 600.0
    """How long a held run keeps its cluster."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DetectionPolicy:
    """Limits after which silence or slowness means something."""

    heartbeat_period_s: float = 2.0
    hang_restarts: bool = False
    """True for mode Restart; False (Observe) reports only."""
    hang_floor_s: float = 120.0
    hang_factor: float = 5.0
    first_step_s: float = 900.0
    save_s: float = 900.0
    load_s: float = 900.0
    eval_s: float = 900.0
    learning_windows: int = 3
    idle_share: float = 0.05
    """CPU or device share below which a process counts as idle."""
    idle_window_s: float = 5.0
    """Shortest measurement of a share that counts."""
    diagnostics_s: float = 45.0
    straggler_reports: bool = True
    straggler_factor: float = 1.5
    straggler_steps: int = 20
    decay_pauses: bool = True
    provision_s: float = 900.0
    cannot_start_s: float = 60.0
    """How long the same reason must stand before the run is held."""
    start_s: float = 600.0

    @property
    def silent_s(self) -> float:
        """A rank whose process is not known to live counts as silent after this."""
        return max(3.0 * self.heartbeat_period_s, 2.0)

    @property
    def stopped_s(self) -> float:
        """A rank whose process is stopped (SIGSTOP) counts as failed when its heartbeat is this old."""
        return max(5.0 * self.heartbeat_period_s, 5.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointPolicy:
    """When checkpoints count as late."""

    interval_steps: int | None = 100
    interval_s: float | None = None
    stall_s: float = 120.0
    deadline_s: float = 1800.0


@dataclass(frozen=True, kw_only=True, slots=True)
class NodePolicy:
    """Spares, and how far exclusion may go."""

    spares: int = 0
    exclude_blamed: bool = True
    max_cordon_fraction: float = 0.02
    quarantine_strikes: float = 3.0
    half_life_s: float = 7 * 86400.0
    expiry_s: float = 86400.0


@dataclass(frozen=True, kw_only=True, slots=True)
class RunPlan:
    """A run as `decide` sees it."""

    name: str
    uid: str
    stages: tuple[StagePlan, ...]
    restart: RestartPolicy = RestartPolicy()
    detection: DetectionPolicy = DetectionPolicy()
    checkpoint: CheckpointPolicy = CheckpointPolicy()
    nodes: NodePolicy = NodePolicy()
    suspend_checkpoint: bool = True
    suspend_grace_s: float = 300.0
    cancel_cap_s: float = 300.0
    keep_cluster_after: frozenset[str] = frozenset()
    """Outcomes (Succeeded, Failed) after which the cluster is kept to look around."""
    keep_head_after: frozenset[str] = frozenset()
    """Outcomes after which its workers are given back and only its head is kept."""

    @staticmethod
    def from_run(run: "TrainingRun", *, uid: str) -> "RunPlan":
        """The plan of a validated TrainingRun. `uid` tells two runs of one name apart."""
        from samite.lifecycle.from_spec import plan_from_run

        return plan_from_run(run, uid=uid)
