"""Gradient norms by parameter family over any mix of meshes, without a host sync.

`torch.nn.utils.clip_grad_norm_` raises for parameters of different meshes. Here each rank adds the squares of what it holds, replicated
parameters are counted by rank 0 alone, and one all-reduce carries the squares together with the step's losses.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from samite_workloads.parallel.sharding import local


def squared_norms(gradients: Sequence[Tensor], families: Sequence[int], *, num_families: int, is_first_rank: bool) -> Tensor:
    """Local sums of squares [num_families], fp32. `families[i]` is the family index of `gradients[i]`. Non-finite values stay visible in the sum."""
    device = local(gradients[0]).device
    sums = torch.zeros(num_families, dtype=torch.float32, device=device)
    counted = [(g, f) for g, f in zip(gradients, families, strict=True) if is_first_rank or local(g) is not g]
    if not counted:
        return sums
    norms = torch.stack(torch._foreach_norm([local(g) for g, _ in counted])).float()  # noqa: SLF001  the public clip uses the same call
    for family in range(num_families):
        mine = [index for index, (_, f) in enumerate(counted) if f == family]
        if mine:
            sums[family] = norms[mine].square().sum()
    return sums


def clip_coefficient(total_norm: Tensor, max_norm: float) -> Tensor:
    """Factor for all gradients, in (0, 1]; a tensor on the device. `max_norm` <= 0 switches clipping off. NaN norms give NaN."""
    if max_norm <= 0:
        return torch.ones_like(total_norm)
    return (max_norm / (total_norm + 1e-6)).clamp(max=1.0)
