"""Going back after bad numbers: which data rows are left out, and which checkpoints are not resumed from.

A window of rows is left out for good, so rows that poison the training are met once; a failure of rows that were left out has another cause.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from samite.lifecycle.observed import CheckpointObserved


@dataclass(frozen=True, kw_only=True, slots=True)
class RollBack:
    """Checkpoints that hold what bad numbers did to the weights are withdrawn: those of this stage, after `good_step`, by these attempts."""

    stage_index: int
    good_step: int
    """Last step before the numbers went wrong."""
    wanted_step: int
    """The checkpoint to resume from is no newer than this, where the storage has such a one: `good_step` less the stage's rollBackSteps."""
    attempts_up_to: int
    reason: str


def covered(window: tuple[int, int], skipped: Sequence[tuple[int, int]]) -> bool:
    """Whether every row of the half-open `window` lies in a skipped one: those rows were left out, and the numbers went wrong all the same."""
    row = window[0]
    for first, end in sorted(skipped):
        row = max(row, end) if first <= row else row
    return row >= window[1]


def last_step_to_keep(back: RollBack, usable: Sequence[CheckpointObserved]) -> int | None:
    """Checkpoints of later steps are withdrawn. None: every checkpoint that is left was taken after the good step.

    The newest one no newer than `wanted_step`; where none is that old, the oldest one from before the bad step.
    """
    good = [item.step for item in usable if item.step <= back.good_step or item.stage_index < back.stage_index]
    if not good:
        return None
    return max((step for step in good if step <= back.wanted_step), default=min(good))


def withdrawn(back: RollBack, usable: Sequence[CheckpointObserved], *, after_step: int) -> list[CheckpointObserved]:
    """The checkpoints that a roll-back concerns: of its stage and attempts, after `after_step`."""
    return [
        item for item in usable if item.stage_index == back.stage_index and item.attempt <= back.attempts_up_to and item.step > after_step
    ]
