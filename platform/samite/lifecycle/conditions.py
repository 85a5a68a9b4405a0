"""The thirteen conditions. Unknown wherever the source of evidence is silent; the message carries the number that decided."""

from samite.lifecycle import blame
from samite.lifecycle.nodes import usable_nodes
from samite.lifecycle.observed import ClusterState
from samite.lifecycle.phases import TRAINING, Phase
from samite.lifecycle.ranks import STEPPING
from samite.lifecycle.status import CONDITIONS, Condition, ConditionStatus
from samite.lifecycle.turn import Turn

_T, _F, _U = ConditionStatus.TRUE, ConditionStatus.FALSE, ConditionStatus.UNKNOWN
_BEFORE = (Phase.PENDING, Phase.VALIDATING)


def conditions(turn: Turn) -> tuple[Condition, ...]:
    """All conditions, in the order of `CONDITIONS`."""
    made = {
        "Validated": _validated(turn),
        "Admitted": _admitted(turn),
        "CapacityReady": _capacity(turn),
        "Progressing": _progressing(turn),
        "CheckpointHealthy": _checkpoints(turn),
        "Degraded": _degraded(turn),
        "Hung": _hung(turn),
        "Restarting": _flag(turn, Phase.RECOVERING),
        "GateBlocked": _gate(turn),
        "Suspended": _flag(turn, Phase.SUSPENDED),
        "Quarantining": _quarantining(turn),
        "Succeeded": _flag(turn, Phase.SUCCEEDED),
        "Failed": _flag(turn, Phase.FAILED),
    }
    return tuple(Condition(type=name, status=made[name][0], reason=made[name][1], message=made[name][2]) for name in CONDITIONS)


_Made = tuple[ConditionStatus, str, str]


def _flag(turn: Turn, phase: Phase) -> _Made:
    memory = turn.memory
    if memory.phase is phase:
        return _T, memory.reason, memory.message
    return _F, memory.phase.value, ""


def _validated(turn: Turn) -> _Made:
    memory = turn.memory
    if memory.phase in _BEFORE:
        return _U, "Probing", "the storage has not answered yet"
    if memory.phase is Phase.FAILED and memory.reason == "ValidationFailed":
        return _F, memory.reason, memory.message
    return _T, "Validated", ""


def _admitted(turn: Turn) -> _Made:
    if turn.memory.phase in (*_BEFORE, Phase.QUEUED):
        if turn.observed.admitted is None:
            return _U, "Silent", "the queue did not answer"
        return _F, "Waiting", "no quota yet"
    if turn.memory.cluster is None:
        return _F, turn.memory.phase.value, "nothing is reserved"
    return _T, "Admitted", ""


def _capacity(turn: Turn) -> _Made:
    cluster, seen = turn.memory.cluster, turn.cluster_seen()
    if cluster is None:
        return _F, "NoCluster", ""
    if seen.state is None:
        return _U, "Silent", f"nothing is known about {cluster.cluster_id}"
    usable, wanted = usable_nodes(turn), turn.stage.max_workers
    ready = seen.state is ClusterState.READY and usable >= wanted
    return (_T if ready else _F), "Ready" if ready else "Missing", f"{usable} of {wanted} nodes are ready"


def _progressing(turn: Turn) -> _Made:
    memory, ranks = turn.memory, turn.ranks
    if memory.phase not in TRAINING:
        return _F, memory.phase.value, ""
    if ranks.youngest_s is None:
        return _U, "NoHeartbeat", "no heartbeat of the current attempt was read"
    suspicion = memory.suspicion
    if suspicion is not None and suspicion.kind == "hang":
        return _F, "OverLimit", f"newest heartbeat is {ranks.youngest_s:.0f} s old"
    if suspicion is not None and suspicion.kind == "failure":
        return _U, "Suspected", suspicion.detail
    if turn.live_seen.job_status is None and memory.phase is not Phase.STARTING:
        return _T, "HeartbeatOnly", f"newest heartbeat is {ranks.youngest_s:.1f} s old; the Ray dashboard is silent"
    return _T, "Heartbeat", f"newest heartbeat is {ranks.youngest_s:.1f} s old"


def _checkpoints(turn: Turn) -> _Made:
    memory, storage, listing = turn.memory, turn.observed.storage, turn.observed.checkpoints
    policy = turn.plan.checkpoint
    if storage is not None and storage.failing_for_s is not None:
        return _F, "StorageFailing", f"writes have failed or stood still for {storage.failing_for_s:.0f} s {storage.message}".rstrip()
    if listing is None:
        return _U, "Silent", "the storage did not say which checkpoints exist"
    if memory.newest_commit_at_s is None:
        return _U, "NoneYet", "no checkpoint is committed yet"
    period = policy.interval_s
    live = memory.live
    if period is None and policy.interval_steps is not None and live is not None and turn.ranks.lead is not None:
        period = policy.interval_steps * turn.ranks.lead.step_median_s or None
    age = turn.now_s - memory.newest_commit_at_s
    newest = next((item for item in reversed(listing.recent)), None)
    if listing.quarantined and newest is None:
        return _F, "AllQuarantined", f"{len(listing.quarantined)} checkpoints are quarantined and none is left"
    training = memory.phase is Phase.RUNNING and turn.ranks.lead is not None and turn.ranks.lead.phase in STEPPING
    if training and period is not None and age > 2.0 * period + policy.stall_s:
        return _F, "Late", f"last commit {age:.0f} s ago, one is expected each {period:.0f} s"
    return _T, "Committed", f"last commit {age:.0f} s ago"


def _degraded(turn: Turn) -> _Made:
    live, cluster = turn.memory.live, turn.memory.cluster
    if live is not None and live.num_nodes < turn.stage.max_workers:
        return _T, "FewerWorkers", f"{live.num_nodes} of {turn.stage.max_workers} nodes train"
    spares = turn.plan.nodes.spares
    if spares and cluster is not None and live is not None:
        if turn.cluster_seen().state is None:
            return _U, "Silent", "nothing is known about spares"
        left = usable_nodes(turn) - live.num_nodes
        if left <= 0:
            return _T, "NoSpare", f"0 of {spares} spares are left"
    return _F, "Complete", ""


def _hung(turn: Turn) -> _Made:
    memory, suspicion = turn.memory, turn.memory.suspicion
    if memory.phase not in TRAINING:
        return _F, memory.phase.value, ""
    if suspicion is not None and suspicion.kind == "hang":
        since = turn.now_s - suspicion.since_s
        if suspicion.confirmed:
            return _T, "TwoFacts", f"for {since:.0f} s over its limit, confirmed by a second fact"
        return _U, "OneFact", f"for {since:.0f} s over its limit; a second fact is missing"
    if turn.ranks.youngest_s is None:
        return _U, "NoHeartbeat", "no heartbeat of the current attempt was read"
    return _F, "Moving", f"newest heartbeat is {turn.ranks.youngest_s:.1f} s old"


def _gate(turn: Turn) -> _Made:
    memory = turn.memory
    if memory.phase is Phase.GATING or (memory.phase is Phase.HELD and memory.reason == "GateFailed"):
        return _T, memory.reason, memory.message
    return _F, memory.phase.value, ""


def _quarantining(turn: Turn) -> _Made:
    out = sorted(blame.excluded(turn.memory.blame, turn.now_s))
    return (_T, "Excluded", ", ".join(out[:8])) if out else (_F, "None", "")
