"""Pending to Starting: storage checked, quota given, cluster up, first submission on its way."""

from samite.lifecycle.actions import ProbeStorage
from samite.lifecycle.capacity import ensure_cluster
from samite.lifecycle.evidence import Evidence, Source
from samite.lifecycle.handover import stages_done
from samite.lifecycle.memory import FailureRecord, StageMemory
from samite.lifecycle.phases import FailureClass, Level, Phase
from samite.lifecycle.respond import respond
from samite.lifecycle.submitting import give_submit, next_attempt
from samite.lifecycle.turn import Turn, live_of
from samite.lifecycle.watching import watch


def pending(turn: Turn) -> None:
    """The run was seen."""
    turn.emit("samite.run.submitted")
    turn.goto(Phase.VALIDATING, "Accepted")


def validating(turn: Turn) -> None:
    """The storage must prove in its real prefix that it can commit. Stages of an earlier life of this run are found here."""
    probe_id = f"{turn.plan.name}-{turn.plan.uid}"
    storage = turn.observed.storage
    if storage is None or storage.probe_id != probe_id or storage.probe is None:
        turn.act(ProbeStorage(probe_id=probe_id))
        turn.wait_for(storage.message if storage is not None and storage.message else "the storage probe")
        return
    if not storage.probe:
        turn.goto(Phase.FAILED, "ValidationFailed", storage.message or "the storage probe failed")
        return
    if turn.observed.handovers is None:
        turn.wait_for("the storage to say which hand-overs exist")
        return
    if not turn.memory.stages:
        _find_stages(turn)
    turn.goto(Phase.QUEUED, "Validated")


def queued(turn: Turn) -> None:
    """Wait for quota. A stage that had trained to its end before it was interrupted goes to its gate, without a cluster."""
    if turn.stage_memory.final_checkpoint:
        turn.goto(Phase.GATING, "BudgetReached", "the stage was complete before the interruption")
        return
    if not turn.observed.admitted:
        turn.wait_for("quota")
        return
    turn.goto(Phase.PROVISIONING, "Admitted")


def provisioning(turn: Turn) -> None:
    """Bring the cluster up, then submit."""
    capacity = ensure_cluster(turn)
    if capacity.cannot_start and not capacity.possible:
        turn.goto(Phase.HELD, "CannotStart", capacity.cannot_start)
        turn.emit("samite.run.held", reason="CannotStart", message=capacity.cannot_start)
        return
    late = turn.in_phase_s > turn.plan.detection.provision_s or bool(capacity.cannot_start)
    if capacity.complete or (late and capacity.possible):
        if next_attempt(turn, num_nodes=capacity.nodes):
            turn.goto(Phase.STARTING, "CapacityReady", f"{capacity.nodes} nodes")
        return
    turn.wait_for(capacity.waiting_for)
    if capacity.queued:
        turn.remember(phase_since_watched_s=turn.watched_s)
        return
    dead = _dead_head(turn)
    if late or dead is not None:
        _provision_failed(turn, capacity.waiting_for, dead)


def starting(turn: Turn) -> None:
    """Submitted; wait for the first heartbeat."""
    if watch(turn):
        return
    if turn.ranks.current:
        turn.goto(Phase.RUNNING, "Heartbeat", f"first heartbeat of {live_of(turn).submission_id}")
        return
    give_submit(turn)
    turn.wait_for(f"the first heartbeat of {live_of(turn).submission_id}")


def running(turn: Turn) -> None:
    """Training."""
    watch(turn)


def _find_stages(turn: Turn) -> None:
    plan = turn.plan
    done = min(stages_done(turn.observed.handovers, run_uid=plan.uid), len(plan.stages) - 1)
    found = {item.stage_index: item for item in turn.observed.handovers or ()}
    stages = [
        StageMemory(
            name=plan.stages[index].name,
            started_at_s=turn.now_s,
            final_checkpoint=found[index].checkpoint_id,
            gate_passed=True,
            handover_hash=found[index].content_hash,
        )
        for index in range(done)
    ]
    stages.append(StageMemory(name=plan.stages[done].name, started_at_s=turn.now_s))
    turn.remember(stages=tuple(stages), stage_index=done)
    announce_stage(turn)


def announce_stage(turn: Turn) -> None:
    """Event: the current stage begins."""
    stage = turn.stage
    turn.emit(
        "samite.stage.started",
        stage_name=stage.name,
        stage_index=turn.memory.stage_index,
        stage_context_length=stage.context_length,
        stage_workers=stage.max_workers,
        stage_layout=f"{stage.max_workers}x{stage.ranks_per_node} ranks",
    )


def _dead_head(turn: Turn) -> Evidence | None:
    for node in turn.cluster_seen().nodes:
        if node.head:
            for fact in node.facts:
                if fact.final:
                    return Evidence(source=fact.source, subject=f"node {node.name}", says=fact.detail, final=True)
    return None


def _provision_failed(turn: Turn, waiting_for: str, dead: Evidence | None) -> None:
    why = f"the head ended while the cluster came up: {dead.says}" if dead is not None else f"not ready in time: {waiting_for}"
    idle = Evidence(source=Source.NODE_SUPERVISOR, subject="cluster", says=why, final=True)
    failure = FailureRecord(
        failure_class=FailureClass.INFRA,
        error_type="HeadLost" if dead is not None else "ProvisionTimeout",
        message=why,
        evidence=(idle,) if dead is None else (dead,),
        at_s=turn.now_s,
        commits=turn.memory.commits,
        attempt=turn.memory.attempt,
    )
    respond(turn, failure, over=True, at_least=Level.L3_CLUSTER)
