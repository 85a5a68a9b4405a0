"""Which nodes are lost: facts about the node, and what its ranks show, put together under the two-evidence rule."""

from dataclasses import dataclass

from samite.lifecycle import blame
from samite.lifecycle.evidence import Evidence, Source, sufficient
from samite.lifecycle.observed import ClusterState, NodeObserved, NodeSays, ProcessState
from samite.lifecycle.turn import Turn


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeState:
    """One node as it is judged now."""

    node: NodeObserved
    evidence: tuple[Evidence, ...] = ()
    """Facts that it is dead or broken; empty for a node without a bad word."""
    has_ranks: bool = False

    @property
    def lost(self) -> bool:
        """Two independent facts say so."""
        return sufficient(self.evidence)


def judge_nodes(turn: Turn) -> tuple[NodeState, ...]:
    """Nodes of the cluster about which something bad is known, the head included."""
    seen = turn.cluster_seen()
    suspects = {node.name: node for node in seen.nodes if any(fact.says in (NodeSays.DEAD, NodeSays.HARDWARE_FAULT) for fact in node.facts)}
    if not suspects:
        return ()
    shown = _rank_evidence(turn, frozenset(suspects))
    return tuple(
        NodeState(
            node=node,
            evidence=(*_node_evidence(node), *((shown[name],) if name in shown and shown[name] is not None else ())),
            has_ranks=name in shown,
        )
        for name, node in suspects.items()
    )


def usable_nodes(turn: Turn, *, joining: bool = False) -> int:
    """Worker nodes that a new attempt can run on now; with `joining`, those too that are about to register."""
    memory = turn.memory
    if memory.cluster is None:
        return 0
    out = blame.excluded(memory.blame, turn.now_s) if turn.plan.nodes.exclude_blamed else frozenset()
    leaving = {lost for lost, _ in memory.cluster.replaced}
    return sum(
        1
        for node in turn.cluster_seen().nodes
        if (node.ready or (joining and node.joining))
        and not node.head
        and node.machine not in out
        and node.name not in leaving
        and not any(fact.says is NodeSays.DEAD for fact in node.facts)
    )


def head_evidence(turn: Turn) -> tuple[Evidence, ...]:
    """Facts that the head, or the whole cluster, is lost. Silence of the head is none of them."""
    facts: list[Evidence] = []
    seen, cluster = turn.cluster_seen(), turn.memory.cluster
    if cluster is None:
        return ()
    for node in seen.nodes:
        if node.head:
            facts.extend(_node_evidence(node))
    if seen.state is ClusterState.ABSENT and cluster.was_ready and turn.after(seen.age_s, cluster.since_s):
        facts.append(
            Evidence(
                source=Source.NODE_SUPERVISOR,
                subject=f"cluster {cluster.cluster_id}",
                says="nothing of it exists any more",
                age_s=seen.age_s,
            )
        )
    return tuple(facts)


def _node_evidence(node: NodeObserved) -> tuple[Evidence, ...]:
    return tuple(
        Evidence(source=fact.source, subject=f"node {node.name}", says=fact.detail or fact.says.value, age_s=fact.age_s, final=fact.final)
        for fact in node.facts
        if fact.says in (NodeSays.DEAD, NodeSays.HARDWARE_FAULT)
    )  # fmt: skip


def _rank_evidence(turn: Turn, names: frozenset[str]) -> dict[str, Evidence | None]:
    """For each of these nodes that has ranks: the data-plane fact that all of them are gone or silent, or None if one shows life."""
    live = turn.memory.live
    if live is None:
        return {}
    silent_s = silence_s(turn)
    gone: dict[str, bool] = {}
    silent: dict[str, bool] = {}
    age: dict[str, float] = {}
    for rank in turn.ranks.current:
        if rank.node not in names:
            continue
        dead = rank.process is ProcessState.GONE or rank.exit_code is not None or rank.exit_signal is not None
        quiet = rank.process is None and (rank.progress_age_s or 0.0) > silent_s
        gone[rank.node] = gone.get(rank.node, True) and dead
        silent[rank.node] = silent.get(rank.node, True) and (dead or quiet)
        age[rank.node] = min(age.get(rank.node, 1e18), rank.progress_age_s or 0.0)
    found: dict[str, Evidence | None] = {}
    for name, is_gone in gone.items():
        subject = f"ranks of node {name}"
        if is_gone:
            found[name] = Evidence(source=Source.PROCESS_TABLE, subject=subject, says="no process is left", final=True)
        elif silent[name]:
            says = f"silent for {age[name]:.1f} s, limit {silent_s:.1f} s"
            found[name] = Evidence(source=Source.HEARTBEAT, subject=subject, says=says)
        else:
            found[name] = None
    return found


def silence_s(turn: Turn) -> float:
    """After how long without a heartbeat a rank counts as silent, given what it was doing. Only ever a second fact."""
    policy, lead = turn.plan.detection, turn.ranks.lead
    if lead is None:
        return policy.silent_s
    if lead.phase in ("training", "finishing"):
        return max(policy.silent_s, 3.0 * lead.step_median_s)
    limits = {"loading": policy.load_s, "first_step": policy.first_step_s, "evaluating": policy.eval_s, "saving": policy.save_s}
    return max(policy.silent_s, limits.get(lead.phase, policy.start_s))
