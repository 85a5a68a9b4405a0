"""What an engine has seen: the input of `decide`.

Every fact is optional or has an age. None means *unknown*, and unknown is never a trigger: an engine that cannot look must say None and must not
guess. Absence from a tuple means the same. "It does not exist" is a fact of its own (`JobStatus.NOT_FOUND`, `ClusterState.ABSENT`), to be
reported only when the source answered so. Ages are seconds on the engine's monotonic clock.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from samite.lifecycle.alarms import NumericAlarm
from samite.lifecycle.evidence import Source
from samite.lifecycle.people import Request
from samite.spec.attempt import AttemptResult, FailureReport, Heartbeat


class JobStatus(StrEnum):
    """What the Ray dashboard answered about a submission. No answer is None, never one of these."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    STOPPED = "STOPPED"
    NOT_FOUND = "NOT_FOUND"
    """The dashboard answered that it does not know this id."""


ENDED = frozenset({JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.STOPPED})


class ProcessState(StrEnum):
    """A rank's process in the process table."""

    ALIVE = "alive"
    STOPPED = "stopped"
    """SIGSTOP (state T). A process under a debugger (state t) is `alive`: somebody is looking at it."""
    GONE = "gone"
    """No such process, or a zombie."""


class ClusterState(StrEnum):
    """A cluster by name."""

    ABSENT = "absent"
    """Looked, and nothing of it exists: no process, no pod."""
    STARTING = "starting"
    READY = "ready"
    """The head answers. Workers are judged one by one."""
    STOPPING = "stopping"


class NodeSays(StrEnum):
    """What a source says about a node."""

    DEAD = "dead"
    HARDWARE_FAULT = "hardware_fault"
    """Strong evidence: fatal XID, uncorrectable row remap failure, disk gone."""
    NETWORK_FLAP = "network_flap"
    PREFLIGHT_FAILED = "preflight_failed"
    PREEMPTION_NOTICE = "preemption_notice"


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeFact:
    """One bad thing that one source says about a node."""

    source: Source
    says: NodeSays
    detail: str
    """With the number or code: `process group exited, signal 9`; `XID 79`; `deadline in 30 s`."""
    age_s: float = 0.0
    final: bool = False
    """True for an exit that was waited for: it cannot become untrue."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeObserved:
    """One node of a cluster, the head included."""

    name: str
    ready: bool | None = None
    """Registered with Ray and, if asked for, passed its preflight. None: not known."""
    joining: bool = False
    """Not ready yet, but it runs on a machine of its own and is about to register: only seconds are missing, no capacity."""
    head: bool = False
    host: str = ""
    """The machine below, where nodes come and go on machines (the Kubernetes node of a pod). Empty: the node is the machine."""
    rack: str = ""
    facts: tuple[NodeFact, ...] = ()

    @property
    def machine(self) -> str:
        """What is blamed and excluded: the machine, which outlives the node."""
        return self.host or self.name


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterObserved:
    """One cluster that memory knows by name (`Memory.cluster`)."""

    cluster_id: str
    state: ClusterState | None = None
    age_s: float = 0.0
    nodes: tuple[NodeObserved, ...] = ()
    cannot_start: str = ""
    """Why it will not come up by waiting: image, volume, quota, port, memory. Empty if nothing of the kind is known."""
    queued: str = ""
    """Why it waits its turn: a queue has not given its quota yet. Limits of time do not run meanwhile. Empty: it does not wait."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankObserved:
    """One rank: its newest heartbeat and what the process table says. Heartbeats of older submissions may be passed; they are ignored."""

    rank: int
    node: str = ""
    submission_id: str = ""
    incarnation: int = 0
    phase: str = ""
    """As in `Heartbeat.phase`; empty if no heartbeat was ever read."""
    progress_age_s: float | None = None
    """Seconds since the heartbeat was written; None without a heartbeat."""
    step: int = -1
    stage_step: int = 0
    tokens: int = 0
    step_median_s: float = 0.0
    tokens_per_s: float = 0.0
    checkpoint_step: int = -1
    save_s: float = 0.0
    """From the call to the commit of that checkpoint; 0: this attempt wrote none."""
    save_stall_s: float = 0.0
    """How long of that its training waited."""
    compute_s: float | None = None
    """Median compute time of a step without communication, for stragglers. None: not reported."""
    process: ProcessState | None = None
    process_age_s: float = 0.0
    cpu_share: float | None = None
    """CPU seconds per second of the rank's process over `cpu_window_s`. None: not measured."""
    cpu_window_s: float = 0.0
    device_share: float | None = None
    """Share of time the device computed, from hardware counters. None: no such counter."""
    exit_code: int | None = None
    exit_signal: int | None = None
    stack_group: str | None = None
    """Label of the group of equal stacks this rank is in, from the newest diagnostics."""

    @staticmethod
    def from_heartbeat(heartbeat: Heartbeat, *, monotonic_s: float, **facts: Any) -> "RankObserved":
        """Of a heartbeat that was read at `monotonic_s` on the machine's monotonic clock; `facts` are further fields.

        A heartbeat from the future was written before the machine was started again: its process is gone.
        """
        if heartbeat.monotonic_s > monotonic_s + 1.0:
            facts = {**facts, "process": ProcessState.GONE, "process_age_s": 0.0}
        return RankObserved(
            rank=heartbeat.rank,
            node=heartbeat.node,
            submission_id=heartbeat.submission_id,
            incarnation=heartbeat.incarnation,
            phase=heartbeat.phase,
            progress_age_s=max(0.0, monotonic_s - heartbeat.monotonic_s),
            step=heartbeat.step,
            stage_step=heartbeat.stage_step,
            tokens=heartbeat.tokens,
            step_median_s=heartbeat.step_median_s,
            tokens_per_s=heartbeat.tokens_per_s,
            checkpoint_step=heartbeat.checkpoint_step,
            save_s=heartbeat.save_s,
            save_stall_s=heartbeat.save_stall_s,
            **facts,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptObserved:
    """One submission that memory knows by id."""

    submission_id: str
    job_status: JobStatus | None = None
    """None: the dashboard did not answer."""
    job_age_s: float = 0.0
    job_message: str = ""
    actors_left: int | None = None
    """Of a job that Ray says has ended: its actors (ranks among them) that Ray does not call dead. None: not asked, or not told."""
    result: AttemptResult | None = None
    reports: tuple[FailureReport, ...] = ()
    log_tail: tuple[str, ...] = ()
    """Last lines of the logs of ranks and driver, oldest first; only read when something failed. First causes are looked up here."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointObserved:
    """A committed checkpoint."""

    checkpoint_id: str
    step: int
    stage_index: int
    attempt: int = 0
    tokens: int = 0
    verified: bool | None = None
    """None: not verified yet. A checkpoint that failed its verification is not listed here but counted as quarantined."""
    age_s: float = 0.0
    """Seconds since its commit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointsObserved:
    """A complete listing of the committed checkpoints, or at least the newest few. Not to be given when the storage did not answer."""

    recent: tuple[CheckpointObserved, ...] = ()
    """Committed and not quarantined, newest last. Empty only if there are none."""
    quarantined: tuple[str, ...] = ()
    """Ids of damaged or withdrawn checkpoints."""
    age_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class StorageObserved:
    """The checkpoint storage."""

    probe_id: str = ""
    probe: bool | None = None
    """Outcome of `ProbeStorage` with `probe_id`. None: running, or the storage did not answer."""
    message: str = ""
    """What failed, with the remedy; shown as is."""
    failing_for_s: float | None = None
    """How long writes have failed or stood still, from the checkpoint writer. None: they work, or nothing is known."""
    age_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class HandoverFound:
    """A committed hand-over."""

    stage_index: int
    content_hash: str
    run_uid: str
    checkpoint_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class GateMeasured:
    """The numbers that an `EvaluateGate` asked for, by metric. A number that cannot be measured is left out."""

    gate_id: str
    values: dict[str, float] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class DecayUnderflow:
    """The newest `samite.decay.underflow` event of the trainer."""

    step: int
    lossy_flushes: float
    limit: float
    layer: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Observed:
    """Everything seen in one turn of the engine's loop. The empty observation is legal: nothing is known, nothing happens."""

    at_s: float
    """When it was put together, on the clock of `now_s`. One that is older than the newest seen before is ignored."""
    admitted: bool | None = True
    """Quota reserved. A local engine has no queue and says True."""
    cluster: tuple[ClusterObserved, ...] = ()
    attempts: tuple[AttemptObserved, ...] = ()
    ranks: tuple[RankObserved, ...] = ()
    checkpoints: CheckpointsObserved | None = None
    storage: StorageObserved | None = None
    handovers: tuple[HandoverFound, ...] | None = None
    """All committed hand-overs of this run. None: the storage did not answer."""
    gate: GateMeasured | None = None
    diagnostics: frozenset[str] = frozenset()
    """Ids of finished `CollectDiagnostics`."""
    decay: DecayUnderflow | None = None
    alarm: NumericAlarm | None = None
    suspend: bool | None = False
    """The wish of `spec.suspend`: a state, not an event. None: it could not be read; nothing changes."""
    cancel: bool = False
    requests: tuple[Request, ...] = ()
    highest_attempt: int = 0
    """Largest attempt number that storage or the run folder knows; keeps numbers growing if the memory was lost."""
