"""One cluster as the API server, its machines and Ray show it: state, nodes with their facts, and why it does not come up."""

from collections.abc import Callable, Iterator, Sequence

from samite.engines.kuberay.api import EVENT, ApiError, Document, KubernetesApi
from samite.engines.kuberay.node_watch import NodeSeen, NodeWatch
from samite.engines.kuberay.pod_facts import (
    address_of,
    condition,
    gone_node,
    host_of,
    is_complete,
    is_head,
    is_ready,
    is_terminating,
    name_of,
    node_observed,
    why_not_starting,
)
from samite.engines.kuberay.ray_view import RayView
from samite.engines.kuberay.sight import Sight
from samite.lifecycle import ClusterObserved, ClusterState, JobStatus, Memory, NodeObserved

EVENTS_EVERY_S = 10.0


class ClusterViews:
    """Puts one cluster together from what was read in this turn; asks the API server itself only for the events of a pod that does not start."""

    def __init__(self, api: KubernetesApi, nodes: NodeWatch, *, namespace: str, clock: Callable[[], float]) -> None:
        self._api = api
        self._nodes = nodes
        self._namespace = namespace
        self._clock = clock

    def look(
        self, cluster_id: str, cluster: Document | None, pods: Sequence[Document] | None, view: RayView, memory: Memory, sight: Sight
    ) -> ClusterObserved:
        """The cluster as it is known now. `pods` None: unknown. `cluster` None: the API server knows no such RayCluster."""
        if pods is None:
            return ClusterObserved(cluster_id=cluster_id)
        nodes = [self._node(pod, view, sight) for pod in pods]
        live = memory.live
        if live is not None and live.cluster_id == cluster_id:
            nodes += self._gone(live.submission_id, pods, sight, suspended=_is_suspended(cluster))
            heads = [pod for pod in pods if is_head(pod) and not is_terminating(pod)]
            if heads and live.submission_id in view.jobs and view.jobs[live.submission_id].status is JobStatus.RUNNING:
                sight.heads.setdefault(live.submission_id, name_of(heads[0]))
        known = memory.cluster is not None and memory.cluster.cluster_id == cluster_id and memory.cluster.was_ready
        state = _state(cluster, pods, answers=_head_is_up(pods, view), was_ready=known)
        complete = cluster is not None and is_complete(cluster, pods)
        return ClusterObserved(
            cluster_id=cluster_id,
            state=state,
            nodes=tuple(nodes),
            cannot_start="" if cluster is None or complete else self._why_not(cluster, pods, sight),
            queued="the queue has not given its quota" if _is_suspended(cluster) else "",
        )

    def _node(self, pod: Document, view: RayView, sight: Sight) -> NodeObserved:
        name, machine = name_of(pod), self._machine(pod)
        state = (view.states or {}).get(address_of(pod))
        if state == "ALIVE":
            sight.joined.add(name)
        known = name in sight.joined or any(sign.heartbeat.node == name for sign in (sight.report.signs if sight.report else ()))
        ready = None if not view.answers else is_ready(pod) and state == "ALIVE"
        return node_observed(
            pod, machine, ready=ready, ray_dead=view.answers and state == "DEAD" and known, ray_age_s=0.0, known_end=sight.ends.get(name)
        )

    def _machine(self, pod: Document) -> NodeSeen | None:
        return self._nodes.get(host_of(pod)) if host_of(pod) else None

    def _gone(self, submission_id: str, pods: Sequence[Document], sight: Sight, *, suspended: bool) -> Iterator[NodeObserved]:
        """Nodes whose pods are not there any more although the live submission counts on them: those of its ranks, and its head."""
        present = {name_of(pod) for pod in pods}
        report = sight.report
        if report is not None and report.submission_id == submission_id:
            for name in sorted({sign.heartbeat.node for sign in report.signs} - present):
                yield gone_node(name, host=sight.hosts.get(name, ""), known_end=sight.ends.get(name), suspended=suspended)
        head = sight.heads.get(submission_id, "")
        if head and head not in present:
            yield gone_node(head, host=sight.hosts.get(head, ""), known_end=sight.ends.get(head), suspended=suspended, head=True)

    def _why_not(self, cluster: Document, pods: Sequence[Document], sight: Sight) -> str:
        found = why_not_starting(cluster, pods, ())
        waiting = [
            pod for pod in pods if not is_ready(pod) and not is_terminating(pod) and condition(pod, "PodScheduled").get("status") == "True"
        ]
        if found or not waiting:
            sight.pod_events = ()
            return found
        if self._clock() - sight.events_read_at_s > EVENTS_EVERY_S:
            sight.events_read_at_s = self._clock()
            try:
                fields = f"involvedObject.name={name_of(waiting[0])}"
                sight.pod_events = tuple(self._api.list(EVENT, self._namespace, fields=fields).items)
            except ApiError:
                sight.pod_events = ()
        return why_not_starting(cluster, pods, sight.pod_events)


def _head_is_up(pods: Sequence[Document], view: RayView) -> bool:
    """The dashboard answers, and Ray's own node of the head lives: without that no driver can start there."""
    return any(is_head(pod) and (view.states or {}).get(address_of(pod)) == "ALIVE" for pod in pods)


def _state(cluster: Document | None, pods: Sequence[Document], *, answers: bool, was_ready: bool) -> ClusterState | None:
    if cluster is None:
        return ClusterState.STOPPING if pods else ClusterState.ABSENT
    if is_terminating(cluster):
        return ClusterState.STOPPING
    if answers:
        return ClusterState.READY
    return None if was_ready else ClusterState.STARTING


def _is_suspended(cluster: Document | None) -> bool:
    return bool(cluster is not None and cluster.get("spec", {}).get("suspend"))
