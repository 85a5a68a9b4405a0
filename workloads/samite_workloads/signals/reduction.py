"""Many small tensors of all ranks in two collectives and one copy to the host: the fused reduction of a sampled step.

Sums and maxima are packed as float64, which holds every count below 2^53 exactly, so that counts stay counts.
"""

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor


class FusedReduction:
    """Collect with `add` and `maximum` (same names and shapes on every rank, in the same order), then `run` once. Keeps everything on the device."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._maxima: dict[str, Tensor] = {}

    def add(self, name: str, value: Tensor) -> None:
        """`value` will be summed over the ranks."""
        self._sums[name] = value.detach()

    def maximum(self, name: str, value: Tensor) -> None:
        """The largest `value` of the ranks will be kept, element by element. NaN counts as infinite."""
        self._maxima[name] = value.detach()

    def run(self, group: dist.ProcessGroup | None = None) -> dict[str, list[float]]:
        """Reduce over `group` and return each value as a flat list. None: this process alone. The only host sync is here."""
        sums, maxima = _pack(self._sums), _pack(self._maxima)
        # Backends disagree on the maximum of NaN and a number; infinity is the largest for all of them.
        maxima = torch.where(maxima.isnan(), torch.inf, maxima)
        if group is not None and sums.numel():
            dist.all_reduce(sums, group=group)
        if group is not None and maxima.numel():
            dist.all_reduce(maxima, op=dist.ReduceOp.MAX, group=group)
        numbers = torch.cat([sums, maxima.to(sums.device)]).tolist()
        return {**_unpack(self._sums, numbers[: sums.numel()]), **_unpack(self._maxima, numbers[sums.numel() :])}


def _pack(values: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([value.flatten().double() for value in values.values()]) if values else torch.zeros(0, dtype=torch.float64)


def _unpack(values: Mapping[str, Tensor], numbers: list[float]) -> dict[str, list[float]]:
    result, start = {}, 0
    for name, value in values.items():
        result[name] = numbers[start : start + value.numel()]
        start += value.numel()
    return result
