"""Gradient norms by parameter family and by layer over any mix of meshes, without a host sync.

`torch.nn.utils.clip_grad_norm_` raises for parameters of different meshes. Here each rank adds the squares of what it holds, replicated
parameters are counted by rank 0 alone, and one all-reduce carries the squares together with the step's losses.
"""

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from samite_workloads.parallel.sharding import local


def squared_norms(
    gradients: Sequence[Tensor],
    families: Sequence[int],
    *,
    num_families: int,
    is_first_rank: bool,
    layers: Sequence[int] = (),
    num_layers: int = 0,
) -> Tensor:
    """Local sums of squares by family and then by layer, [num_families + num_layers], fp32.

    `families[i]` and `layers[i]` are the indices of `gradients[i]`. Non-finite values stay visible in the sums.
    """
    device = local(gradients[0]).device
    sums = torch.zeros(num_families + num_layers, dtype=torch.float32, device=device)
    counted = [index for index, g in enumerate(gradients) if is_first_rank or local(g) is not g]
    if not counted:
        return sums
    norms = torch.stack(torch._foreach_norm([local(gradients[i]) for i in counted])).float()  # noqa: SLF001  the public clip uses the same call
    for family in range(num_families):
        mine = [place for place, i in enumerate(counted) if families[i] == family]
        if mine:
            sums[family] = norms[mine].square().sum()
    if num_layers:
        sums[num_families:].index_add_(0, _index(tuple(layers[i] for i in counted), device), norms.square())
    return sums


@lru_cache(maxsize=8)
def _index(places: tuple[int, ...], device: torch.device) -> Tensor:
    """The same in every step: copied to the device once."""
    return torch.tensor(places, dtype=torch.int64, device=device)


def clip_coefficient(total_norm: Tensor, max_norm: float) -> Tensor:
    """Factor for all gradients, in (0, 1]; a tensor on the device. `max_norm` <= 0 switches clipping off. NaN norms give NaN."""
    if max_norm <= 0:
        return torch.ones_like(total_norm)
    return (max_norm / (total_norm + 1e-6)).clamp(max=1.0)
