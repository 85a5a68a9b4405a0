"""How failures are found: heartbeats, hangs, stragglers, numbers that go wrong, and the decay signals."""

from typing import Annotated, Literal

from pydantic import Field

from samite.spec.base import PositiveFloat, PositiveInt, SpecModel


class HeartbeatSpec(SpecModel):
    """The sign of progress that each rank writes."""

    period_seconds: Annotated[float, Field(gt=0, le=60)] = 2.0
    """Shortest time between two heartbeats of a rank, and how often the engine reads them. Unit: seconds. Default 2: a lost rank shows within 5 s."""


class HangSpec(SpecModel):
    """When standing still counts as a hang: a heartbeat older than max(floorSeconds, factor x median step time of this stage)."""

    mode: Literal["Observe", "Restart"] = "Observe"
    """Observe: report and collect stacks. Restart: also restart, on two independent facts. Default Observe: look first, then trust."""
    floor_seconds: PositiveFloat = 120.0
    """A hang is never shorter than this. Unit: seconds. Default 120."""
    factor: Annotated[float, Field(ge=1.5, le=1000)] = 5.0
    """Multiple of the median step time that counts as a hang. Unit: none. Default 5."""
    first_step_seconds: PositiveFloat = 900.0
    """Limit for the first step of an attempt, which compiles kernels. Unit: seconds. Default 900."""
    save_seconds: PositiveFloat = 900.0
    """Limit while a checkpoint is written in the foreground. Unit: seconds. Default 900."""
    load_seconds: PositiveFloat = 900.0
    """Limit while a checkpoint is loaded. Unit: seconds. Default 900."""
    eval_seconds: PositiveFloat = 900.0
    """Limit during an evaluation. Unit: seconds. Default 900."""
    learning_windows: PositiveInt = 3
    """Windows of clean steps before the learnt limit is trusted; until then only firstStepSeconds counts. Unit: windows. Default 3."""


class StragglerSpec(SpecModel):
    """When one rank is slower than the others."""

    mode: Literal["Report", "Ignore"] = "Report"
    """Report: an event names the rank. Default Report."""
    factor: Annotated[float, Field(gt=1, le=100)] = 1.5
    """Multiple of the median compute time that counts as slow. Unit: none. Default 1.5."""
    steps: PositiveInt = 20
    """Steps in a row that must be slow. Unit: steps. Default 20."""


OnNonfinite = Literal["RollBack", "Hold", "Fail"]
OnAlarm = Literal["Observe", "Pause"]
OnSpike = Literal["Observe", "Pause", "RollBack"]


class NumericSpec(SpecModel):
    """When the numbers of the training go wrong."""

    on_nonfinite: OnNonfinite = "RollBack"
    """After a non-finite loss or gradient. RollBack: go back to a verified checkpoint and leave out the rows of the bad step. Hold: wait
    for a person. Fail: end the run. Default RollBack."""
    on_spike: OnSpike = "Observe"
    """When loss or gradient norm leave their band. Observe: the event alone. Pause: hold at the next checkpoint. RollBack: go back to a checkpoint
    from before the spike and leave out the rows of its steps; each counts against restart.budgets.numeric. Default Observe: most spikes pass."""
    roll_back_steps: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """How many steps before the first bad one a roll-back's checkpoint must be at least; the oldest one left is taken where none is that old.
    Unit: steps. Default 0: the newest checkpoint before the first bad step."""
    on_collapse: OnAlarm = "Observe"
    """When the router of a layer sends most tokens to few experts. Observe: the event alone. Pause: hold at the next checkpoint. Default Observe."""
    grad_norm_mads: PositiveFloat = 6.0
    """A gradient norm this many median absolute deviations above the median for 3 sampled steps raises an event. Unit: deviations. Default 6."""


class StageNumeric(SpecModel):
    """What one stage does differently when the numbers go wrong. A field that is left out is that of detection.numeric."""

    on_nonfinite: OnNonfinite | None = None
    """As detection.numeric.onNonfinite, for this stage. Default: as there."""
    on_spike: OnSpike | None = None
    """As detection.numeric.onSpike, for this stage: Pause where a spike is no accident any more, such as an anneal. Default: as there."""
    roll_back_steps: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    """As detection.numeric.rollBackSteps, for this stage. Unit: steps. Default: as there."""
    on_collapse: OnAlarm | None = None
    """As detection.numeric.onCollapse, for this stage. Default: as there."""


class DecaySpec(SpecModel):
    """When the decay of the linear attention loses products that matter. Correct flushes to zero never count."""

    underflow_limit: Annotated[int, Field(ge=0, le=2**53)] = 0
    """Lossy flushes in one sample above which samite.decay.underflow fires. Unit: products. Default 0: the bounded gate allows none, so each one
    is a fault."""
    action: Literal["Pause", "Observe"] = "Pause"
    """Pause: hold at the next checkpoint, because a restart cannot repair it. Observe: the event alone. Default Pause."""


class DetectionSpec(SpecModel):
    """How failures are found. Nothing is killed on one fact alone, and a missing answer is not a fact."""

    heartbeat: HeartbeatSpec = HeartbeatSpec.defaults()
    """The sign of progress of each rank."""
    hang: HangSpec = HangSpec.defaults()
    """When standing still counts as a hang."""
    straggler: StragglerSpec = StragglerSpec.defaults()
    """When one rank is slower than the others."""
    numeric: NumericSpec = NumericSpec.defaults()
    """When the numbers go wrong."""
    decay: DecaySpec = DecaySpec.defaults()
    """When the decay of the linear attention loses products."""
    provision_seconds: PositiveFloat = 900.0
    """Longest time until all nodes are ready. Unit: seconds. Default 900; the clock starts at admission."""
    start_seconds: PositiveFloat = 600.0
    """Longest time from submission to the first heartbeat. Unit: seconds. Default 600: long contexts compile slowly."""
