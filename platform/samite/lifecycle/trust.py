"""What the facts about nodes do to the trust in them: strong evidence excludes at once, weak evidence adds strikes. Nothing is stopped here.

A node that is excluded keeps training what it trains; it is exchanged before the next attempt.
"""

from samite.lifecycle import blame
from samite.lifecycle.evidence import PERIOD_S
from samite.lifecycle.observed import NodeFact, NodeObserved, NodeSays
from samite.lifecycle.turn import Turn

_WEAK = {NodeSays.NETWORK_FLAP: blame.Weak.NETWORK_FLAP, NodeSays.PREFLIGHT_FAILED: blame.Weak.PREFLIGHT}


def note_node_facts(turn: Turn) -> None:
    """Count every fresh fact about every node once."""
    for node in turn.cluster_seen().nodes:
        for fact in node.facts:
            if node.head or not (fact.final or fact.age_s <= 2.0 * PERIOD_S[fact.source]):
                continue
            if fact.says is NodeSays.HARDWARE_FAULT:
                apply_verdict(turn, node.machine, fact.detail, _strong(turn, node, fact))
            elif fact.says in _WEAK:
                strike(turn, node.machine, _WEAK[fact.says], fact.detail)


def strike(turn: Turn, node: str, weak: blame.Weak, fact: str) -> None:
    """Weak evidence against `node`."""
    verdict = blame.strike(
        turn.memory.blame,
        node=node,
        weak=weak,
        fact=fact,
        pool=_pool(turn),
        policy=turn.plan.nodes,
        now_s=turn.now_s,
    )
    apply_verdict(turn, node, f"{weak}: {fact}", verdict)


def apply_verdict(turn: Turn, node: str, reason: str, verdict: blame.Verdict) -> None:
    """Remember a verdict, and say it if it excludes the node."""
    before = turn.memory.blame
    if verdict.blame != before:
        turn.remember(blame=verdict.blame)
    if verdict.quarantined:
        turn.emit("samite.node.quarantined", node=node, reason=reason, node_expiry=turn.plan.nodes.expiry_s)
    elif verdict.blame != before:
        turn.emit("samite.node.suspected", node=node, reason=reason, node_strikes=_strikes(turn, node))


def _strong(turn: Turn, node: NodeObserved, fact: NodeFact) -> blame.Verdict:
    return blame.quarantine(
        turn.memory.blame,
        node=node.machine,
        reason=fact.detail,
        pool=_pool(turn),
        policy=turn.plan.nodes,
        now_s=turn.now_s,
        racks={item.machine: item.rack for item in turn.cluster_seen().nodes},
    )


def _strikes(turn: Turn, node: str) -> float:
    return next((entry.strikes for entry in turn.memory.blame if entry.node == node), 0.0)


def _pool(turn: Turn) -> int:
    return max(1, sum(1 for node in turn.cluster_seen().nodes if not node.head))
