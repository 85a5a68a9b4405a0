"""RayClusters made, repaired and removed. Every write names the uid it means; nothing that trains on a healthy machine is deleted with force.

A pod is deleted with grace period 0 (the object goes at once, whatever runs) only if Kubernetes says that its machine is not Ready or gone, and
the decision carries its two facts or says that nothing of ours runs there. Otherwise the kubelet ends it first.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from samite.engines.kuberay import names
from samite.engines.kuberay.access import access_objects, ray_token, token_secret
from samite.engines.kuberay.api import (
    CRD,
    POD,
    RAY_CLUSTER,
    SECRET,
    ConflictApiError,
    Document,
    ForbiddenApiError,
    GoneApiError,
    KubernetesApi,
    PermanentApiError,
)
from samite.engines.kuberay.cluster import ray_cluster
from samite.engines.kuberay.control import ensure_lease
from samite.engines.kuberay.dropped import dropped_fields
from samite.engines.kuberay.features import Features
from samite.engines.kuberay.node_watch import NodeWatch
from samite.engines.kuberay.pod_facts import host_of, is_head, is_not_ready, is_terminating, name_of
from samite.engines.kuberay.refusals import refused_cluster
from samite.engines.kuberay.runtime import Runtime
from samite.errors import ConflictError, NotFoundError, SpecError, TemporaryError
from samite.lifecycle import ReleaseCluster, ReleaseWorkers, ReplaceNode, StartCluster, StopCluster
from samite.lifecycle.evidence import sufficient

APPLIED = "samite.dev/applied"
"""On the RayCluster: hash of what was applied last, so that the same wish is not written twice."""
FEATURES_FOR_S = 300.0
PROMPT_GRACE_S = 1
"""Grace of a pod that is to end now although its machine is well: the kubelet kills it and says when it is gone."""
_STAGE = re.compile(r"-s(\d{2,})-[0-9a-f]{5}$")


class Clusters:
    """The hands for RayClusters and their pods."""

    def __init__(
        self,
        api: KubernetesApi,
        nodes: NodeWatch,
        *,
        namespace: str,
        token_key: bytes,
        excluded: Callable[[], frozenset[str]],
        clock: Callable[[], float],
    ) -> None:
        self._api = api
        self._nodes = nodes
        self._namespace = namespace
        self._token_key = token_key
        self._excluded = excluded
        self._clock = clock
        self._features: Features | None = None
        self._features_at_s = -1e9
        self._dropped: dict[str, tuple[str, ...]] = {}
        """Fields that the API server did not keep, by cluster."""

    def token(self, uid: str, cluster_id: str) -> str:
        """Ray's token of a cluster."""
        return ray_token(self._token_key, uid, cluster_id)

    def start(self, run: Mapping[str, Any], action: StartCluster, runtime: Runtime) -> None:
        """Make the cluster and what it needs, or bring it back to what is wanted."""
        known = self._own(run, action.cluster_id)
        if known is not None and is_terminating(known):
            return  # its successor has another name; this one is waited for
        features = self.features()
        wanted = ray_cluster(
            run,
            cluster_id=action.cluster_id,
            stage_index=action.stage_index,
            replicas=len(action.nodes),
            gpus_per_node=action.gpus_per_node,
            runtime=runtime,
            features=features,
            excluded=action.exclude_nodes | self._excluded(),
        )
        problems = refused_cluster(wanted, features)
        if problems:
            raise SpecError(problems, source=f"RayCluster {action.cluster_id}")
        if known is None:
            self._prepare(run, action.cluster_id)
        self._write(wanted, known)
        if lost := self._dropped.get(action.cluster_id):
            raise PermanentApiError(
                f"the API server does not keep {', '.join(lost[:8])} of RayCluster {action.cluster_id}: KubeRay's definitions are older than "
                "what the runtime asks for. Update KubeRay's CRDs, or leave these fields out of the runtime"
            )

    def replace(self, run: Mapping[str, Any], action: ReplaceNode, runtime: Runtime | None) -> None:
        """Delete one pod; KubeRay makes the next. The exclusions are written first, so that it lands elsewhere."""
        cluster = self._own(run, action.cluster_id)
        pod = self._pod(run, action.node)
        if cluster is None or pod is None or is_terminating(cluster):
            return
        if runtime is not None:
            self._exclude(run, cluster, runtime, action.exclude_nodes | self._excluded(), avoided={host_of(pod)} - {""})
        may_force = action.idle or sufficient(action.evidence)
        lost = self._machine_is_lost(pod)
        if is_terminating(pod) and not lost:
            return  # the kubelet is at it
        self._delete_pod(pod, force=lost and may_force, prompt=not action.idle)

    def remove(self, run: Mapping[str, Any], action: StopCluster | ReleaseCluster) -> None:
        """Delete the RayCluster, and force what stays Terminating on machines that are lost."""
        cluster = self._own(run, action.cluster_id)
        if cluster is not None and not is_terminating(cluster):
            self._api.delete(RAY_CLUSTER, self._namespace, action.cluster_id, uid=cluster["metadata"]["uid"])
        for pod in self._pods(run, action.cluster_id):
            if cluster is not None and not is_terminating(pod):
                continue  # the garbage collector comes to it
            if self._machine_is_lost(pod):
                self._delete_pod(pod, force=True, prompt=True)
            elif not is_terminating(pod):
                self._delete_pod(pod, force=False, prompt=False)

    def release_workers(self, run: Mapping[str, Any], action: ReleaseWorkers) -> None:
        """No replica any more: KubeRay ends the pods. Those that stay Terminating on lost machines are forced."""
        cluster = self._own(run, action.cluster_id)
        if cluster is None or is_terminating(cluster):
            return
        groups = cluster["spec"].get("workerGroupSpecs") or ()
        if any(group.get("replicas") for group in groups):
            none = [{**group, "replicas": 0, "minReplicas": 0} for group in groups]
            metadata = {"resourceVersion": cluster["metadata"]["resourceVersion"]}
            self._api.patch(RAY_CLUSTER, self._namespace, action.cluster_id, {"metadata": metadata, "spec": {"workerGroupSpecs": none}})
        for pod in self._pods(run, action.cluster_id):
            if not is_head(pod) and is_terminating(pod) and self._machine_is_lost(pod):
                self._delete_pod(pod, force=True, prompt=True)

    def delete_pods(self, run: Mapping[str, Any], pod_names: Iterable[str]) -> None:
        """End these pods of the run now, by the kubelet."""
        for name in sorted(set(pod_names)):
            pod = self._pod(run, name)
            if pod is not None and not is_terminating(pod):
                self._delete_pod(pod, force=False, prompt=True)

    def features(self) -> Features:
        """What the installed KubeRay can do. Raises NotFoundError if there is none. Without the right to look, the oldest is assumed."""
        if self._features is not None and self._clock() - self._features_at_s < FEATURES_FOR_S:
            return self._features
        try:
            found = Features.from_crd(self._api.get(CRD, "", f"{RAY_CLUSTER.plural}.{RAY_CLUSTER.group}"))
        except ForbiddenApiError:
            found = Features()
        except GoneApiError as error:
            raise NotFoundError("the CRD rayclusters.ray.io is not installed: install KubeRay 1.5 to 1.7") from error
        self._features, self._features_at_s = found, self._clock()
        return found

    # Inside

    def _own(self, run: Mapping[str, Any], cluster_id: str) -> Document | None:
        try:
            found = self._api.get(RAY_CLUSTER, self._namespace, cluster_id)
        except GoneApiError:
            return None
        owner = (found["metadata"].get("labels") or {}).get(names.RUN_UID)
        if owner != run["metadata"]["uid"]:
            raise ConflictError(f"RayCluster {cluster_id} belongs to {owner or 'somebody else'}: delete it, or choose another run name")
        return found

    def _pod(self, run: Mapping[str, Any], name: str) -> Document | None:
        try:
            pod = self._api.get(POD, self._namespace, name)
        except GoneApiError:
            return None
        return pod if (pod["metadata"].get("labels") or {}).get(names.RUN_UID) == run["metadata"]["uid"] else None

    def _pods(self, run: Mapping[str, Any], cluster_id: str) -> list[Document]:
        return self._api.list(POD, self._namespace, labels={names.RUN_UID: run["metadata"]["uid"], names.CLUSTER: cluster_id}).items

    def _prepare(self, run: Mapping[str, Any], cluster_id: str) -> None:
        for kind, document in access_objects(run):
            self._api.apply(kind, self._namespace, document)
        ensure_lease(self._api, run)
        token = self.token(run["metadata"]["uid"], cluster_id)
        with suppress(ConflictApiError):  # made by an earlier turn; it can only hold the same token
            self._api.create(SECRET, self._namespace, token_secret(run, cluster_id, token))

    def _write(self, wanted: Document, known: Document | None) -> None:
        digest = hashlib.sha256(json.dumps(wanted, sort_keys=True).encode()).hexdigest()[:16]
        metadata = wanted["metadata"]
        metadata["annotations"][APPLIED] = digest
        if known is not None:
            if (known["metadata"].get("annotations") or {}).get(APPLIED) == digest:
                return
            metadata["uid"] = known["metadata"]["uid"]
        stored = self._api.apply(RAY_CLUSTER, self._namespace, wanted)
        self._dropped[name_of(wanted)] = dropped_fields(wanted["spec"], stored.get("spec") or {}, "spec")

    def _exclude(
        self, run: Mapping[str, Any], cluster: Document, runtime: Runtime, excluded: Iterable[str], avoided: Iterable[str]
    ) -> None:
        match = _STAGE.search(name_of(cluster))
        if match is None:
            return
        group = cluster["spec"]["workerGroupSpecs"][0]
        wanted = ray_cluster(
            run,
            cluster_id=name_of(cluster),
            stage_index=int(match[1]),
            replicas=int(group["replicas"]),
            gpus_per_node=int(group["rayStartParams"].get("num-gpus", "0")),
            runtime=runtime,
            features=self.features(),
            excluded=excluded,
            avoided=avoided,
        )
        self._write(wanted, cluster)

    def _machine_is_lost(self, pod: Document) -> bool:
        """Kubernetes itself says so, now. Raises TemporaryError if it does not answer: force on a guess would be wrong."""
        host = host_of(pod)
        if not host:
            return False
        self._nodes.refresh([host])
        seen = self._nodes.get(host)
        if seen is None or seen.age_s > 20.0:
            raise TemporaryError(f"the Kubernetes node {host} could not be read; pod {name_of(pod)} is left as it is")
        return seen.document is None or is_not_ready(seen.document)

    def _delete_pod(self, pod: Document, *, force: bool, prompt: bool) -> None:
        grace_s = 0 if force else PROMPT_GRACE_S if prompt else None
        self._api.delete(POD, self._namespace, name_of(pod), uid=pod["metadata"]["uid"], grace_s=grace_s)
