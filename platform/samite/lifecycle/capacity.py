"""The cluster: wanted, started, repaired, counted. Shared by Provisioning and Recovering."""

import hashlib
from dataclasses import dataclass

from samite.lifecycle import blame
from samite.lifecycle.actions import ReleaseCluster, ReleaseWorkers, ReplaceNode, StartCluster, StopCluster
from samite.lifecycle.evidence import Evidence, sufficient
from samite.lifecycle.memory import ClusterMemory
from samite.lifecycle.nodes import head_evidence, judge_nodes, usable_nodes
from samite.lifecycle.observed import ClusterState
from samite.lifecycle.turn import Turn


@dataclass(frozen=True, kw_only=True, slots=True)
class Capacity:
    """What a new attempt could run on now."""

    nodes: int = 0
    """Usable worker nodes."""
    complete: bool = False
    """As many as the stage asks for."""
    coming: bool = False
    """As many as the stage asks for once those that are about to join have joined."""
    possible: bool = False
    """At least as many as the stage can train on."""
    cannot_start: str = ""
    """The reason why the cluster will not come up, once it has stood long enough."""
    waiting_for: str = ""
    queued: bool = False
    """A queue decides when it goes on: that is no delay of its own."""


def shape_of(turn: Turn) -> str:
    """Stages of equal shape share a cluster."""
    stage = turn.stage
    return f"{stage.max_workers + turn.plan.nodes.spares}x{stage.gpus_per_worker}"


def cluster_id_of(turn: Turn, *, generation: int) -> str:
    """`<run>-s<NN>-<hash5>`, deterministic."""
    digest = hashlib.sha256(f"{turn.plan.uid}/{shape_of(turn)}/{generation}".encode()).hexdigest()[:5]
    return f"{turn.plan.name}-s{turn.memory.stage_index:02d}-{digest}"


def ensure_cluster(turn: Turn, *, fresh: bool = False, evidence: tuple[Evidence, ...] = ()) -> Capacity:
    """Bring the cluster of the current stage up, or repair it. `fresh`: the one that is there must go first (nothing trains in it any more)."""
    cluster = turn.memory.cluster
    if cluster is not None and (fresh or cluster.leaving or cluster.shape != shape_of(turn)):
        if not remove_cluster(turn, reason="a new cluster is needed", force=fresh, evidence=evidence):
            return Capacity(waiting_for=f"the old cluster {cluster.cluster_id} to be gone")
        cluster = None
    if cluster is None:
        _want_cluster(turn)
    return _bring_up(turn)


def remove_cluster(turn: Turn, *, reason: str, force: bool = False, by_request: bool = False, evidence: tuple[Evidence, ...] = ()) -> bool:
    """Take the cluster down; nothing may train in it. True once it is known to be gone."""
    cluster = turn.memory.cluster
    if cluster is None:
        return True
    seen = turn.cluster_seen()
    if not cluster.leaving:
        turn.remember_cluster(leaving=True, leaving_since_s=turn.now_s)
    elif seen.state is ClusterState.ABSENT and turn.after(seen.age_s, cluster.leaving_since_s):
        turn.remember(cluster=None)
        return True
    if force:
        turn.act(StopCluster(cluster_id=cluster.cluster_id, reason=reason, evidence=evidence, idle=not sufficient(evidence)))
    else:
        turn.act(ReleaseCluster(cluster_id=cluster.cluster_id, reason=reason, by_request=by_request))
    return False


def release_workers(turn: Turn, *, reason: str) -> bool:
    """Give the workers back and keep the head; nothing may train. True once no worker is left."""
    cluster = turn.memory.cluster
    if cluster is None or workers_are_gone(turn):
        return True
    turn.act(ReleaseWorkers(cluster_id=cluster.cluster_id, reason=reason))
    return False


def workers_are_gone(turn: Turn) -> bool:
    """Whether the cluster was seen without a worker."""
    seen = turn.cluster_seen()
    if not seen.nodes:
        return seen.state is ClusterState.ABSENT
    return all(node.head for node in seen.nodes)


def replace_lost_nodes(turn: Turn) -> tuple[str, ...]:
    """Exchange nodes that two facts call lost. Gives the names of those that one fact alone suspects."""
    suspected = []
    for state in judge_nodes(turn):
        if state.node.head:
            continue
        if state.lost:
            _exchange(turn, state.node.name, state.evidence, reason="lost")
        else:
            suspected.append(state.node.name)
    return tuple(suspected)


def evict(turn: Turn, names: tuple[str, ...]) -> None:
    """Exchange nodes that look alive but are not trusted, named by node or machine. Only to be called while no submission is alive: nothing trains on them."""
    for node in turn.cluster_seen().nodes:
        if not node.head and (node.name in names or node.machine in names):
            _exchange(turn, node.name, (), reason="evicted")


def _exchange(turn: Turn, name: str, evidence: tuple[Evidence, ...], *, reason: str) -> None:
    cluster = turn.memory.cluster
    assert cluster is not None
    replacement = dict(cluster.replaced).get(name)
    if replacement is None:
        replacement = f"n{turn.memory.next_node}"
        nodes = tuple(replacement if node == name else node for node in cluster.nodes)
        if name not in cluster.nodes:
            nodes = cluster.nodes  # the engine chose its own names: the number of nodes stays
        turn.remember(next_node=turn.memory.next_node + 1)
        turn.remember_cluster(replaced=(*cluster.replaced, (name, replacement))[-256:], nodes=nodes)
        turn.emit("samite.node.lost", node=name, reason=reason, evidence=[f"{item.source}: {item.says}" for item in evidence])
    turn.act(
        ReplaceNode(
            cluster_id=cluster.cluster_id,
            node=name,
            replacement=replacement,
            reason=reason,
            evidence=evidence,
            idle=not sufficient(evidence),
            exclude_nodes=_untrusted(turn),
        )
    )


def _want_cluster(turn: Turn) -> None:
    memory, stage = turn.memory, turn.stage
    count = stage.max_workers + turn.plan.nodes.spares
    generation = memory.generation + 1
    cluster = ClusterMemory(
        cluster_id=cluster_id_of(turn, generation=generation),
        stage_index=memory.stage_index,
        shape=shape_of(turn),
        nodes=tuple(f"n{memory.next_node + index}" for index in range(count)),
        since_s=turn.now_s,
        since_watched_s=turn.watched_s,
    )
    turn.remember(cluster=cluster, generation=generation, next_node=memory.next_node + count)


def _bring_up(turn: Turn) -> Capacity:
    cluster, stage = turn.memory.cluster, turn.stage
    assert cluster is not None
    seen = turn.cluster_seen()
    state = seen.state if turn.after(seen.age_s, cluster.since_s) else None
    if seen.queued and state is not None:
        return Capacity(waiting_for=seen.queued, queued=True)
    if state is ClusterState.READY and not cluster.was_ready:
        turn.remember_cluster(was_ready=True)
    workers = [node for node in seen.nodes if not node.head]
    gone = {lost for lost, _ in cluster.replaced}
    missing = len(cluster.nodes) - sum(1 for node in workers if node.name not in gone)
    if state in (None, ClusterState.ABSENT) or (state is ClusterState.READY and missing > 0):
        _start(turn, cluster)
    cannot = _cannot_start(turn, seen.cannot_start if state is not None else "")
    suspected = replace_lost_nodes(turn) if state is ClusterState.READY else ()
    if state is ClusterState.READY:
        evict(turn, tuple(sorted(_untrusted(turn))))
    if state is not ClusterState.READY or sufficient(head_evidence(turn)):
        return Capacity(cannot_start=cannot, waiting_for=f"cluster {cluster.cluster_id}")
    usable = min(usable_nodes(turn), stage.max_workers)
    while usable and usable * stage.ranks_per_node % stage.rank_multiple:
        usable -= 1
    waiting = f"{usable} of {stage.max_workers} nodes are ready"
    if suspected:
        waiting += f"; {', '.join(suspected)} may be lost: a second fact is missing"
    return Capacity(
        nodes=usable,
        complete=usable >= stage.max_workers,
        coming=usable_nodes(turn, joining=True) >= stage.max_workers,
        possible=usable >= stage.min_workers,
        cannot_start=cannot,
        waiting_for=waiting,
    )


def _untrusted(turn: Turn) -> frozenset[str]:
    return blame.excluded(turn.memory.blame, turn.now_s) if turn.plan.nodes.exclude_blamed else frozenset()


def _start(turn: Turn, cluster: ClusterMemory) -> None:
    stage = turn.stage
    turn.act(
        StartCluster(
            cluster_id=cluster.cluster_id,
            stage_index=cluster.stage_index,
            nodes=cluster.nodes,
            ranks_per_node=stage.ranks_per_node,
            gpus_per_node=stage.gpus_per_worker,
            exclude_nodes=_untrusted(turn),
        )
    )


def _cannot_start(turn: Turn, reason: str) -> str:
    cluster = turn.memory.cluster
    assert cluster is not None
    if reason != cluster.cannot_start:
        turn.remember_cluster(cannot_start=reason, cannot_start_since_watched_s=turn.watched_s)
        return ""
    stood = turn.watched_s - cluster.cannot_start_since_watched_s
    return reason if reason and stood >= turn.plan.detection.cannot_start_s else ""
