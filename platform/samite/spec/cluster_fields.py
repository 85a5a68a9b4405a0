"""The fields of a run that only Kubernetes can honour: which runtime, which queue, which image, who owns it, what is promised and approved.

The Local engine refuses them by name (samite.spec.support), so that nothing that was asked for is silently ignored.
"""

from typing import Annotated, Literal

from pydantic import Field

from samite.spec.base import LabelValue, LongText, PositiveFloat, QualifiedName, ShortText, SpecModel

ObjectName = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
"""Name of an object in Kubernetes."""

Quantity = Annotated[str, Field(min_length=1, max_length=32, pattern=r"^[0-9]+([.][0-9]+)?(m|[kKMGTPE]i?)?$")]
"""An amount as Kubernetes writes it, as text: 500m, 4, 16Gi."""


class Toleration(SpecModel):
    """A taint of nodes that the pods of the run accept."""

    key: Annotated[str, Field(max_length=317)] | None = None
    """Key of the taint. Left out, with operator Exists: every taint."""
    operator: Literal["Exists", "Equal"] = "Equal"
    """Equal: the taint's value must be `value`. Exists: any value. Default Equal."""
    value: Annotated[str, Field(max_length=63)] | None = None
    """Value of the taint."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Effect of the taint. Default: left out, every effect."""
    toleration_seconds: Annotated[int, Field(ge=0, le=86_400)] | None = None
    """How long a pod stays on a node that got the taint. Unit: seconds. Left out: for ever. Only for NoExecute."""


class RuntimeOverrides(SpecModel):
    """What this run changes in its runtime. Only what the runtime's own allow-list names may be changed."""

    cpu: Quantity | None = None
    """CPU of each worker pod, as text: "8" or 500m."""
    memory: Quantity | None = None
    """Memory of each worker pod, as text: 64Gi."""
    node_selector: dict[QualifiedName, LabelValue] = {}
    """Labels that nodes must have, beside the runtime's."""
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=16, strict=False)] = ()
    """Taints that the worker pods accept, beside the runtime's."""


class RuntimeReference(SpecModel):
    """The runtime that an administrator made for runs like this one."""

    kind: Literal["ClusterTrainingRuntime", "TrainingRuntime"] = "ClusterTrainingRuntime"
    """ClusterTrainingRuntime: for the whole cluster. TrainingRuntime: of the run's own namespace. Default ClusterTrainingRuntime."""
    name: ObjectName
    """Name of the runtime. `kubectl get ctruntime` lists them."""
    overrides: RuntimeOverrides = RuntimeOverrides.defaults()
    """What this run changes in it, as far as the runtime allows."""


class QueueSpec(SpecModel):
    """Quota: how the run waits for its nodes, with Kueue."""

    name: ObjectName
    """Name of the LocalQueue in the run's namespace."""
    priority_class_name: ObjectName | None = None
    """WorkloadPriorityClass of the run. Left out: Kueue's default."""
    topology: Literal["None", "Preferred", "Required"] = "None"
    """Whether the workers must be near each other. Preferred: as near as can be. Required: in one topology domain, or wait. Default None."""
    topology_level: Annotated[str, Field(min_length=1, max_length=317)] | None = None
    """Node label that names a domain of the topology. Left out: the runtime's, then kubernetes.io/hostname."""
    slice_size: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Workers that must share a domain of the topology. Unit: nodes. Left out: all of them."""


class SloSpec(SpecModel):
    """What the run should reach. Only reported and alerted on: nothing is killed for it."""

    ettr_percent: Annotated[float, Field(gt=0, le=100)] | None = None
    """Share of the wall time that trains, at least. Unit: percent. Left out: no alert."""
    max_detect_seconds: PositiveFloat | None = None
    """Longest time from a fault to its detection. Unit: seconds. Left out: no alert."""
    max_restart_seconds: PositiveFloat | None = None
    """Longest time from the detection to the next step. Unit: seconds. Left out: no alert."""


class Approval(SpecModel):
    """A person's word that a stage with a manual gate may end. Approvals can be added, never changed or removed."""

    stage: Annotated[str, Field(min_length=1, max_length=40)]
    """Name of the stage whose gate opens."""
    by: ShortText
    """Who approves."""
    reason: LongText | None = None
    """Why."""
