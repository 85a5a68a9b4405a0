"""One turn's look at a run: API server, Lease, Ray and storage as one `Observed`. Looks only; what did not answer is unknown.

Lease ── ranks, result, failure reports          pods, RayCluster ── cluster, nodes, why it does not start
Kubernetes nodes ── second facts, notices        Ray's dashboard ── state of the submission, dead nodes
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from samite.engines.kuberay import names
from samite.engines.kuberay.api import LEASE, POD, RAY_CLUSTER, ApiError, Document, GoneApiError, KubernetesApi
from samite.engines.kuberay.background import Background
from samite.engines.kuberay.cluster_view import ClusterViews
from samite.engines.kuberay.control import belongs_to
from samite.engines.kuberay.heartbeats import ranks_of, reports_of_kubelet
from samite.engines.kuberay.node_watch import NodeWatch
from samite.engines.kuberay.pod_facts import (
    address_of,
    ended,
    host_of,
    is_head,
    is_not_ready,
    is_ready,
    name_of,
)
from samite.engines.kuberay.ray_view import JobsOf, RayView, look_at_ray, wanted_clusters, wanted_submissions
from samite.engines.kuberay.records_watch import Warnings, highest_attempt, recorded_result, recorded_warnings
from samite.engines.kuberay.sight import Sight
from samite.engines.kuberay.wishes import wishes_of
from samite.lifecycle import (
    AttemptObserved,
    JobStatus,
    Memory,
    Observed,
    RankObserved,
)
from samite.spec.attempt import AttemptResult
from samite.spec.lease import LeaseReport, attempt_number, lease_name

STACKS_PATIENCE_S = 10.0
LOG_TAIL_LINES = 60
_FAILED = (JobStatus.FAILED, JobStatus.STOPPED)


class Observer:
    """Looks at the runs of one namespace. Holds nothing of its own but the ways to look."""

    def __init__(
        self,
        api: KubernetesApi,
        nodes: NodeWatch,
        background: Background,
        *,
        namespace: str,
        jobs_of: JobsOf,
        token_of: Callable[[str, str], str],
        clock: Callable[[], float],
    ) -> None:
        """`token_of`: (run uid, cluster id) -> Ray's token. `clock` is monotonic."""
        self._api = api
        self._nodes = nodes
        self._background = background
        self._namespace = namespace
        self._jobs_of = jobs_of
        self._token_of = token_of
        self._clock = clock
        self._views = ClusterViews(api, nodes, namespace=namespace, clock=clock)

    def look(self, run: Mapping[str, Any], memory: Memory, sight: Sight, now_s: float) -> Observed:
        """Everything known now. `now_s` is the clock that `decide` gets. Raises nothing: a source that fails is unknown."""
        name, uid = run["metadata"]["name"], run["metadata"]["uid"]
        if memory.recovery is not None and sight.storage is not None:
            sight.storage.look_soon()  # the next attempt waits for a listing from after the end of the last
        submissions = wanted_submissions(memory)
        objects = self._objects(name, uid, memory, sight)
        clusters, views = [], {}
        for cluster_id in wanted_clusters(memory):
            pods, cluster = objects.of(cluster_id)
            mine = tuple(item for item, place in submissions.items() if place == cluster_id)
            views[cluster_id] = self._ray(uid, cluster_id, pods or (), mine)
            clusters.append(self._views.look(cluster_id, cluster, pods, views[cluster_id], memory, sight))
        wishes = wishes_of(run, memory)
        report = objects.report
        warnings = self._warnings(sight, memory)
        return Observed(
            at_s=now_s,
            cluster=tuple(clusters),
            attempts=tuple(self._attempt(item, views.get(place, RayView()), report, sight, place) for item, place in submissions.items()),
            ranks=tuple(self._ranks(report, sight)),
            checkpoints=sight.storage.checkpoints() if sight.storage is not None else None,
            storage=sight.storage_observed(f"{name}-{uid}", self._clock()),
            handovers=sight.storage.handovers() if sight.storage is not None else None,
            gate=sight.gate,
            diagnostics=self._diagnostics(report, sight),
            decay=warnings.decay,
            alarm=warnings.alarm,
            suspend=wishes.suspend,
            cancel=wishes.cancel,
            requests=wishes.requests,
            highest_attempt=self._highest_attempt(report, sight),
        )

    # The API server

    def _objects(self, name: str, uid: str, memory: Memory, sight: Sight) -> "_Objects":
        """Read what this turn needs; the first call without an answer ends it, and the rest is unknown."""
        found = _Objects()
        clusters = wanted_clusters(memory)
        try:
            if memory.live is not None or memory.recovery is not None:
                found.report = self._report(name, sight)
            if not clusters:
                return found
            for cluster_id in clusters:
                found.clusters[cluster_id] = self._get_cluster(cluster_id)
            # Pods after clusters: a cluster that is gone and has no pod a moment later is gone for good.
            pods = self._api.list(POD, self._namespace, labels={names.RUN_UID: uid}).items
        except ApiError:
            return found
        found.pods = tuple(pods)
        for pod in pods:
            sight.note_pod(pod)
        self._nodes.refresh(host_of(pod) for pod in pods if not is_ready(pod) or name_of(pod) in _silent(found.report))
        return found

    def _report(self, name: str, sight: Sight) -> LeaseReport | None:
        try:
            lease = self._api.get(LEASE, self._namespace, lease_name(name))
        except GoneApiError:
            return None
        if not belongs_to(lease, sight.uid):
            return None
        sight.report = sight.lease.read(lease, self._clock())
        return sight.report

    def _get_cluster(self, cluster_id: str) -> Document | None:
        try:
            return self._api.get(RAY_CLUSTER, self._namespace, cluster_id)
        except GoneApiError:
            return None

    # Ray

    def _ray(self, uid: str, cluster_id: str, pods: Sequence[Document], submissions: Sequence[str]) -> RayView:
        """Ask the dashboard if a head could answer: a question to a dead machine costs the turn its time."""
        heads = [pod for pod in pods if is_head(pod) and address_of(pod) and ended(pod) is None and not self._is_lost(pod)]
        if not heads:
            return RayView()
        return look_at_ray(self._jobs_of(cluster_id, self._namespace, self._token_of(uid, cluster_id)), submissions)

    def _is_lost(self, pod: Document) -> bool:
        machine = self._nodes.get(host_of(pod))
        return machine is not None and (machine.document is None or is_not_ready(machine.document))

    # Attempts, ranks, storage

    def _attempt(self, submission_id: str, view: RayView, report: LeaseReport | None, sight: Sight, cluster_id: str) -> AttemptObserved:
        job = view.jobs.get(submission_id)
        status = job.status if job is not None else None
        mine = report is not None and report.submission_id == submission_id
        reports = (*report.failures, *reports_of_kubelet(report, sight.ends)) if report is not None and mine else ()
        result = report.result if report is not None and mine else None
        if result is None and status is not None and status not in (JobStatus.PENDING, JobStatus.RUNNING):
            result = self._stored_result(submission_id, sight)
        failed = bool(reports) or status in _FAILED
        return AttemptObserved(
            submission_id=submission_id,
            job_status=status,
            job_message=job.message if job is not None else "",
            actors_left=job.actors_left if job is not None else None,
            result=result,
            reports=reports,
            log_tail=self._log_tail(sight.uid, cluster_id, submission_id) if failed and view.answers else (),
        )

    def _stored_result(self, submission_id: str, sight: Sight) -> AttemptResult | None:
        store = sight.store
        if store is None:
            return None
        found = self._background.ask(f"{sight.uid}/result/{submission_id}", lambda: recorded_result(store, submission_id), every_s=5.0)
        return found if isinstance(found, AttemptResult) else None

    def _log_tail(self, uid: str, cluster_id: str, submission_id: str) -> tuple[str, ...]:
        jobs = self._jobs_of(cluster_id, self._namespace, self._token_of(uid, cluster_id))
        text = self._background.ask(f"{uid}/log/{submission_id}", lambda: jobs.logs(submission_id), every_s=5.0)
        return tuple(str(text).splitlines()[-LOG_TAIL_LINES:]) if text else ()

    def _ranks(self, report: LeaseReport | None, sight: Sight) -> Iterator[RankObserved]:
        if report is not None:
            yield from ranks_of(report, sight.ends, self._clock())

    def _diagnostics(self, report: LeaseReport | None, sight: Sight) -> frozenset[str]:
        """Requests whose stacks are there: of all ranks, or of some and long enough ago."""
        counts = dict(report.stacks or {}) if report is not None else {}
        late = {item for item, at_s in sight.stacks.items() if self._clock() - at_s > STACKS_PATIENCE_S}
        return frozenset(
            item for item, count in counts.items() if count and (item in late or (report is not None and count >= report.num_ranks))
        )

    def _warnings(self, sight: Sight, memory: Memory) -> Warnings:
        store, live = sight.store, memory.live
        if store is None or live is None or not live.heartbeat_seen:
            return Warnings()
        submission_id = live.submission_id
        found = self._background.ask(f"{sight.uid}/events/{submission_id}", lambda: recorded_warnings(store, submission_id), every_s=10.0)
        warnings = found if isinstance(found, Warnings) else Warnings()
        if not warnings.stalled:
            sight.stalled_since_s = None
        elif sight.stalled_since_s is None:
            sight.stalled_since_s = self._clock()
        return warnings

    def _highest_attempt(self, report: LeaseReport | None, sight: Sight) -> int:
        store = sight.store
        told = attempt_number(report.submission_id) if report is not None else 0
        stored = None if store is None else self._background.ask(f"{sight.uid}/attempts", lambda: highest_attempt(store), every_s=60.0)
        return max(0, told, int(stored or 0))


class _Objects:
    """What the API server answered in one turn."""

    def __init__(self) -> None:
        self.report: LeaseReport | None = None
        self.clusters: dict[str, Document | None] = {}
        self.pods: tuple[Document, ...] | None = None

    def of(self, cluster_id: str) -> tuple[Sequence[Document] | None, Document | None]:
        """Pods (None: unknown) and RayCluster (None: absent) of one cluster."""
        if self.pods is None or cluster_id not in self.clusters:
            return None, None
        mine = tuple(pod for pod in self.pods if (pod["metadata"].get("labels") or {}).get(names.CLUSTER) == cluster_id)
        return mine, self.clusters[cluster_id]


def _silent(report: LeaseReport | None) -> frozenset[str]:
    """Nodes of ranks that have not been heard for a while."""
    if report is None:
        return frozenset()
    newest = max((sign.heard_at_s for sign in report.signs), default=0.0)
    return frozenset(sign.heartbeat.node for sign in report.signs if newest - sign.heard_at_s > 4.0)
