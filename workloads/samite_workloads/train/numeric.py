"""The numbers of a step: losses and gradient norms in one reduction, and the verdict on them.

    [loss of text, loss of captions, squared gradient norm of each family]   summed over ranks in one all-reduce

A NaN or an infinity on one rank is in the sum on all ranks, so all ranks refuse the step together, in every step, before the optimizer. On CUDA the
host reads the result one step later, from a copy that runs beside the computation; a refused step has changed nothing, so that is early enough.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from samite_workloads.batch import Modality
from samite_workloads.train.groups import FAMILIES

_NUM_LOSSES = len(Modality)


class NonFiniteError(Exception):
    """The loss or a gradient of a step is not finite. `rows` is the half-open range of global data rows of that step."""

    def __init__(self, step: int, where: Sequence[str], rows: tuple[int, int] | None) -> None:
        self.step = step
        self.where = tuple(where)
        self.rows = rows
        data = f"; data rows {rows[0]} to {rows[1]}" if rows else ""
        super().__init__(f"step {step}: not finite: {', '.join(where)}{data}; the update was refused on all ranks")


@dataclass(frozen=True, slots=True)
class StepNumbers:
    """What a step measured, on the host. Losses are means over supervised tokens; nan for a modality without any."""

    loss: float
    loss_by_modality: tuple[float, ...]
    grad_norm: float
    grad_norm_by_family: tuple[float, ...]
    clipped: bool

    @property
    def nonfinite(self) -> tuple[str, ...]:
        """Names of what is not finite; empty in a healthy step."""
        names = [] if math.isfinite(self.loss) else ["loss"]
        pairs = zip(FAMILIES, self.grad_norm_by_family, strict=True)
        return tuple(names + [f"gradient of {family}" for family, norm in pairs if not math.isfinite(norm)])


class Verdict:
    """The reduced numbers of one step, still on the device."""

    def __init__(
        self, loss_sums: Tensor, squared_norms: Tensor, *, supervised: Sequence[int], max_norm: float, group: dist.ProcessGroup
    ) -> None:
        self._supervised = tuple(supervised)
        self._max_norm = max_norm
        numbers = torch.cat([loss_sums.float(), squared_norms])
        dist.all_reduce(numbers, group=group)
        self.total_norm = numbers[_NUM_LOSSES:].sum().sqrt()
        self.accepted = torch.isfinite(numbers).all() & torch.isfinite(self.total_norm)
        self._host = numbers
        self._ready: torch.cuda.Event | None = None
        if numbers.device.type == "cuda":
            self._host = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
            self._host.copy_(numbers, non_blocking=True)
            self._ready = torch.cuda.Event()
            self._ready.record()

    def read(self) -> StepNumbers:
        """The numbers; on CUDA this waits for the step to have been computed."""
        if self._ready is not None:
            self._ready.synchronize()
        values = self._host.tolist()
        losses, squares = values[:_NUM_LOSSES], values[_NUM_LOSSES:]
        total = math.sqrt(sum(squares)) if all(math.isfinite(s) for s in squares) else math.nan
        return StepNumbers(
            loss=sum(losses) / max(1, sum(self._supervised)),
            loss_by_modality=tuple(loss / count if count else math.nan for loss, count in zip(losses, self._supervised, strict=True)),
            grad_norm=total,
            grad_norm_by_family=tuple(math.sqrt(s) if math.isfinite(s) else math.nan for s in squares),
            clipped=0 < self._max_norm < total,
        )
