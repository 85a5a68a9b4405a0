"""What a manager is told and what it answers: options, commits, failures, restores."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from samite.checkpoint.retention import KeepPolicy
from samite.checkpoint.store import StoreOptions
from samite.errors import SamiteError, TemporaryError


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointOptions:
    """How a manager behaves; the defaults suit a cluster."""

    store: StoreOptions = field(default_factory=StoreOptions)
    buffers: int = 2
    """Staging buffers, each as large as this rank's part: one uploads while the next snapshot is taken."""
    stall_s: float = 60.0
    """Longest wait for a free buffer; then this save is skipped on all ranks, training goes on and the failure is reported."""
    deadline_s: float = 600.0
    """From the call of `save` to the commit. After it the save has failed, on every rank."""
    load_deadline_s: float = 300.0
    """How long a restore keeps asking a storage that does not answer."""
    share_reads: bool = True
    """In a restore, read what several ranks need once and pass it on; off, each rank reads all that it needs."""
    peer_silence_s: float = 8.0
    """A rank that does not answer for so long during a restore is taken for gone, and all others are told."""
    verify_on_save: bool = False
    """Read every byte back and compare before the commit."""
    keep: KeepPolicy | None = None
    """What rank 0 keeps after each commit; None deletes nothing."""
    object_bytes: int = 1024 * 1024 * 1024
    """Largest data object."""
    threads: int = 4
    """Parallel reads of a restore."""
    check_replicas: bool = True
    """Refuse to commit if copies of a replicated tensor differ between ranks."""
    probe: bool = True
    """Try put, conditional put, list and delete in the real prefix before training starts."""
    poll_s: float = 0.02
    """First pause between looks at what the other ranks published; it grows to `longest_poll_s`."""
    longest_poll_s: float = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Committed:
    """One checkpoint that exists. Times in seconds."""

    checkpoint_id: str
    step: int
    data_bytes: int
    """Of all ranks."""
    seconds: float
    """From `save` until this rank saw the commit."""
    stall_s: float
    """How long `save` held up training on this rank, snapshot included."""
    snapshot_s: float
    upload_s: float
    commit_s: float
    retries: int
    """Requests of this rank that were repeated."""
    verified: bool
    """Whether its bytes were read back before the commit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SaveFailure:
    """One save that did not become a checkpoint. Training need not stop: the previous checkpoint is as it was."""

    step: int
    checkpoint_id: str
    error: SamiteError

    @property
    def reason(self) -> str:
        """For events and status."""
        return str(self.error)

    @property
    def temporary(self) -> bool:
        """Whether the next save may well succeed."""
        return isinstance(self.error, TemporaryError)


@dataclass(frozen=True, kw_only=True, slots=True)
class Restored:
    """What was loaded, the same on every rank (except the bytes this rank read)."""

    checkpoint_id: str
    step: int
    extra: Mapping[str, Any]
    manifest_sha256: str
    world_size: int
    """Of the writer."""
    read_bytes: int
    seconds: float
    walked_past: tuple[tuple[str, str], ...] = ()
    """(checkpoint, reason) of newer ones that were damaged and are quarantined now."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Health:
    """How saving goes right now."""

    pending: int
    """Saves that are neither committed nor failed."""
    oldest_pending_s: float
    retries: int
    """Requests of this rank for the oldest pending save that were repeated."""
    last_error: str
    """The newest error of storage, empty after a commit."""


class SaveFailedError(TemporaryError):
    """`wait` found saves that did not become checkpoints."""


class DeadlineExceededError(TemporaryError):
    """A save was not committed in time."""


class SaveSkippedError(TemporaryError):
    """All staging buffers stayed busy: storage is slower than the interval between saves."""


class RestoreMismatchError(SamiteError):
    """The checkpoint does not fit the model; the message lists every difference, and nothing was overwritten."""
