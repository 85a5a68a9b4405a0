"""The numbers of a step: losses and gradient norms in one reduction, and the verdict on them.

    [loss of text, loss of captions, squared gradient norm of each family, and of each layer]   summed over ranks in one all-reduce

A NaN or an infinity on one rank is in the sum on all ranks, so all ranks refuse the step together, in every step, before the optimizer. On CUDA the
host reads the result one step later, from a copy that runs beside the computation; a refused step has changed nothing, so that is early enough.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from samite_workloads.batch import Modality
from samite_workloads.signals.spikes import Excursion
from samite_workloads.train.groups import FAMILIES

_NUM_LOSSES = len(Modality)
_NUM_TOTALS = _NUM_LOSSES + len(FAMILIES)


class NonFiniteError(Exception):
    """The loss or a gradient of a step is not finite. `rows` is the half-open range of global data rows of that step."""

    def __init__(self, step: int, where: Sequence[str], rows: tuple[int, int] | None) -> None:
        self.step = step
        self.good_step = step - 1
        self.where = tuple(where)
        self.rows = rows
        data = f"; data rows {rows[0]} to {rows[1]}" if rows else ""
        super().__init__(f"step {step}: not finite: {', '.join(where)}{data}; the update was refused on all ranks")


class SpikeError(Exception):
    """Loss or gradient norm left their band, and the stage rolls back after that. Raised on all ranks alike, from the same reduced numbers."""

    def __init__(self, excursion: Excursion) -> None:
        self.kind = excursion.kind
        self.rows = excursion.rows
        self.good_step = excursion.first_step - 1
        super().__init__(excursion.message)


@dataclass(frozen=True, slots=True)
class StepNumbers:
    """What a step measured, on the host. Losses are means over supervised tokens; nan for a modality without any."""

    loss: float
    loss_by_modality: tuple[float, ...]
    grad_norm: float
    grad_norm_by_family: tuple[float, ...]
    clipped: bool
    grad_norm_by_layer: Mapping[str, float] = field(default_factory=dict)

    @property
    def nonfinite(self) -> tuple[str, ...]:
        """Names of what is not finite; empty in a healthy step."""
        names = [] if math.isfinite(self.loss) else ["loss"]
        pairs = zip(FAMILIES, self.grad_norm_by_family, strict=True)
        return tuple(names + [f"gradient of {family}" for family, norm in pairs if not math.isfinite(norm)])

    @property
    def nonfinite_layers(self) -> tuple[str, ...]:
        """Layers whose gradient is not finite, in the model's order. A loss that is not finite makes every layer's gradient so."""
        return tuple(layer for layer, norm in self.grad_norm_by_layer.items() if not math.isfinite(norm))


class Verdict:
    """The reduced numbers of one step, still on the device."""

    def __init__(
        self,
        loss_sums: Tensor,
        squared_norms: Tensor,
        *,
        supervised: Sequence[int],
        max_norm: float,
        group: dist.ProcessGroup,
        layer_names: Sequence[str] = (),
    ) -> None:
        self._supervised = tuple(supervised)
        self._layer_names = tuple(layer_names)
        self._max_norm = max_norm
        numbers = torch.cat([loss_sums.float(), squared_norms])
        dist.all_reduce(numbers, group=group)
        self.total_norm = numbers[_NUM_LOSSES:_NUM_TOTALS].sum().sqrt()
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
        losses, squares, of_layers = values[:_NUM_LOSSES], values[_NUM_LOSSES:_NUM_TOTALS], values[_NUM_TOTALS:]
        total = math.sqrt(sum(squares)) if all(math.isfinite(s) for s in squares) else math.nan
        return StepNumbers(
            loss=sum(losses) / max(1, sum(self._supervised)),
            loss_by_modality=tuple(loss / count if count else math.nan for loss, count in zip(losses, self._supervised, strict=True)),
            grad_norm=total,
            grad_norm_by_family=tuple(map(_root, squares)),
            grad_norm_by_layer=dict(zip(self._layer_names, map(_root, of_layers), strict=True)),
            clipped=0 < self._max_norm < total,
        )


def _root(square: float) -> float:
    return math.sqrt(square) if math.isfinite(square) else math.nan
