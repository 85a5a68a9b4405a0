"""AdamW on local shards: everything that is not a matrix for Muon. Elementwise, so sharding can't change a bit.

The step count is a tensor on the device, because a refused step (non-finite anywhere) must leave it alone without the host knowing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from samite_workloads.parallel.sharding import local


@dataclass(frozen=True, kw_only=True, slots=True)
class Vector:
    """A parameter that AdamW updates; `decay` says whether weight decay applies."""

    name: str
    parameter: nn.Parameter
    decay: bool


class AdamW:
    """Decoupled weight decay (Loshchilov and Hutter 2019). State: first and second moments and one step count."""

    def __init__(
        self, vectors: Sequence[Vector], *, betas: tuple[float, float], epsilon: float, weight_decay: float, device: torch.device
    ) -> None:
        self._vectors = tuple(vectors)
        self._betas = betas
        self._epsilon = epsilon
        self._weight_decay = weight_decay
        self._first = [torch.zeros_like(v.parameter.detach()) for v in self._vectors]
        self._second = [torch.zeros_like(v.parameter.detach()) for v in self._vectors]
        self._steps = torch.zeros((), dtype=torch.float32, device=device)

    def tensors(self) -> dict[str, Tensor]:
        """State by name, for checkpoints: restore writes into these very tensors."""
        named = {"adamw/steps": self._steps}
        for vector, first, second in zip(self._vectors, self._first, self._second, strict=True):
            named[f"adamw/first/{vector.name}"] = first
            named[f"adamw/second/{vector.name}"] = second
        return named

    @torch.no_grad()
    def step(self, *, learning_rate: Tensor, accepted: Tensor) -> None:
        """One update. Gradients are clipped and finite (zero in a refused step); `accepted` is 1.0 or 0.0 on the device, `learning_rate` is 0 when refused."""
        self._steps += accepted
        if not self._vectors:
            return
        beta1, beta2 = self._betas
        steps = self._steps.clamp(min=1.0)
        correction1, correction2 = 1.0 - beta1**steps, 1.0 - beta2**steps
        gradients = [local(v.parameter.grad).to(torch.float32) for v in self._vectors if v.parameter.grad is not None]
        first = [local(s) for s in self._first]
        second = [local(s) for s in self._second]
        weights = [local(v.parameter.detach()) for v in self._vectors]
        torch._foreach_mul_(first, 1.0 - (1.0 - beta1) * accepted)
        torch._foreach_add_(first, gradients, alpha=1.0 - beta1)
        torch._foreach_mul_(second, 1.0 - (1.0 - beta2) * accepted)
        torch._foreach_addcmul_(second, gradients, gradients, value=1.0 - beta2)
        scale = torch._foreach_div(second, correction2)  # noqa: SLF001
        torch._foreach_sqrt_(scale)
        torch._foreach_add_(scale, self._epsilon)
        updates = torch._foreach_div(first, scale)  # noqa: SLF001
        torch._foreach_mul_(updates, -learning_rate / correction1)
        torch._foreach_mul_([w for w, v in zip(weights, self._vectors, strict=True) if v.decay], 1.0 - learning_rate * self._weight_decay)
        torch._foreach_add_(weights, updates)
