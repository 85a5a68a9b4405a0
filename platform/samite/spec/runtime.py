"""TrainingRuntime and ClusterTrainingRuntime: what an administrator decides about the pods of training runs.

Images, resources, volumes, network settings and node selection stand here once, not in every run; a run names a runtime and changes what the
runtime's allow-list permits (samite.spec.runtime_resolution). Parts that Kubernetes itself defines and that differ from site to site (affinity,
volumes, security contexts) are handed through as they are; the API server checks them when pods are made.
"""

from typing import Annotated, Any, Literal

from pydantic import Field

from samite.spec.base import MAX_INTEGER, LabelValue, LongText, QualifiedName, ShortText, SpecModel
from samite.spec.cluster_fields import ObjectName, Quantity, QueueSpec, Toleration
from samite.spec.run import EnvVar, KeyReference, Metadata

Override = Literal["Image", "Env", "CPU", "Memory", "NodeSelector", "Tolerations", "Queue"]
Opaque = dict[str, Any]
"""A part that Kubernetes defines, handed through as it is."""


class HeadFaultTolerance(SpecModel):
    """Where Ray's head keeps its state, so that a lost head does not lose the cluster."""

    redis_address: LongText
    """Address of a Redis, such as redis:6379."""
    password_secret_key_ref: KeyReference | None = None
    """Key of a secret in the run's namespace with the password. Left out: none."""
    storage_namespace: ShortText | None = None
    """Prefix of the keys in Redis. Left out: the uid of the cluster."""


class PodPieces(SpecModel):
    """What the pods of one role look like, beside what the operator itself decides."""

    cpu: Quantity | None = None
    """CPU that is requested, as text: "8" or 500m. Left out: 1."""
    cpu_limit: Quantity | None = None
    """Most CPU that is given, as text. Left out: no limit, so that a busy rank is not throttled."""
    memory: Quantity | None = None
    """Memory that is requested, and the limit, as text: 64Gi. Left out: 4Gi."""
    shared_memory: Quantity | None = None
    """Size of /dev/shm, as text: 16Gi. It counts as memory. Left out: the requested memory."""
    resources: Annotated[dict[QualifiedName, Quantity], Field(max_length=16)] = {}
    """Other resources by name, as text: rdma/hca: "8", ephemeral-storage: 100Gi. GPUs come from the stage's gpusPerWorker."""
    labels: Annotated[dict[QualifiedName, LabelValue], Field(max_length=64)] = {}
    """Labels of the pods. Names under samite.dev, ray.io and kueue.x-k8s.io are the operator's."""
    annotations: Annotated[dict[QualifiedName, Annotated[str, Field(max_length=4096)]], Field(max_length=64)] = {}
    """Annotations of the pods, such as those of a network."""
    node_selector: Annotated[dict[QualifiedName, LabelValue], Field(max_length=64)] = {}
    """Labels that nodes must have."""
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=32, strict=False)] = ()
    """Taints that the pods accept. Those for lost nodes are the operator's."""
    affinity: Opaque = {}
    """Affinity as in a pod. The operator adds that excluded nodes are avoided."""
    priority_class_name: ObjectName | None = None
    """Priority of the pods. Left out: the cluster's default."""
    runtime_class_name: ObjectName | None = None
    """Container runtime, such as nvidia. Left out: the node's default."""
    scheduler_name: ObjectName | None = None
    """Scheduler of the pods. Left out: the cluster's default."""
    host_network: bool = False
    """True: the pods use the node's network, as some RDMA set-ups need. Default false."""
    capabilities: Annotated[tuple[Annotated[str, Field(min_length=1, max_length=63)], ...], Field(max_length=16, strict=False)] = ()
    """Linux capabilities that RDMA needs, such as IPC_LOCK. The restricted pod security standard allows none. Default none."""
    termination_grace_period_seconds: Annotated[int, Field(ge=0, le=3600)] | None = None
    """How long a pod may take to end. Unit: seconds. Left out: 30."""
    volumes: Annotated[tuple[Opaque, ...], Field(max_length=32, strict=False)] = ()
    """Volumes as in a pod. Names that begin with samite- are the operator's."""
    volume_mounts: Annotated[tuple[Opaque, ...], Field(max_length=32, strict=False)] = ()
    """Where the Ray container sees them, as in a container."""
    env: Annotated[tuple[EnvVar, ...], Field(max_length=64, strict=False)] = ()
    """Environment of the Ray container, such as NCCL's network settings. A run's own variables win over these."""


class RuntimeSpec(SpecModel):
    """What every run with this runtime gets."""

    description: Annotated[str, Field(max_length=1024)] = ""
    """What it is for, for people who choose one."""
    image: Annotated[str, Field(min_length=1, max_length=512, pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:@-]*$")] | None = None
    """Image of head and workers. Left out: the operator's worker image."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    """When the image is pulled. Default IfNotPresent: pin images by digest, and a restart does not wait for the registry."""
    image_pull_secrets: Annotated[tuple[ObjectName, ...], Field(max_length=8, strict=False)] = ()
    """Names of secrets in the run's namespace that open the registry."""
    ray_version: Annotated[str, Field(min_length=1, max_length=32)] | None = None
    """Version of Ray in the image. Left out: the operator's."""
    python: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    """Python in the image that has the worker package. Left out: python."""
    run_as_user: Annotated[int, Field(ge=1, le=2**31)] | None = None
    """Numeric user and group of the containers. Left out: 1000."""
    gpu_resource: Annotated[str, Field(min_length=1, max_length=253)] = "nvidia.com/gpu"
    """Name of the resource that counts GPUs. Default nvidia.com/gpu."""
    lost_node_toleration_seconds: Annotated[int, Field(ge=0, le=3600)] | None = None
    """How long pods stay on a node that does not answer before they are marked for deletion. Unit: seconds. Left out: 30; Kubernetes' own is 300."""
    object_store_bytes: Annotated[int, Field(ge=80_000_000, le=MAX_INTEGER)] | None = None
    """Ray's object store in each pod. Unit: bytes. Left out: 80000000, the least: the trainer keeps nothing there."""
    head: PodPieces = PodPieces.defaults()
    """The head: one pod without ranks."""
    worker: PodPieces = PodPieces.defaults()
    """The workers: one pod for each node of a stage."""
    queue: QueueSpec | None = None
    """Where runs wait that name no queue. Left out: they start when their pods fit."""
    head_fault_tolerance: HeadFaultTolerance | None = None
    """Where the head keeps its state. Left out: a lost head means a new cluster."""
    allow_overrides: Annotated[tuple[Override, ...], Field(max_length=8, strict=False)] = ("Env", "Queue")
    """What runs may change: Image, Env, CPU, Memory, NodeSelector, Tolerations, Queue. Default [Env, Queue]."""


class _Runtime(SpecModel):
    api_version: Literal["samite.dev/v1alpha1"]
    """Version of this document's format: samite.dev/v1alpha1."""
    metadata: Metadata
    """Name and namespace."""
    spec: RuntimeSpec
    """What every run with this runtime gets."""


class TrainingRuntime(_Runtime):
    """A runtime for the runs of one namespace, made by its administrator."""

    kind: Literal["TrainingRuntime"]
    """Always TrainingRuntime."""


class ClusterTrainingRuntime(_Runtime):
    """A runtime for every namespace, made by the administrator of the cluster."""

    kind: Literal["ClusterTrainingRuntime"]
    """Always ClusterTrainingRuntime."""
