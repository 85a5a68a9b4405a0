"""Checkpoint input and output of the ranks: snapshot, upload, commit, restore onto any sharding. The format is docs/checkpoint-format.md."""

from samite_workloads.checkpoint.manager import CheckpointManager
from samite_workloads.checkpoint.results import (
    CheckpointOptions,
    Committed,
    Health,
    Restored,
    RestoreMismatchError,
    SaveFailedError,
    SaveFailure,
)
from samite_workloads.checkpoint.tiers import TieredManager

__all__ = [
    "CheckpointManager",
    "CheckpointOptions",
    "Committed",
    "Health",
    "RestoreMismatchError",
    "Restored",
    "SaveFailedError",
    "SaveFailure",
    "TieredManager",
]
