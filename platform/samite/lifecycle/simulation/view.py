"""What an engine would see of the simulated world."""

from samite.lifecycle.evidence import Source
from samite.lifecycle.memory import Memory
from samite.lifecycle.observed import (
    AttemptObserved,
    CheckpointObserved,
    CheckpointsObserved,
    ClusterObserved,
    ClusterState,
    GateMeasured,
    JobStatus,
    NodeFact,
    NodeObserved,
    NodeSays,
    Observed,
    ProcessState,
    RankObserved,
    StorageObserved,
)
from samite.lifecycle.simulation.things import SimCluster, SimJob, SimNode, SimRank
from samite.lifecycle.simulation.trainer import Trainer

SAVE_S, SAVE_STALL_S = 2.5, 0.125
"""What ranks say of each save."""


def observe(world: Trainer, memory: Memory) -> Observed:
    """Everything as an engine would report it that looks for what `memory` knows by name."""
    return Observed(
        at_s=world.now,
        cluster=tuple(_cluster_seen(world, cluster) for cluster in world.clusters.values()) + _absent(world, memory),
        attempts=tuple(_job_seen(world, job) for job in world.jobs.values()) + _unknown(world, memory),
        ranks=tuple(_rank_seen(world, job, incarnation, rank) for job in world.jobs.values() for incarnation, rank in job.beats.values()),
        checkpoints=None if world.now < world.storage_silent_until else _listing(world),
        storage=StorageObserved(
            probe_id=world.probe_id,
            probe=None if world.now < world.storage_silent_until else world.probe,
            failing_for_s=1.0 if world.now < world.storage_silent_until else None,
        ),
        handovers=None if world.now < world.storage_silent_until else tuple(world.handovers.values()),
        gate=GateMeasured(gate_id=world.gate_id, values=dict(world.gate_values)) if world.gate_id else None,
        diagnostics=frozenset(world.diagnostics),
        suspend=world.suspend,
        cancel=world.cancel,
    )


def _absent(world: Trainer, memory: Memory) -> tuple[ClusterObserved, ...]:
    if memory.cluster is None or memory.cluster.cluster_id in world.clusters:
        return ()
    return (ClusterObserved(cluster_id=memory.cluster.cluster_id, state=ClusterState.ABSENT),)


def _unknown(world: Trainer, memory: Memory) -> tuple[AttemptObserved, ...]:
    live = memory.live
    if live is None or live.submission_id in world.jobs or world.now < world.dashboard_silent_until:
        return ()
    cluster = world.clusters.get(live.cluster_id)
    if cluster is None or cluster.head_dead_since is not None or cluster.gone:
        return ()
    return (AttemptObserved(submission_id=live.submission_id, job_status=JobStatus.NOT_FOUND),)


def _listing(world: Trainer) -> CheckpointsObserved:
    good = [item for item in world.checkpoints if item.checkpoint_id not in world.quarantined]
    return CheckpointsObserved(
        recent=tuple(
            CheckpointObserved(
                checkpoint_id=item.checkpoint_id,
                step=item.step,
                stage_index=item.stage_index,
                attempt=item.attempt,
                verified=item.verified,
                age_s=world.now - item.committed_at,
            )
            for item in good[-6:]
        ),
        quarantined=tuple(world.quarantined),
    )


def _cluster_seen(world: Trainer, cluster: SimCluster) -> ClusterObserved:
    if cluster.gone:
        return ClusterObserved(cluster_id=cluster.cluster_id, state=ClusterState.ABSENT)
    state = ClusterState.READY if world.now >= cluster.ready_at else ClusterState.STARTING
    if cluster.gone_at is not None:
        state = ClusterState.STOPPING
    head = NodeObserved(
        name=f"{cluster.cluster_id}-head", head=True, ready=cluster.head_dead_since is None, facts=_exits(world, cluster.head_dead_since)
    )
    nodes = [
        NodeObserved(
            name=node.name,
            ready=node.dead_since is None and node.ready_at <= world.now and state is ClusterState.READY,
            joining=node.dead_since is None and node.ready_at > world.now and state is ClusterState.READY,
            facts=_exits(world, node.dead_since) + _notices(node),
        )
        for node in cluster.nodes.values()
    ]
    return ClusterObserved(cluster_id=cluster.cluster_id, state=state, nodes=(head, *nodes))


def _exits(world: Trainer, dead_since: float | None) -> tuple[NodeFact, ...]:
    if dead_since is None:
        return ()
    facts = [NodeFact(source=Source.NODE_SUPERVISOR, says=NodeSays.DEAD, detail="process group exited, signal 9", final=True)]
    if world.now - dead_since >= 1.0:
        facts.append(NodeFact(source=Source.PROCESS_TABLE, says=NodeSays.DEAD, detail="no process of its group is left", final=True))
    return tuple(facts)


def _notices(node: SimNode) -> tuple[NodeFact, ...]:
    if not node.preempted:
        return ()
    return (NodeFact(source=Source.KUBERNETES, says=NodeSays.PREEMPTION_NOTICE, detail="deadline in 30 s"),)


def _job_seen(world: Trainer, job: SimJob) -> AttemptObserved:
    cluster = world.clusters[job.submit.cluster_id]
    silent = world.now < world.dashboard_silent_until or cluster.head_dead_since is not None or cluster.gone
    return AttemptObserved(
        submission_id=job.submit.submission_id,
        job_status=None if silent else job.status,
        job_message="" if silent else job.message,
        result=job.result,
        reports=tuple(job.reports),
    )


def _rank_seen(world: Trainer, job: SimJob, incarnation: int, rank: SimRank) -> RankObserved:
    still = any(other.stopped or other.asleep for other in job.ranks)
    state = ProcessState.STOPPED if rank.stopped else ProcessState.ALIVE
    return RankObserved(
        rank=rank.rank,
        node=rank.node,
        submission_id=job.submit.submission_id,
        incarnation=incarnation,
        phase=rank.phase,
        progress_age_s=world.now - rank.beat_at,
        step=rank.step,
        stage_step=job.stage_step,
        tokens=max(rank.step, 0) * 10,
        step_median_s=world.step_s if rank.phase == "training" else 0.0,
        save_s=SAVE_S if world.checkpoints else 0.0,
        save_stall_s=SAVE_STALL_S if world.checkpoints else 0.0,
        process=state if rank.alive else ProcessState.GONE,
        cpu_share=0.0 if still else 0.9,
        cpu_window_s=10.0 if rank.alive else 0.0,
    )
