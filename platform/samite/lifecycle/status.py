"""What a run tells the world: the status that `decide` returns and engines publish (file, Kubernetes status, CLI).

Derived from plan, memory and observation; never read back by a decision.
"""

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from samite.lifecycle.codec import to_document
from samite.lifecycle.ledger import Lost
from samite.lifecycle.memory import FailureRecord, RecoveryRecord
from samite.lifecycle.phases import Phase
from samite.telemetry.redaction import redact


class ConditionStatus(StrEnum):
    """Kubernetes' three values. Unknown: the source of evidence is silent."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, kw_only=True, slots=True)
class Condition:
    """One condition; `message` carries the number that decided."""

    type: str
    status: ConditionStatus
    reason: str
    message: str = ""


CONDITIONS = (
    "Validated",
    "Admitted",
    "CapacityReady",
    "Progressing",
    "CheckpointHealthy",
    "Degraded",
    "Hung",
    "Restarting",
    "GateBlocked",
    "Suspended",
    "Quarantining",
    "Succeeded",
    "Failed",
)
"""Every status holds exactly these, in this order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """How far training is. Rates and ETA are those of the current attempt alone, whatever came before it."""

    step: int = 0
    tokens: int = 0
    stage_step: int = 0
    percent: float | None = None
    """Of the whole run; None if a stage's budget is wall time and cannot be compared."""
    stage_percent: float | None = None
    tokens_per_s: float | None = None
    step_s: float | None = None
    """Seconds per step over this attempt."""
    eta_s: float | None = None
    """To the end of the run at this attempt's rate; None until the attempt has finished two steps."""
    updated_age_s: float | None = None
    """Age of the newest heartbeat."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ettr:
    """Effective training time: productive over wall time, suspended time left out of both."""

    percent: float | None
    productive_s: float
    wall_s: float
    suspended_s: float
    lost: Lost


@dataclass(frozen=True, kw_only=True, slots=True)
class Status:
    """One screen's worth of truth."""

    phase: Phase
    reason: str
    message: str
    conditions: tuple[Condition, ...]
    current_stage: str
    stage_index: int
    started_stages: tuple[str, ...]
    attempt: int
    submission_id: str
    cluster_id: str
    progress: Progress
    ettr: Ettr
    restarts: dict[str, int] = field(hash=False)
    """By class of failure, over the whole run."""
    budgets_left: dict[str, int] = field(hash=False)
    last_failure: FailureRecord | None = None
    next_retry_at_s: float | None = None
    """On the clock of `now_s`; None when no restart waits."""
    recoveries: tuple[RecoveryRecord, ...] = ()
    excluded_nodes: tuple[str, ...] = ()
    nodes_ready: int | None = None
    last_checkpoint: str = ""
    last_checkpoint_step: int | None = None
    last_save_s: float | None = None
    """Seconds from the call to the commit of the newest save."""
    last_save_stall_s: float | None = None
    """Seconds of that in which training waited."""
    recomputed_steps: int = 0
    skipped_data_windows: tuple[tuple[int, int], ...] = ()
    """Half-open ranges of global data rows that are left out: after a roll-back, or because a person said so."""

    def condition(self, name: str) -> Condition:
        """The condition of type `name`."""
        return next(item for item in self.conditions if item.type == name)

    def to_document(self) -> dict[str, Any]:
        """Strict JSON, camelCase keys: null for a number that JSON does not have (whatever a heartbeat held), no credentials in the messages."""
        document: dict[str, Any] = _shown(to_document(self, camel=True))
        return document


def _shown(value: Any) -> Any:
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {key: _shown(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_shown(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
