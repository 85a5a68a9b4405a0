"""Pod templates of head and workers, for the restricted pod security standard: not root, no capability, read-only root, RuntimeDefault seccomp.

Pure. A pod is one Ray node for one life (`restartPolicy: Never`): a container that ended is replaced by KubeRay as a new pod, so a pod's name never
means two Ray nodes, and a lost rank can always be traced to the machine it ran on.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from samite.engines.kuberay import names
from samite.engines.kuberay.api import Document
from samite.engines.kuberay.environment import KEYS_FOLDER, container_environment, credentials_secret, credentials_source
from samite.engines.kuberay.runtime import PodSettings, Queue, Runtime

START = 'ulimit -n "$(ulimit -H -n)"; eval "exec $KUBERAY_GEN_RAY_START_CMD"'
"""KubeRay's own command line asks for 65536 open files, which fails wherever the hard limit is lower; this takes what there is."""
GCS_PORT = 6379
AGENT_PORT = 52365
OVERWRITE_COMMAND = "ray.io/overwrite-container-cmd"
_LOST = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


def head_template(run: Mapping[str, Any], cluster_id: str, stage_index: int, runtime: Runtime) -> Document:
    """The head's pod: GCS, dashboard and the driver; no rank. It alone has a service account token, to renew the heartbeat."""
    ports = [
        {"name": "gcs-server", "containerPort": GCS_PORT},
        {"name": "dashboard", "containerPort": names.DASHBOARD_PORT},
        {"name": "client", "containerPort": 10001},
    ]
    container = {
        **_container(run, cluster_id, runtime, runtime.head, head=True),
        "name": names.RAY_CONTAINER_HEAD,
        "resources": _resources(runtime.head, {}),
        "ports": ports,
        # The GCS's port, not the dashboard's health page: a dashboard that hangs must neither end a training that goes on nor hide the GCS from new nodes.
        "readinessProbe": {"tcpSocket": {"port": GCS_PORT}, "periodSeconds": 2, "timeoutSeconds": 5, "failureThreshold": 5},
        "livenessProbe": _liveness(GCS_PORT),
    }
    spec = _pod_spec(run, runtime, runtime.head, container)
    spec["automountServiceAccountToken"] = True
    spec["affinity"] = away_from_workers(runtime.head.affinity, cluster_id)
    return _template(run, cluster_id, stage_index, runtime.head, spec, role="head", queue=runtime.queue)


def worker_template(
    run: Mapping[str, Any],
    cluster_id: str,
    stage_index: int,
    runtime: Runtime,
    *,
    gpus: int,
    excluded: Iterable[str],
    avoided: Iterable[str],
) -> Document:
    """A worker's pod: one Ray node, the ranks of one machine."""
    devices = {runtime.gpu_resource: str(gpus)} if gpus else {}
    probe = {"path": "/api/local_raylet_healthz", "port": AGENT_PORT}
    container = {
        **_container(run, cluster_id, runtime, runtime.worker, head=False),
        "name": names.RAY_CONTAINER_WORKER,
        "resources": _resources(runtime.worker, devices),
        "readinessProbe": {"httpGet": probe, "periodSeconds": 2, "timeoutSeconds": 5, "failureThreshold": 5},
        "livenessProbe": _liveness(AGENT_PORT),
    }
    spec = _pod_spec(run, runtime, runtime.worker, container)
    spec["automountServiceAccountToken"] = False
    affinity = without_nodes(runtime.worker.affinity, excluded, avoided)
    if affinity:
        spec["affinity"] = affinity
    # Workers of one run on one machine would be lost together; a hint only, a small cluster still works.
    spec["topologySpreadConstraints"] = [
        {
            "maxSkew": 1,
            "topologyKey": names.HOSTNAME_LABEL,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": {names.CLUSTER: cluster_id, names.ROLE: "worker"}},
        }
    ]
    return _template(run, cluster_id, stage_index, runtime.worker, spec, role="worker", queue=runtime.queue)


def _liveness(port: int) -> Document:
    """Given so that KubeRay adds none of its own, which ask the dashboard. A connection is enough: Ray's processes end together."""
    return {"tcpSocket": {"port": port}, "initialDelaySeconds": 60, "periodSeconds": 10, "timeoutSeconds": 10, "failureThreshold": 12}


def away_from_workers(affinity: Mapping[str, Any], cluster_id: str) -> Document:
    """`affinity` with the wish for a machine without a worker of this cluster: its loss would cost the driver as well as ranks (L3 instead of L2).

    A wish counts both ways: workers that come later keep away from the head, too. On one machine everything still fits.
    """
    pods = dict(affinity.get("podAntiAffinity") or {})
    term = {"labelSelector": {"matchLabels": {names.CLUSTER: cluster_id, names.ROLE: "worker"}}, "topologyKey": names.HOSTNAME_LABEL}
    wishes = pods.get("preferredDuringSchedulingIgnoredDuringExecution") or ()
    pods["preferredDuringSchedulingIgnoredDuringExecution"] = [*wishes, {"weight": 100, "podAffinityTerm": term}]
    return {**affinity, "podAntiAffinity": pods}


def without_nodes(affinity: Mapping[str, Any], excluded: Iterable[str], avoided: Iterable[str] = ()) -> Document:
    """`affinity` with `excluded` machines left out in every term (terms are alternatives: one without the exclusion would let them back in)."""
    found = {key: value for key, value in affinity.items() if key != "nodeAffinity"}
    node = dict(affinity.get("nodeAffinity") or {})
    if excluded := sorted(set(excluded)):
        required = node.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
        terms = required.get("nodeSelectorTerms") or [{}]
        node["requiredDuringSchedulingIgnoredDuringExecution"] = {
            "nodeSelectorTerms": [
                {**term, "matchExpressions": [*(term.get("matchExpressions") or ()), _not_in(excluded)]} for term in terms
            ]
        }
    if avoided := sorted(set(avoided)):
        wish = {"weight": 100, "preference": {"matchExpressions": [_not_in(avoided)]}}
        node["preferredDuringSchedulingIgnoredDuringExecution"] = [
            *(node.get("preferredDuringSchedulingIgnoredDuringExecution") or ()),
            wish,
        ]
    return {**found, "nodeAffinity": node} if node else found


def _not_in(machines: Iterable[str]) -> Document:
    return {"key": names.HOSTNAME_LABEL, "operator": "NotIn", "values": list(machines)}


def _template(
    run: Mapping[str, Any], cluster_id: str, stage_index: int, settings: PodSettings, spec: Document, *, role: str, queue: Queue | None
) -> Document:
    labels = {
        **settings.labels,
        **names.run_labels(run["metadata"]["name"], run["metadata"]["uid"]),
        names.STAGE: run["spec"]["stages"][stage_index]["name"],
        names.CLUSTER: cluster_id,
        names.ROLE: role,
    }
    annotations = {**settings.annotations, OVERWRITE_COMMAND: "true"}
    if queue is not None and queue.topology != "None" and role == "worker":
        annotations[f"kueue.x-k8s.io/podset-{queue.topology.lower()}-topology"] = queue.topology_level
        if queue.slice_size is not None:
            annotations["kueue.x-k8s.io/podset-slice-required-topology"] = queue.topology_level
            annotations["kueue.x-k8s.io/podset-slice-size"] = str(queue.slice_size)
    return {"metadata": {"labels": labels, "annotations": annotations}, "spec": spec}


def _pod_spec(run: Mapping[str, Any], runtime: Runtime, settings: PodSettings, container: Document) -> Document:
    volumes: list[Document] = [{"name": "samite-home", "emptyDir": {}}, {"name": "tmp", "emptyDir": {}}]
    if settings.shared_memory:
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": settings.shared_memory}})
    if secret := credentials_secret(run):
        volumes.append({"name": "storage-keys", "secret": {"secretName": secret}})
    security: Document = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    if runtime.user is not None:
        security |= {"runAsUser": runtime.user, "runAsGroup": runtime.user, "fsGroup": runtime.user}
    spec: Document = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": settings.grace_s,
        "serviceAccountName": account_of(run),
        "enableServiceLinks": False,
        "securityContext": security,
        "tolerations": [*settings.tolerations, *_lost_node_tolerations(runtime, settings)],
        "containers": [container],
        "volumes": [*volumes, *settings.volumes],
    }
    optional = {
        "imagePullSecrets": [{"name": name} for name in runtime.image_pull_secrets],
        "nodeSelector": dict(settings.node_selector),
        "affinity": dict(settings.affinity),
        "priorityClassName": settings.priority_class,
        "schedulerName": settings.scheduler,
        "runtimeClassName": settings.runtime_class,
        "hostNetwork": settings.host_network,
    }
    spec |= {key: value for key, value in optional.items() if value}
    if settings.host_network:
        spec["dnsPolicy"] = "ClusterFirstWithHostNet"
    return spec


def _container(run: Mapping[str, Any], cluster_id: str, runtime: Runtime, settings: PodSettings, *, head: bool) -> Document:
    mounts: list[Document] = [{"name": "samite-home", "mountPath": names.HOME}, {"name": "tmp", "mountPath": "/tmp"}]  # noqa: S108 - an emptyDir
    if settings.shared_memory:
        mounts.append({"name": "shm", "mountPath": "/dev/shm"})  # noqa: S108 - an emptyDir
    if credentials_secret(run):
        # Beside the variables: these files follow the Secret while the pod runs.
        mounts.append({"name": "storage-keys", "mountPath": KEYS_FOLDER, "readOnly": True})
    capabilities: Document = {"drop": ["ALL"]}
    if settings.capabilities:
        capabilities["add"] = list(settings.capabilities)
    container: Document = {
        "image": runtime.image,
        "imagePullPolicy": runtime.image_pull_policy,
        "command": ["/bin/bash", "-c", "--"],
        "args": [START],
        "workingDir": names.HOME,
        "env": container_environment(run, cluster_id, runtime, settings, head=head),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": capabilities,
        },
        "volumeMounts": [*mounts, *settings.volume_mounts],
    }
    source = credentials_source(run)
    return {**container, "envFrom": source} if source else container


def account_of(run: Mapping[str, Any]) -> str:
    """The pods' service account: the one that the storage trusts if the spec names it, else the run's own."""
    credentials = run["spec"].get("checkpoint", {}).get("credentials") or {}
    return str(credentials.get("serviceAccountName") or names.worker_account(run["metadata"]["name"]))


def _resources(settings: PodSettings, devices: Mapping[str, str]) -> Document:
    more = {**settings.resources, **devices}
    limits = {"memory": settings.memory, **({"cpu": settings.cpu_limit} if settings.cpu_limit else {}), **more}
    return {"requests": {"cpu": settings.cpu, "memory": settings.memory, **more}, "limits": limits}


def _lost_node_tolerations(runtime: Runtime, settings: PodSettings) -> list[Document]:
    known = {item.get("key") for item in settings.tolerations}
    return [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": runtime.lost_node_toleration_s}
        for key in _LOST
        if key not in known
    ]
