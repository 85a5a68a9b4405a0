"""What surrounds a rank while it trains: process groups, heartbeat, telemetry, faults, requests. Opened first, closed last, whatever happens between.

The incarnation is counted by rank 0 in the attempt's folder: 0 for the first worker group of a submission, one more after each restart of the group.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from samite.spec.attempt import AttemptSpec, Heartbeat, write_atomically
from samite.spec.beacon import Beacon
from samite.telemetry.setup import Telemetry, setup_telemetry
from samite_workloads import faults
from samite_workloads.heartbeat import HeartbeatFile, stacks_on_signal
from samite_workloads.parallel.group import Groups, start_groups, stop_groups
from samite_workloads.train.control import ControlFolder
from samite_workloads.train.outcome import attempt_folder, this_incarnation
from samite_workloads.train.plan import TrainPlan
from samite_workloads.train.ranks import RankFacts


@dataclass(kw_only=True, slots=True)
class Session:
    """One rank's surroundings. `step_before` is the step the run had reached before this incarnation began, to count recomputed steps."""

    attempt: AttemptSpec
    facts: RankFacts
    groups: Groups
    heartbeat: HeartbeatFile
    telemetry: Telemetry
    faults: faults.FaultPlan
    control: ControlFolder
    incarnation: int
    step_before: int
    began_s: float

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which speaks for all."""
        return self.facts.rank == 0

    @property
    def elapsed_s(self) -> float:
        """Seconds since the first step began."""
        return time.monotonic() - self.began_s


@contextmanager
def open_session(attempt: AttemptSpec, plan: TrainPlan, facts: RankFacts) -> Iterator[Session]:
    """Join the other ranks; returns when all are here. The heartbeat says `starting` from the first moment."""
    run_folder = Path(attempt.run_folder)
    step_before = _step_before(run_folder) if facts.rank == 0 else 0
    heartbeat = HeartbeatFile(
        run_folder / "heartbeats",
        rank=facts.rank,
        node=facts.node,
        pid=os.getpid(),
        submission_id=attempt.submission_id,
        beacon=Beacon.from_environment(run=plan.run_name, uid=attempt.run_uid, rank=facts.rank),
        incarnation=this_incarnation(attempt),  # nobody leaves a mark before all have met, so every rank counts the same
    )
    heartbeat.enter("starting")
    make_deterministic(facts, plan.seed)
    with stacks_on_signal(attempt_folder(attempt) / "logs" / f"stacks-rank-{facts.rank}.txt"), _groups(facts) as groups:
        heartbeat.incarnation, step_before = _count_incarnation(attempt, step_before, groups)
        heartbeat.write()
        plan_of_faults = faults.FaultPlan(run_folder, facts.rank)
        faults.install(plan_of_faults)
        try:
            with _telemetry(attempt, plan, facts, heartbeat.incarnation) as telemetry:
                yield Session(
                    attempt=attempt,
                    facts=facts,
                    groups=groups,
                    heartbeat=heartbeat,
                    telemetry=telemetry,
                    faults=plan_of_faults,
                    control=ControlFolder(run_folder),
                    incarnation=heartbeat.incarnation,
                    step_before=step_before,
                    began_s=time.monotonic(),
                )
        finally:
            faults.install(None)


@contextmanager
def _groups(facts: RankFacts) -> Iterator[Groups]:
    groups = start_groups(facts.meeting, device_type=facts.device_type)
    try:
        yield groups
    finally:
        stop_groups()


def make_deterministic(facts: RankFacts, seed: int) -> None:
    """Same inputs, same bits. One thread per rank on CPU: several ranks on one machine otherwise fight for its cores."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if facts.device_type == "cpu":
        torch.set_deterministic_debug_mode(
            "error"
        )  # the same switch without loading the compiler, which costs each rank 1.2 s of its start
    else:
        torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.manual_seed(seed)
    if facts.device_type == "cpu":
        torch.set_num_threads(1)


def _telemetry(attempt: AttemptSpec, plan: TrainPlan, facts: RankFacts, incarnation: int) -> Telemetry:
    run_folder = Path(attempt.run_folder)
    (run_folder / "metrics").mkdir(exist_ok=True)
    endpoint = plan.otlp_endpoint or os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    return setup_telemetry(
        service="samite-trainer",
        run=plan.run_name,
        uid=attempt.run_uid,
        metrics_path=run_folder / "metrics" / f"rank-{facts.rank}.jsonl",
        events_path=run_folder / "events.jsonl",
        otlp_endpoint=endpoint if facts.rank == 0 or plan.exports_every_rank else None,
        instance=f"rank-{facts.rank}",
        stage={"samite.stage.name": plan.stage.name, "samite.stage.kind": plan.stage.kind},
        attempt=attempt.submission_id,
        incarnation=incarnation,
        trace_parent=attempt.trace_parent,
    )


def _count_incarnation(attempt: AttemptSpec, step_before: int, groups: Groups) -> tuple[int, int]:
    """Rank 0 counts the marks its predecessors left, leaves its own, and tells the others: (incarnation, step reached before it)."""
    told = torch.zeros(2, dtype=torch.int64)
    if groups.host.rank() == 0:
        marks = attempt_folder(attempt) / "incarnations"
        marks.mkdir(parents=True, exist_ok=True)
        incarnation = this_incarnation(attempt)
        write_atomically(marks / str(incarnation), f"{time.time()}\n")
        told[0], told[1] = incarnation, step_before
    dist.broadcast(told, src=0, group=groups.host)
    return int(told[0]), int(told[1])


def _step_before(run_folder: Path) -> int:
    """Step that rank 0's predecessor last reported, over all attempts; 0 if there was none or its file can't be read."""
    try:
        return Heartbeat.read(run_folder / "heartbeats" / "rank-0.json").step
    except (OSError, ValueError):
        return 0
