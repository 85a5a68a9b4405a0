"""What a run's pods are made of: images, resources, volumes, security, queue. Resolved and pinned by the operator from a TrainingRuntime.

Plain values, so that the builders are pure; `Runtime.from_document` reads the spec of a TrainingRuntime object (camelCase).
Pod parts (tolerations, volumes, affinity, ...) are kept as Kubernetes writes them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from samite.engines.kuberay.api import Document

DEFAULT_IMAGE = "ghcr.io/samite-dev/worker:0.1.0"
DEFAULT_RAY_VERSION = "2.60.0"


@dataclass(frozen=True, kw_only=True, slots=True)
class PodSettings:
    """Settings of the head's or the workers' pods."""

    cpu: str = "1"
    """Requested CPUs, as Kubernetes writes them."""
    memory: str = "4Gi"
    """Requested memory, and its limit."""
    cpu_limit: str = ""
    """Empty: none, so that a busy rank is not throttled."""
    resources: Mapping[str, str] = field(default_factory=dict)
    """Further resources, as request and limit: `rdma/hca: "1"`. GPUs are added by the stage."""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Document, ...] = ()
    affinity: Mapping[str, Any] = field(default_factory=dict)
    volumes: tuple[Document, ...] = ()
    volume_mounts: tuple[Document, ...] = ()
    env: tuple[Document, ...] = ()
    """Kubernetes EnvVar documents: NCCL and network settings of the site."""
    priority_class: str = ""
    scheduler: str = ""
    runtime_class: str = ""
    host_network: bool = False
    shared_memory: str = ""
    """Size of /dev/shm; empty: KubeRay's choice, the requested memory."""
    grace_s: int = 30
    """terminationGracePeriodSeconds."""
    capabilities: tuple[str, ...] = ()
    """Capabilities that RDMA needs (IPC_LOCK). Not allowed by the restricted pod security standard."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Queue:
    """Kueue: the pods wait for quota as a whole."""

    name: str
    """LocalQueue in the run's namespace."""
    priority_class: str = ""
    topology: str = "None"
    """Required, Preferred or None."""
    topology_level: str = "kubernetes.io/hostname"
    """Node label that names a topology domain."""
    slice_size: int | None = None
    """Workers of one slice, for slice topology."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadFaultTolerance:
    """An outside Redis that keeps the head's state, so that a lost head is restarted instead of the whole cluster."""

    redis_address: str
    """`host:port`."""
    password_secret: str = ""
    password_key: str = "password"  # noqa: S105 - the name of a key
    storage_namespace: str = ""
    """Empty: the cluster's uid, by KubeRay."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Runtime:
    """Everything about the pods that is the administrator's business."""

    name: str = ""
    generation: int = 0
    image: str = DEFAULT_IMAGE
    image_pull_policy: str = "IfNotPresent"
    image_pull_secrets: tuple[str, ...] = ()
    ray_version: str = DEFAULT_RAY_VERSION
    python: str = "python"
    """The interpreter that has the worker package, in the image."""
    head: PodSettings = PodSettings(cpu="1", memory="4Gi")
    worker: PodSettings = PodSettings()
    gpu_resource: str = "nvidia.com/gpu"
    user: int | None = 1000
    """Numeric user and group of the containers; None: the image's, which must then be numeric and not root."""
    lost_node_toleration_s: int = 30
    """How long pods tolerate a node that is not ready before Kubernetes marks them for deletion."""
    queue: Queue | None = None
    head_fault_tolerance: HeadFaultTolerance | None = None
    object_store_bytes: int = 80_000_000
    """Ray's object store: the trainer keeps nothing there."""

    @classmethod
    def from_document(cls, document: Mapping[str, Any], *, name: str = "", generation: int = 0) -> Self:
        """The runtime of a TrainingRuntime's `spec`. Unknown keys are the CRD's to refuse; absent ones take the defaults here."""
        given: dict[str, Any] = {"name": name, "generation": generation}
        for key, target in _PLAIN.items():
            if document.get(key) is not None:
                given[target] = document[key]
        if document.get("imagePullSecrets"):
            given["image_pull_secrets"] = tuple(
                item["name"] if isinstance(item, Mapping) else str(item) for item in document["imagePullSecrets"]
            )
        for group in ("head", "worker"):
            if document.get(group):
                given[group] = pod_settings(document[group], getattr(_DEFAULT, group))
        if document.get("queue"):
            given["queue"] = queue_of(document["queue"])
        redis = document.get("headFaultTolerance")
        if redis:
            secret = redis.get("passwordSecretKeyRef") or {}
            given["head_fault_tolerance"] = HeadFaultTolerance(
                redis_address=redis["redisAddress"],
                password_secret=secret.get("name", ""),
                password_key=secret.get("key", "password"),
                storage_namespace=redis.get("storageNamespace", ""),
            )
        return cls(**given)


_PLAIN = {
    "image": "image",
    "imagePullPolicy": "image_pull_policy",
    "rayVersion": "ray_version",
    "python": "python",
    "gpuResource": "gpu_resource",
    "runAsUser": "user",
    "lostNodeTolerationSeconds": "lost_node_toleration_s",
    "objectStoreBytes": "object_store_bytes",
}
_POD_PLAIN = {
    "cpu": "cpu",
    "memory": "memory",
    "cpuLimit": "cpu_limit",
    "resources": "resources",
    "labels": "labels",
    "annotations": "annotations",
    "nodeSelector": "node_selector",
    "affinity": "affinity",
    "priorityClassName": "priority_class",
    "schedulerName": "scheduler",
    "runtimeClassName": "runtime_class",
    "hostNetwork": "host_network",
    "sharedMemory": "shared_memory",
    "terminationGracePeriodSeconds": "grace_s",
}
_POD_LISTS = {
    "tolerations": "tolerations",
    "volumes": "volumes",
    "volumeMounts": "volume_mounts",
    "env": "env",
    "capabilities": "capabilities",
}


def pod_settings(document: Mapping[str, Any], base: PodSettings) -> PodSettings:
    """Settings of one group of pods over those of `base`."""
    given = {target: document[key] for key, target in _POD_PLAIN.items() if document.get(key) is not None}
    given |= {target: tuple(document[key]) for key, target in _POD_LISTS.items() if document.get(key) is not None}
    kept = {name: getattr(base, name) for name in PodSettings.__dataclass_fields__}
    return PodSettings(**(kept | given))


def queue_of(document: Mapping[str, Any]) -> Queue:
    """The queue of `spec.queue` of a run or of a runtime."""
    return Queue(
        name=document["name"],
        priority_class=document.get("priorityClassName", ""),
        topology=document.get("topology", "None"),
        topology_level=document.get("topologyLevel", "kubernetes.io/hostname"),
        slice_size=document.get("sliceSize"),
    )


_DEFAULT = Runtime()
