"""Phases of a run, and which phase may follow which.

    Pending -> Validating -> Queued -> Provisioning -> Starting -> Running <-> Recovering
                               ^                           ^          |
                               |                           |          v
                           Suspended                   HandingOver <- Gating -> Succeeded
                               ^
                           Suspending <- any active phase        Held, Failed, Cancelling -> Cancelled

The table is the contract: `decide` asserts each change against it, and the tests walk it.
"""

from enum import IntEnum, StrEnum


class Phase(StrEnum):
    """Where a run is."""

    PENDING = "Pending"
    VALIDATING = "Validating"
    QUEUED = "Queued"
    PROVISIONING = "Provisioning"
    STARTING = "Starting"
    RUNNING = "Running"
    RECOVERING = "Recovering"
    GATING = "Gating"
    HANDING_OVER = "HandingOver"
    SUCCEEDED = "Succeeded"
    SUSPENDING = "Suspending"
    SUSPENDED = "Suspended"
    HELD = "Held"
    FAILED = "Failed"
    CANCELLING = "Cancelling"
    CANCELLED = "Cancelled"


class Level(IntEnum):
    """Rungs of the restart ladder. L0 (inside the process) is not used by these engines."""

    L1_WORKER_GROUP = 1
    """Ray Train restarts the worker group inside the same submission."""
    L2_ATTEMPT = 2
    """The next attempt on the same cluster, bad nodes replaced."""
    L3_CLUSTER = 3
    """A new cluster."""
    L4_REQUEUE = 4
    """Quota given back, queued again."""
    L5_HOLD = 5
    """A person is asked."""


class FailureClass(StrEnum):
    """Whose fault a failure is; each class has a budget."""

    INFRA = "infra"
    PREEMPTION = "preemption"
    APPLICATION = "application"
    HANG = "hang"
    OOM = "oom"
    NUMERIC = "numeric"
    OPERATOR = "operator"
    USER = "user"


TERMINAL = frozenset({Phase.SUCCEEDED, Phase.FAILED, Phase.CANCELLED})
"""Nothing leaves these."""

TRAINING = frozenset({Phase.STARTING, Phase.RUNNING, Phase.RECOVERING})
"""Phases in which a submission may be alive."""

ACTIVE = frozenset(
    {
        Phase.PENDING,
        Phase.VALIDATING,
        Phase.QUEUED,
        Phase.PROVISIONING,
        Phase.STARTING,
        Phase.RUNNING,
        Phase.RECOVERING,
        Phase.GATING,
        Phase.HANDING_OVER,
    }
)
"""Phases that suspend and hold can interrupt."""

_FORWARD: dict[Phase, frozenset[Phase]] = {
    Phase.PENDING: frozenset({Phase.VALIDATING}),
    Phase.VALIDATING: frozenset({Phase.QUEUED}),
    Phase.QUEUED: frozenset({Phase.PROVISIONING, Phase.GATING}),
    Phase.PROVISIONING: frozenset({Phase.STARTING, Phase.RECOVERING, Phase.QUEUED}),
    Phase.STARTING: frozenset({Phase.RUNNING, Phase.RECOVERING, Phase.GATING}),
    Phase.RUNNING: frozenset({Phase.RECOVERING, Phase.GATING}),
    Phase.RECOVERING: frozenset({Phase.RUNNING, Phase.GATING, Phase.QUEUED}),
    Phase.GATING: frozenset({Phase.HANDING_OVER, Phase.SUCCEEDED, Phase.RECOVERING}),
    Phase.HANDING_OVER: frozenset({Phase.PROVISIONING, Phase.STARTING, Phase.RECOVERING}),
    Phase.SUSPENDING: frozenset({Phase.SUSPENDED}),
    Phase.SUSPENDED: frozenset({Phase.QUEUED, Phase.VALIDATING}),
    Phase.HELD: frozenset({Phase.QUEUED, Phase.SUSPENDED}),
    Phase.CANCELLING: frozenset({Phase.CANCELLED}),
}


def followers(phase: Phase) -> frozenset[Phase]:
    """The phases that may follow `phase`, itself excluded. Empty for terminal phases."""
    if phase in TERMINAL:
        return frozenset()
    after = _FORWARD[phase]
    if phase in ACTIVE:
        after |= {Phase.SUSPENDING, Phase.HELD, Phase.FAILED}
    if phase is not Phase.CANCELLING:
        after |= {Phase.CANCELLING}
    return after
