"""Where checkpoints go, when they are written, how they are checked, and which are kept."""

from typing import Annotated, Literal

from pydantic import Field

from samite.spec.base import LongText, NonNegativeInt, PositiveFloat, PositiveInt, ShortText, SpecModel


class Credentials(SpecModel):
    """Where the storage credentials come from: exactly one source. Never the credentials themselves."""

    secret_name: ShortText | None = None
    """Kubernetes secret with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY. Kubernetes engines only."""
    service_account_name: ShortText | None = None
    """Kubernetes service account that the storage trusts. Kubernetes engines only."""
    profile: ShortText | None = None
    """Profile in the AWS configuration files of this machine. Local engine only. Left out: the usual AWS environment and files are used."""


class CheckpointInterval(SpecModel):
    """How often a checkpoint is written: after so many steps, or so many seconds. Exactly one."""

    steps: PositiveInt | None = None
    """Optimizer steps between checkpoints. Unit: steps. Repeatable, so runs can be compared."""
    seconds: PositiveFloat | None = None
    """Seconds between checkpoints. Unit: seconds. Bounds what a failure can cost."""


class CheckpointKeep(SpecModel):
    """Which checkpoints are kept. The newest verified one and pinned ones are never deleted."""

    last: Annotated[int, Field(ge=1, le=10_000)] = 3
    """Newest verified checkpoints that are kept. Unit: checkpoints. Default 3: two in reserve if the newest turns out damaged."""
    every_steps: PositiveInt | None = None
    """Also keep a checkpoint of each this many steps for ever. Unit: steps. Left out: none."""
    stage_final: bool = True
    """Keep the last checkpoint of every stage. Default true: stages are where people go back to."""


class CheckpointSpec(SpecModel):
    """Checkpoints: where, when, how checked, how long kept."""

    uri: LongText | None = None
    """Folder of the checkpoints: s3://bucket/prefix, file:///absolute/path or another fsspec URI. Left out: the run's own folder on this machine,
    which is right for the Local engine alone."""
    endpoint: LongText | None = None
    """URL of an S3-compatible storage that is not AWS, such as https://minio.example:9000. Left out: AWS."""
    region: ShortText | None = None
    """Region that requests are signed for. Left out: the AWS configuration's, then us-east-1."""
    credentials: Credentials | None = None
    """Where the storage credentials come from. Left out: the usual AWS environment and files."""
    insecure: bool = False
    """True allows an http:// endpoint on another machine, and a certificate that cannot be verified. Default false: keys and data would travel in
    clear."""
    interval: CheckpointInterval = CheckpointInterval.defaults(steps=100)
    """How often a checkpoint is written. Default: each 100 steps."""
    async_: Annotated[bool, Field(alias="async")] = True
    """True: training goes on while a checkpoint is written, from a copy in host memory. Default true. False needs no extra memory."""
    keep: CheckpointKeep = CheckpointKeep.defaults()
    """Which checkpoints are kept."""
    verify: Literal["OnSave", "OnLoad", "Both"] = "Both"
    """When stored bytes are compared with the manifest's hashes. Default Both: damage is found while an older checkpoint still exists, and never
    loaded."""
    stall_seconds: PositiveFloat = 120.0
    """A write without progress for this long counts as a stalled storage. Unit: seconds. Default 120: longer than any retry of one part."""
    deadline_seconds: PositiveFloat = 1800.0
    """Longest time that one checkpoint may take from snapshot to commit. Unit: seconds. Default 1800. Afterwards it is given up and training goes
    on without it."""
    load_from: LongText | None = None
    """Start from another run's checkpoint instead of fresh weights: a URI, or run/stage/step of a run on this machine. The first stage must then
    say in `handover` what it takes over."""


class RetentionSpec(SpecModel):
    """What stays after the end of a run. Checkpoints stay in any case; `samite checkpoints prune` deletes them."""

    ttl_seconds_after_finished: NonNegativeInt | None = None
    """Delete the run's record this long after its end. Unit: seconds. Left out: never."""
    on_success: Literal["DeleteCluster", "DeleteWorkers", "Keep"] = "DeleteCluster"
    """What happens to the cluster after success. Default DeleteCluster: idle workers cost money. DeleteWorkers leaves the head, with Ray's dashboard."""
    on_failure: Literal["DeleteCluster", "DeleteWorkers", "Keep"] = "DeleteCluster"
    """What happens to the cluster after a failure. Default DeleteCluster: logs and the bundle tell the story. Keep it to look around, or with
    DeleteWorkers its head alone."""
    bundle_on_failure: bool = True
    """Collect logs, events and stacks of a failure in one archive. Default true."""
