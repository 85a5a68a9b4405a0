"""TrainingRun, the one document that describes a run: `apiVersion: samite.dev/v1alpha1`, `kind: TrainingRun`.

Kubernetes-shaped, so that the same file serves the Local engine and, later, a cluster. Use `samite.spec.load_run` to read one: it adds the
rules that look at several fields, and messages that name the line. Models here check one field at a time.
"""

from typing import Annotated, Literal

from pydantic import Field

from samite.spec.base import LabelValue, LongText, NonNegativeInt, PositiveFloat, PositiveInt, QualifiedName, ShortText, SpecModel
from samite.spec.cluster_fields import Approval, QueueSpec, RuntimeReference, SloSpec
from samite.spec.data import DataSpec, ModelSpec, OptimizerSpec, RouterSpec
from samite.spec.detection import DetectionSpec
from samite.spec.restart import RestartSpec
from samite.spec.stages import Stage
from samite.spec.storage import CheckpointSpec, RetentionSpec

API_VERSION = "samite.dev/v1alpha1"
MAX_NAME_LENGTH = 36
NAME_PATTERN = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"


class Metadata(SpecModel):
    """Who the run is."""

    name: Annotated[str, Field(min_length=1, max_length=MAX_NAME_LENGTH, pattern=NAME_PATTERN)]
    """Name of the run: small letters, digits and dashes, starts with a letter, at most 36 characters, because `<name>-s<NN>-<hash>` must still be
    a Kubernetes name."""
    namespace: Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")] | None = None
    """Kubernetes namespace. The Local engine has none and ignores it."""
    labels: dict[QualifiedName, LabelValue] = {}
    """Labels to select runs by, as Kubernetes allows them. Values are text: write numbers and true in quotes."""
    annotations: dict[QualifiedName, str] = {}
    """Notes of any kind. Names are those of labels; values are text."""


class KeyReference(SpecModel):
    """One key of a Kubernetes secret or config map."""

    name: ShortText
    """Name of the secret or config map."""
    key: ShortText
    """Key inside it."""


class EnvSource(SpecModel):
    """Where the value of an environment variable comes from: exactly one source."""

    secret_key_ref: KeyReference | None = None
    """A key of a Kubernetes secret. Kubernetes engines only."""
    config_map_key_ref: KeyReference | None = None
    """A key of a Kubernetes config map. Kubernetes engines only."""
    host_env: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    """An environment variable of the shell that submits the run; its value is never written to a file. Local engine only."""


class EnvVar(SpecModel):
    """One environment variable of the ranks. Secrets never stand in a spec: they come through valueFrom."""

    name: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
    """Name of the variable."""
    value: Annotated[str, Field(max_length=32_768)] | None = None
    """Its value, as text: write numbers and true in quotes."""
    value_from: EnvSource | None = None
    """Where its value comes from, instead of `value`."""


class NodesSpec(SpecModel):
    """Worker nodes: spares, and which nodes are left out."""

    spares: Annotated[int, Field(ge=0, le=10_000)] = 0
    """Nodes kept ready to replace a lost one. Unit: nodes. Default 0. Without a spare a lost node costs the time to start one."""
    exclude_blamed: bool = True
    """Do not start on nodes that failed lately. Default true."""
    max_cordon_fraction: Annotated[float, Field(ge=0, le=0.5)] = 0.02
    """Largest share of nodes that may be excluded at a time. Unit: none. Default 0.02: more failing at once means a switch or the power."""
    preflight: Literal["None", "Quick", "Deep"] = "None"
    """Check of each node before training. Default None."""


class TelemetrySpec(SpecModel):
    """Signals. JSON lines are always written to the run's folder."""

    otlp_endpoint: LongText | None = None
    """OTLP endpoint (gRPC) for metrics, events and traces, such as http://localhost:4317. Left out: OTEL_EXPORTER_OTLP_ENDPOINT, then none."""
    per_rank: Literal["None", "Outliers", "All"] = "Outliers"
    """Which ranks export their own series. Default Outliers: ten thousand ranks would be too many."""
    sample_steps: PositiveInt = 10
    """Decay, router and memory signals are taken every this many steps. Unit: steps. Default 10: they cost one extra pass over the gates."""


class SuspendPolicy(SpecModel):
    """How a run is suspended."""

    checkpoint: bool = True
    """Write a checkpoint before the workers are released. Default true."""
    grace_seconds: PositiveFloat = 300.0
    """Longest wait for that checkpoint. Unit: seconds. Default 300."""


class RunSpec(SpecModel):
    """What is to be trained, on what, and what is done about failures."""

    engine: Literal["Local", "RayCluster", "RayJob"] = "Local"
    """Who runs it. Local: a supervisor and Ray nodes as processes of this machine. RayCluster and RayJob: Kubernetes. Cannot change later.
    Default Local."""
    managed_by: ShortText | None = None
    """Who runs it, if it is not Samite's own operator: another controller's name, with a domain. Cannot change later. Kubernetes engines only."""
    suspend: bool = False
    """True: the run is kept but does not train. Default false."""
    suspend_policy: SuspendPolicy = SuspendPolicy.defaults()
    """How a run is suspended."""
    runtime_ref: RuntimeReference | None = None
    """The runtime that an administrator made: images, volumes, network settings. Left out: the one named default, or the operator's built-in one.
    Kubernetes engines only."""
    queue: QueueSpec | None = None
    """Where the run waits for quota. Left out: it starts when its pods fit. Kubernetes engines only."""
    image: Annotated[str, Field(min_length=1, max_length=512, pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:@-]*$")] | None = None
    """Image of head and workers, if the runtime allows it. Left out: the runtime's. Kubernetes engines only."""
    seed: NonNegativeInt = 0
    """Seed of the initial weights, and of the data unless data.shuffleSeed says otherwise. Default 0."""
    model: ModelSpec = ModelSpec.defaults()
    """Which model is trained."""
    data: DataSpec = DataSpec.defaults()
    """The data it sees."""
    stages: Annotated[tuple[Stage, ...], Field(min_length=1, max_length=16, strict=False)]
    """The curriculum: 1 to 16 stages, in order."""
    optimizer: OptimizerSpec = OptimizerSpec.defaults()
    """Optimizer and learning-rate schedule."""
    router: RouterSpec = RouterSpec.defaults()
    """How the load of the experts is kept even."""
    checkpoint: CheckpointSpec = CheckpointSpec.defaults()
    """Checkpoints: where, when, how checked, how long kept."""
    restart: RestartSpec = RestartSpec.defaults()
    """What is done about failures."""
    detection: DetectionSpec = DetectionSpec.defaults()
    """How failures are found."""
    nodes: NodesSpec = NodesSpec.defaults()
    """Spares and excluded nodes."""
    telemetry: TelemetrySpec = TelemetrySpec.defaults()
    """Signals."""
    retention: RetentionSpec = RetentionSpec.defaults()
    """What stays after the end."""
    env: Annotated[tuple[EnvVar, ...], Field(max_length=64, strict=False)] = ()
    """Extra environment variables of the ranks. At most 64."""
    slo: SloSpec | None = None
    """What the run should reach; reported and alerted on. Left out: nothing is promised. Kubernetes engines only."""
    approvals: Annotated[tuple[Approval, ...], Field(max_length=16, strict=False)] = ()
    """Gates that a person has opened, one for each stage. Only grows. Kubernetes engines only; elsewhere: samite stages approve."""


class TrainingRun(SpecModel):
    """A run: one curriculum of training stages, from submission to the last verified checkpoint."""

    api_version: Literal["samite.dev/v1alpha1"]
    """Version of this document's format: samite.dev/v1alpha1."""
    kind: Literal["TrainingRun"]
    """Always TrainingRun."""
    metadata: Metadata
    """Who the run is."""
    spec: RunSpec
    """What is to be trained."""

    @property
    def name(self) -> str:
        """The run's name."""
        return self.metadata.name

    @property
    def total_steps(self) -> int | None:
        """Optimizer steps over all stages; None if a stage's budget is wall time."""
        steps = [stage.num_steps for stage in self.spec.stages]
        return None if None in steps else sum(step for step in steps if step is not None)
