"""Modules whose parameters stay in float32 whatever type the rest of the model is cast to.

K3 keeps the convolutions, the decay parameters, the KDA output norm and the router bias in float32 in its checkpoints; rounding them changes
routing and forgetting. The router weight is computed in float32 and joins them here. Sharded training wraps each island with its own
full-precision policy: see `MultimodalDecoder.float32_islands`.
"""

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn


class Float32Island(nn.Module):
    """Follows the model to another device or to float64 and back, never to a type narrower than float32."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        def apply_without_narrowing(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            if _narrows(tensor.dtype, moved.dtype):
                return tensor.to(moved.device)
            return moved

        super_apply: Any = super()._apply
        return super_apply(apply_without_narrowing, recurse)


def _narrows(before: torch.dtype, after: torch.dtype) -> bool:
    if before == after or not (before.is_floating_point and after.is_floating_point):
        return False
    return torch.finfo(after).bits < torch.finfo(torch.float32).bits
