"""What the supervisor sees in one turn: files, processes, Ray and storage as one `Observed`. Looks only; never waits, never acts.

Slow sources (Ray's dashboard, the storage) are asked by threads of their own; what did not answer is unknown, not false.
"""

import json
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from samite.engines.local import processes
from samite.engines.local.busyness import Busyness
from samite.engines.local.folder import RunFolder
from samite.engines.local.ray_command import HEAD
from samite.engines.local.ray_nodes import RayNodes
from samite.engines.local.requests import read_requests, read_wishes
from samite.engines.local.storage_watch import StorageWatch
from samite.engines.ray_jobs import RayJobs
from samite.errors import NotFoundError, SamiteError
from samite.lifecycle import (
    AttemptObserved,
    ClusterObserved,
    ClusterState,
    DecayUnderflow,
    GateMeasured,
    JobStatus,
    Memory,
    NodeFact,
    NodeObserved,
    NodeSays,
    NumericAlarm,
    Observed,
    ProcessState,
    RankObserved,
    Source,
)
from samite.spec.attempt import AttemptResult, FailureReport, Heartbeat
from samite.telemetry.jsonlines import Follower

RAY_SILENT_AFTER_S = 5.0
LOG_TAIL_LINES = 60


class RayWatch:
    """Asks Ray's dashboard from a thread: alive nodes, and the state of the submissions that matter."""

    def __init__(self, nodes: RayNodes, *, period_s: float = 0.5) -> None:
        self._nodes = nodes
        self._period_s = period_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ray-watch", daemon=True)
        self.wanted: tuple[str, ...] = ()
        """Submission ids to ask for."""
        self.answered_at_s = -1e9
        self.cluster_id = ""
        """The cluster that answered last; answers of an older one mean nothing for a newer."""
        self.alive: frozenset[str] = frozenset()
        self.jobs: dict[str, tuple[JobStatus, str, float]] = {}

    def start(self) -> None:
        """Begin to ask."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopping.set()
        self._thread.join(timeout=3)

    def _run(self) -> None:
        while not self._stopping.wait(self._period_s):
            cluster, jobs = self._nodes.cluster, self._nodes.jobs()
            if cluster is None or jobs is None or not cluster.nodes:
                continue
            # A missing answer is left missing: the loop sees it age.
            with suppress(SamiteError, OSError, KeyError):
                self._ask(jobs, cluster.cluster_id)

    def _ask(self, jobs: RayJobs, cluster_id: str) -> None:
        alive = frozenset(jobs.alive_node_addresses())
        now_s = time.monotonic()
        if cluster_id != self.cluster_id:
            self.jobs = {}
        self.alive, self.answered_at_s, self.cluster_id = alive, now_s, cluster_id
        for submission_id in self.wanted:
            try:
                job = jobs.job(submission_id)
                self.jobs[submission_id] = (JobStatus(job.status), job.message, time.monotonic())
            except NotFoundError:
                self.jobs[submission_id] = (JobStatus.NOT_FOUND, "", time.monotonic())

    def answers(self, cluster_id: str) -> bool:
        """True if the dashboard of this cluster has answered lately."""
        return self.cluster_id == cluster_id and time.monotonic() - self.answered_at_s < RAY_SILENT_AFTER_S


class Observer:
    """Puts an `Observed` together. Keeps only what is needed to measure rates: earlier CPU times, and places in files."""

    def __init__(self, folder: RunFolder, nodes: RayNodes, ray: RayWatch, storage: StorageWatch) -> None:
        self._folder = folder
        self._nodes = nodes
        self._ray = ray
        self._storage = storage
        self._busyness = Busyness()
        self._were_ready: set[tuple[str, str]] = set()
        self._events = Follower(folder.events_file)
        self._decay: DecayUnderflow | None = None
        self._alarm: NumericAlarm | None = None
        self._stalled_since_s: float | None = None
        self.gate: GateMeasured | None = None
        self.diagnostics: set[str] = set()

    def look(self, memory: Memory, now_s: float) -> Observed:
        """Everything known now. `now_s` is the engine's clock, the one that `decide` gets."""
        self._read_events()
        submissions = wanted_submissions(memory)
        self._ray.wanted = submissions
        wishes = read_wishes(self._folder)
        storage = self._storage.storage()
        if self._stalled_since_s is not None:
            storage = replace(storage, failing_for_s=time.monotonic() - self._stalled_since_s)
        return Observed(
            at_s=now_s,
            cluster=self._clusters(memory),
            attempts=tuple(self._attempt(submission_id) for submission_id in submissions),
            ranks=tuple(self._ranks()),
            checkpoints=self._storage.checkpoints(),
            storage=storage,
            handovers=self._storage.handovers(),
            gate=self.gate,
            diagnostics=frozenset(self.diagnostics),
            decay=self._decay,
            alarm=self._alarm,
            suspend=wishes.suspend,
            cancel=wishes.cancel,
            requests=read_requests(self._folder, handled=frozenset(memory.handled_requests)),
            highest_attempt=highest_attempt(self._folder),
        )

    # Cluster

    def _clusters(self, memory: Memory) -> tuple[ClusterObserved, ...]:
        known = {memory.cluster.cluster_id} if memory.cluster else set()
        if memory.recovery is not None and memory.recovery.old_cluster:
            known.add(memory.recovery.old_cluster)
        return tuple(self._cluster(cluster_id) for cluster_id in sorted(known))

    def _cluster(self, cluster_id: str) -> ClusterObserved:
        cluster = self._nodes.cluster
        if cluster is None or cluster.cluster_id != cluster_id or not cluster.nodes:
            return ClusterObserved(cluster_id=cluster_id, state=ClusterState.ABSENT)
        answers = self._ray.answers(cluster_id)
        observed = tuple(self._node(cluster_id, node.name, node.address, answers=answers) for node in cluster.nodes)
        ready_once = any(name == HEAD for owner, name in self._were_ready if owner == cluster_id)
        state = ClusterState.READY if answers else None if ready_once else ClusterState.STARTING
        return ClusterObserved(cluster_id=cluster_id, state=state, nodes=observed)

    def _node(self, cluster_id: str, name: str, address: str, *, answers: bool) -> NodeObserved:
        is_head = name == HEAD
        facts = []
        if not self._nodes.is_alive(name):
            facts.append(NodeFact(source=Source.NODE_SUPERVISOR, says=NodeSays.DEAD, detail="its process group has ended", final=True))
        # Ray knows the head by another address; that its dashboard answers is what makes it ready.
        joined = answers and (is_head or address in self._ray.alive)
        if joined and not facts:
            self._were_ready.add((cluster_id, name))
        elif answers and not is_head and (cluster_id, name) in self._were_ready:
            age_s = time.monotonic() - self._ray.answered_at_s
            facts.append(NodeFact(source=Source.RAY_NODE, says=NodeSays.DEAD, detail="Ray reports the node dead", age_s=age_s))
        return NodeObserved(
            name=name,
            head=is_head,
            ready=(joined and not facts) if answers else None,
            joining=answers and not is_head and not joined and not facts,
            facts=tuple(facts),
        )

    # Attempts and ranks

    def _attempt(self, submission_id: str) -> AttemptObserved:
        folder = self._folder.attempt(submission_id)
        status, message, at_s = self._ray.jobs.get(submission_id, (None, "", time.monotonic()))
        age_s = time.monotonic() - at_s
        if age_s > RAY_SILENT_AFTER_S and status not in {JobStatus.FAILED, JobStatus.SUCCEEDED, JobStatus.STOPPED}:
            status = None
        reports = tuple(read_documents(folder / "failures", FailureReport))
        failed = bool(reports) or status in {JobStatus.FAILED, JobStatus.STOPPED}
        return AttemptObserved(
            submission_id=submission_id,
            job_status=status,
            job_age_s=age_s,
            job_message=message,
            result=read_result(folder / "result.json"),
            reports=reports,
            log_tail=log_tail(folder / "logs") if failed else (),
        )

    def _ranks(self) -> Iterable[RankObserved]:
        now_s = time.monotonic()
        for beat in read_documents(self._folder.heartbeats, Heartbeat, pattern="rank-*.json"):
            activity = processes.activity(beat.pid)
            state = ProcessState.GONE if activity is None else ProcessState.STOPPED if activity.stopped else ProcessState.ALIVE
            share, window_s = self._busyness.share(beat.pid, activity, now_s)
            yield RankObserved.from_heartbeat(
                beat, monotonic_s=now_s, process=state, cpu_share=share, cpu_window_s=window_s, compute_s=beat.compute_s or None
            )

    def _read_events(self) -> None:
        for document in self._events.poll():
            attributes = document.get("attributes", {})
            name = document.get("name")
            self._alarm = NumericAlarm.from_event(str(name), attributes) or self._alarm
            if name == "samite.storage.stall":
                self._stalled_since_s = time.monotonic() - float(attributes.get("samite.duration", 0.0))
            elif name == "samite.checkpoint.committed":
                self._stalled_since_s = None
            elif name == "samite.decay.underflow" and attributes.get("samite.decay.cause") in {"lossy_flush", "tile_overflow"}:
                # The other causes are trends: a warning for people, no reason to stop.
                self._decay = DecayUnderflow(
                    step=int(attributes.get("samite.step.index", 0)),
                    lossy_flushes=float(attributes.get("samite.decay.lost", 0)),
                    limit=float(attributes.get("samite.threshold", 0)),
                    layer=str(attributes.get("samite.layer.block", "")),
                )


def wanted_submissions(memory: Memory) -> tuple[str, ...]:
    """The submissions that the lifecycle still has to do with."""
    live = memory.live.submission_id if memory.live else ""
    old = memory.recovery.old_submission if memory.recovery else ""
    return tuple(dict.fromkeys(name for name in (live, old) if name))


Document = TypeVar("Document", Heartbeat, FailureReport)


def read_documents(folder: Path, kind: type[Document], *, pattern: str = "*.json") -> list[Document]:
    """Every document of a folder, by name. One that is gone or damaged meanwhile says nothing."""
    found = []
    for file in sorted(folder.glob(pattern)):
        if not file.name.startswith("."):
            with suppress(OSError, ValueError):
                found.append(kind.read(file))
    return found


def read_result(file: Path) -> AttemptResult | None:
    """How an attempt ended, or None if it has not."""
    try:
        return AttemptResult.read(file)
    except (FileNotFoundError, json.JSONDecodeError):
        return None


def log_tail(folder: Path) -> tuple[str, ...]:
    """The last lines of every log of an attempt, oldest file first."""
    lines: list[str] = []
    with suppress(OSError):
        for file in sorted(folder.glob("*.log"), key=lambda file: file.stat().st_mtime):
            with file.open("rb") as handle:
                handle.seek(max(0, file.stat().st_size - 32768))
                lines.extend(handle.read().decode(errors="replace").splitlines()[-LOG_TAIL_LINES:])
    return tuple(lines)


def highest_attempt(folder: RunFolder) -> int:
    """Largest attempt number that left a folder."""
    numbers = [name.rpartition("-a")[2] for name in (entry.name for entry in (folder.path / "attempts").glob("*-a*"))]
    return max((int(number) for number in numbers if number.isdigit()), default=0)
