"""What a run does about failures: the ladder, the budgets of each class of failure, and back-off."""

from typing import Annotated, Literal

from pydantic import Field

from samite.spec.base import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, SpecModel

FailureClass = Literal["infra", "preemption", "application", "hang", "oom", "numeric", "operator"]


class Backoff(SpecModel):
    """How long a restart waits: initialSeconds x 2^n, at most capSeconds, with full jitter."""

    initial_seconds: NonNegativeFloat = 10.0
    """Wait before the second restart. Unit: seconds. Default 10. The first restart after a lost node has no wait if a spare is ready."""
    cap_seconds: NonNegativeFloat = 600.0
    """Longest wait. Unit: seconds. Default 600."""


class InfraBudget(SpecModel):
    """Restarts after a lost node, GPU, network or storage."""

    limit: NonNegativeInt = 20
    """Restarts within the window. Unit: restarts. Default 20: ten thousand GPUs see 5 to 8 such failures a day."""
    window_seconds: PositiveFloat | None = 86400.0
    """Length of the sliding window. Unit: seconds. Default 86400, one day."""


class PreemptionBudget(SpecModel):
    """Restarts after the machines were taken away. They are not the run's fault, so only their rate is limited."""

    limit: NonNegativeInt = 6
    """Restarts within the window. Unit: restarts. Default 6."""
    window_seconds: PositiveFloat | None = 3600.0
    """Length of the sliding window. Unit: seconds. Default 3600: unlimited in number, at most 6 an hour against flapping."""


class ApplicationBudget(SpecModel):
    """Restarts after an exception or a failing exit code of the training program."""

    limit: NonNegativeInt = 3
    """Restarts. Unit: restarts. Default 3: the same exception comes back. Full again after restart.resetAfterCheckpoints committed checkpoints."""
    window_seconds: PositiveFloat | None = None
    """Length of the sliding window. Unit: seconds. Left out: the whole run."""


class HangBudget(SpecModel):
    """Restarts after a run stood still. The third in a row also changes the grouping of the nodes."""

    limit: NonNegativeInt = 5
    """Restarts within the window. Unit: restarts. Default 5."""
    window_seconds: PositiveFloat | None = 86400.0
    """Length of the sliding window. Unit: seconds. Default 86400, one day."""


class OutOfMemoryBudget(SpecModel):
    """Restarts after device or host memory ran out."""

    limit: NonNegativeInt = 1
    """Restarts. Unit: restarts. Default 1: a second try with the same shape fails again."""
    window_seconds: PositiveFloat | None = None
    """Length of the sliding window. Unit: seconds. Left out: the whole run."""


class NumericBudget(SpecModel):
    """Roll-backs after a non-finite loss or gradient."""

    limit: NonNegativeInt = 2
    """Roll-backs in one stage. Unit: roll-backs. Default 2: more means that the recipe is at fault, not the batch."""
    window_seconds: PositiveFloat | None = None
    """Length of the sliding window. Unit: seconds. Left out: the whole stage."""


class OperatorBudget(SpecModel):
    """Restarts after Samite's own controller failed or was upgraded."""

    limit: NonNegativeInt = 3
    """Restarts. Unit: restarts. Default 3."""
    window_seconds: PositiveFloat | None = None
    """Length of the sliding window. Unit: seconds. Left out: the whole run."""


class RestartBudgets(SpecModel):
    """How many restarts each class of failure may cost. When one is used up, `restart.onExhausted` decides."""

    infra: InfraBudget = InfraBudget.defaults()
    """Lost node, GPU, network or storage."""
    preemption: PreemptionBudget = PreemptionBudget.defaults()
    """Machines taken away by the cluster."""
    application: ApplicationBudget = ApplicationBudget.defaults()
    """Exceptions and exit codes of the training program."""
    hang: HangBudget = HangBudget.defaults()
    """No progress though everything looks alive."""
    oom: OutOfMemoryBudget = OutOfMemoryBudget.defaults()
    """Out of device or host memory."""
    numeric: NumericBudget = NumericBudget.defaults()
    """Non-finite loss or gradient."""
    operator: OperatorBudget = OperatorBudget.defaults()
    """Failures of Samite itself."""


class LevelTimeouts(SpecModel):
    """How long a level of the ladder may take until training moves again; then the next level is tried."""

    l1_seconds: PositiveFloat = 120.0
    """Level 1, the worker group restarts inside its job. Unit: seconds. Default 120, twice the target."""
    l2_seconds: PositiveFloat = 300.0
    """Level 2, a new attempt on the same cluster. Unit: seconds. Default 300."""
    l3_seconds: PositiveFloat = 900.0
    """Level 3, a new cluster. Unit: seconds. Default 900."""


class ExitCodeRule(SpecModel):
    """What an exit code of the training program means. Code 93 always means: do not restart."""

    codes: Annotated[tuple[Annotated[int, Field(ge=1, le=255)], ...], Field(min_length=1, max_length=64, strict=False)]
    """Exit codes, 1 to 255. 137 cannot be used: the kernel produces it when memory runs out."""
    action: Literal["Restart", "Hold", "Fail"]
    """Restart: as failure_class says. Hold: wait for a person. Fail: end the run."""
    failure_class: FailureClass = "application"
    """Whose budget a restart is paid from. Default application."""


class RestartSpec(SpecModel):
    """The answer to failures. Levels: 1 worker group inside its job, 2 new attempt on the same cluster, 3 new cluster, 4 queue again, 5 hold."""

    backoff: Backoff = Backoff.defaults()
    """Waits between restarts."""
    budgets: RestartBudgets = RestartBudgets.defaults()
    """How many restarts each class of failure may cost."""
    start_level: Annotated[int, Field(ge=1, le=5)] = 1
    """Lowest level that is tried. Default 1, the cheapest. The RayJob engine cannot restart in place: 3 or higher there."""
    max_level: Annotated[int, Field(ge=1, le=5)] = 5
    """Highest level that is tried. Default 5: in the end a person is asked."""
    level_timeouts: LevelTimeouts = LevelTimeouts.defaults()
    """How long each level may take."""
    no_progress_cycles: PositiveInt = 3
    """Restarts in a row without a new committed checkpoint after which the run holds. Unit: restarts. Default 3."""
    reset_after_checkpoints: PositiveInt = 3
    """Committed checkpoints after which the application budget is full again. Unit: checkpoints. Default 3."""
    on_exhausted: Literal["Hold", "Fail"] = "Hold"
    """What happens when a budget is used up. Default Hold: a person decides; nothing is lost."""
    exit_codes: Annotated[tuple[ExitCodeRule, ...], Field(max_length=16, strict=False)] = ()
    """Meanings of exit codes of your own training program. Default none."""
