"""What pods and their machines say, as facts for the lifecycle. Pure; every fact names its true source.

    KUBERNETES (control plane)   the pod has ended, is gone, or its machine is not Ready; a notice that the machine or pod will be taken away
    RAY_NODE   (data plane)      Ray's own list says that the node is dead
    DEVICE     (hardware)        a condition that a device monitor sets on the Kubernetes node

Heartbeats are the ranks' own facts and live in `heartbeats`. A pod that is Terminating is not dead: only what runs in it decides that.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from samite.engines.kuberay import names
from samite.engines.kuberay.api import Document
from samite.engines.kuberay.node_watch import NodeSeen
from samite.lifecycle import NodeFact, NodeObserved, NodeSays, Source

NOTICE_TAINTS = (
    "cloud.google.com/impending-node-termination",
    "aws-node-termination-handler/",
    "kubernetes.azure.com/scalesetpriority-evict",
    "ToBeDeletedByClusterAutoscaler",
    "karpenter.sh/disrupted",
    "node.kubernetes.io/out-of-service",
)
"""Taints that say that a machine will be taken away, or beginnings of them."""
HARDWARE_CONDITIONS = frozenset({"GpuXidError", "GpuHardwareFault", "HardwareFault"})
"""Types of node conditions by which device monitors report a broken machine."""
IMAGE_REASONS = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable"})
CONFIG_REASONS = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "CrashLoopBackOff"})

_POD_NAME = re.compile(r'pods? "[^"]*"')


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """How a pod's Ray container ended."""

    says: str
    """For people: `container ray-worker ended: OOMKilled, exit code 137`."""
    out_of_memory: bool = False


def name_of(document: Mapping[str, Any]) -> str:
    """`metadata.name`."""
    return str(document["metadata"]["name"])


def is_head(pod: Mapping[str, Any]) -> bool:
    """True for the head's pod."""
    labels = pod["metadata"].get("labels") or {}
    return "head" in {labels.get(names.RAY_NODE_TYPE_LABEL), labels.get(names.ROLE)}


def is_terminating(pod: Mapping[str, Any]) -> bool:
    """True once the pod was asked to go."""
    return bool(pod["metadata"].get("deletionTimestamp"))


def host_of(pod: Mapping[str, Any]) -> str:
    """The machine; empty before the pod has one."""
    return str(pod.get("spec", {}).get("nodeName") or "")


def address_of(pod: Mapping[str, Any]) -> str:
    """The pod's address; empty before it has one."""
    return str(pod.get("status", {}).get("podIP") or "")


def condition(document: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """A condition of an object's status; empty if it has none of that type."""
    return next((item for item in document.get("status", {}).get("conditions") or () if item.get("type") == kind), {})


def is_ready(pod: Mapping[str, Any]) -> bool:
    """The kubelet's own word, which stands still when the kubelet is gone: only together with a Ready machine."""
    return condition(pod, "Ready").get("status") == "True" and not is_terminating(pod)


def ended(pod: Mapping[str, Any]) -> Ended | None:
    """How the pod ended, or None while it may still run."""
    status = pod.get("status", {})
    for container in status.get("containerStatuses") or ():
        state = (container.get("state") or {}).get("terminated")
        if state and container.get("name") in {names.RAY_CONTAINER_HEAD, names.RAY_CONTAINER_WORKER}:
            reason = state.get("reason") or "no reason given"
            says = f"container {container['name']} ended: {reason}, exit code {state.get('exitCode')}"
            return Ended(says=says, out_of_memory=reason == "OOMKilled")
    if status.get("phase") in {"Failed", "Succeeded"}:
        told = ": ".join(str(part) for part in (status.get("reason"), status.get("message")) if part)
        return Ended(says=f"its pod is {status['phase']}{f' ({told})' if told else ''}")
    return None


def node_observed(
    pod: Mapping[str, Any],
    machine: NodeSeen | None,
    *,
    ready: bool | None,
    ray_dead: bool,
    ray_age_s: float,
    known_end: Ended | None = None,
) -> NodeObserved:
    """One pod as a node of the cluster. `ready`: joined Ray and passed its probe; None if Ray did not answer.

    A worker whose container runs on a machine, and which nobody speaks badly of, is about to join; one that waits for an image or a machine is not.
    """
    end = ended(pod) or known_end
    facts = [*_end_facts(end), *_machine_facts(pod, machine), *_notices(pod, machine)]
    if ray_dead:
        facts.append(NodeFact(source=Source.RAY_NODE, says=NodeSays.DEAD, detail="Ray reports the node dead", age_s=ray_age_s))
    dead = any(fact.says is NodeSays.DEAD for fact in facts)
    starting = ready is False and not is_head(pod) and not is_terminating(pod) and _status(pod).get("phase") == "Running"
    return NodeObserved(
        name=name_of(pod),
        head=is_head(pod),
        host=host_of(pod),
        rack=_rack(machine),
        ready=False if dead or is_terminating(pod) else ready,
        joining=starting and not facts,
        facts=tuple(facts),
    )


def gone_node(name: str, *, host: str, known_end: Ended | None, suspended: bool, head: bool = False) -> NodeObserved:
    """A node whose ranks are still in the books although its pod is not there any more."""
    says = known_end.says if known_end is not None else "its pod no longer exists"
    facts = [NodeFact(source=Source.KUBERNETES, says=NodeSays.DEAD, detail=says, final=True)]
    if suspended:
        facts.append(NodeFact(source=Source.KUBERNETES, says=NodeSays.PREEMPTION_NOTICE, detail="the queue took the quota back"))
    return NodeObserved(name=name, host=host, head=head, ready=False, facts=tuple(facts))


def _end_facts(end: Ended | None) -> Iterator[NodeFact]:
    if end is not None:
        yield NodeFact(source=Source.KUBERNETES, says=NodeSays.DEAD, detail=end.says, final=True)


def _machine_facts(pod: Mapping[str, Any], machine: NodeSeen | None) -> Iterator[NodeFact]:
    host = host_of(pod)
    if not host or machine is None:
        return
    waiting = ", its pod stays Terminating" if is_terminating(pod) else ""
    if machine.document is None:
        detail = f"the Kubernetes node {host} no longer exists{waiting}"
        yield NodeFact(source=Source.KUBERNETES, says=NodeSays.DEAD, detail=detail, age_s=machine.age_s)
        return
    if is_not_ready(machine.document):
        why = condition(machine.document, "Ready").get("reason") or "no reason given"
        detail = f"the Kubernetes node {host} is not Ready ({why}){waiting}"
        yield NodeFact(source=Source.KUBERNETES, says=NodeSays.DEAD, detail=detail, age_s=machine.age_s)
    for item in machine.document.get("status", {}).get("conditions") or ():
        if item.get("type") in HARDWARE_CONDITIONS and item.get("status") == "True":
            detail = f"{item['type']} on {host}: {item.get('message') or item.get('reason') or 'no message'}"
            yield NodeFact(source=Source.DEVICE, says=NodeSays.HARDWARE_FAULT, detail=detail, age_s=machine.age_s)


def is_not_ready(node: Document) -> bool:
    """True if Kubernetes says that the machine is not Ready (`False` or `Unknown`); a node without the condition is new, not lost."""
    return condition(node, "Ready").get("status") in {"False", "Unknown"}


def _notices(pod: Mapping[str, Any], machine: NodeSeen | None) -> Iterator[NodeFact]:
    document = machine.document if machine is not None else None
    lost = machine is not None and (document is None or is_not_ready(document))
    target = condition(pod, "DisruptionTarget")
    says, kind = NodeSays.PREEMPTION_NOTICE, Source.KUBERNETES
    if target.get("status") == "True" and not lost:
        yield NodeFact(source=kind, says=says, detail=f"{target.get('reason') or 'disruption'}: {target.get('message') or 'no message'}")
    elif is_terminating(pod) and not lost and ended(pod) is None:
        grace_s = pod["metadata"].get("deletionGracePeriodSeconds", 30)
        yield NodeFact(source=kind, says=says, detail=f"its pod is being deleted, {grace_s} s to go at most")
    for taint in (document or {}).get("spec", {}).get("taints") or ():
        if any(str(taint.get("key", "")).startswith(key) for key in NOTICE_TAINTS):
            yield NodeFact(source=kind, says=says, detail=f"node {host_of(pod)} is tainted {taint['key']}")


def _rack(machine: NodeSeen | None) -> str:
    labels = ((machine.document if machine else None) or {}).get("metadata", {}).get("labels") or {}
    return next((str(labels[key]) for key in names.ZONE_LABELS if labels.get(key)), "")


def is_complete(cluster: Mapping[str, Any], pods: Sequence[Mapping[str, Any]]) -> bool:
    """Head and every wanted worker are there and ready. Pods that were never made, for want of quota, are missed too."""
    wanted = 1 + sum(int(group.get("replicas") or 0) for group in cluster.get("spec", {}).get("workerGroupSpecs") or ())
    return len(pods) >= wanted and all(is_ready(pod) for pod in pods)


def why_not_starting(cluster: Mapping[str, Any], pods: Sequence[Mapping[str, Any]], events: Sequence[Mapping[str, Any]]) -> str:
    """Why the cluster will not come up by waiting: a sentence that stays the same as long as the reason does. Empty if nothing is known."""
    failure = condition(cluster, "ReplicaFailure")
    if failure.get("status") == "True":
        # Each try is for a pod of another name, which is no other reason.
        told = _POD_NAME.sub("a pod", str(failure.get("message") or failure.get("reason")))
        return f"KubeRay cannot make pods: {told}"
    for pod in pods:
        for container in (*(_status(pod).get("initContainerStatuses") or ()), *(_status(pod).get("containerStatuses") or ())):
            found = _waiting(container)
            if found:
                return found
    idle = not any(is_ready(pod) for pod in pods if not is_head(pod))
    for pod in pods:
        scheduled = condition(pod, "PodScheduled")
        if idle and scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable":
            return f"no Kubernetes node fits a {'head' if is_head(pod) else 'worker'} pod: {scheduled.get('message') or 'no message'}"
    for event in events:
        if event.get("reason") in {"FailedMount", "FailedAttachVolume", "FailedCreate", "FailedCreatePodSandBox"}:
            return f"{event['reason']}: {event.get('message') or 'no message'}"
    return ""


def _waiting(container: Mapping[str, Any]) -> str:
    waiting = (container.get("state") or {}).get("waiting") or {}
    reason = waiting.get("reason", "")
    if reason in IMAGE_REASONS:
        # ErrImagePull and ImagePullBackOff take turns, and so do their messages: the sentence must not.
        return f"image {container.get('image')} cannot be pulled"
    if reason in CONFIG_REASONS:
        return f"container {container.get('name')} cannot start: {reason}: {waiting.get('message') or 'no message'}"
    return ""


def _status(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    return pod.get("status") or {}
