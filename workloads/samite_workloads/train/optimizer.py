"""The optimizer of a run: Muon for matrices beside AdamW for the rest, behind one guard.

A step is accepted or refused as a whole, on all ranks, by a number on the device: nothing waits for the host. A refused step leaves weights, moments
and step counts bit for bit as they were.
"""

import torch
from torch import Tensor

from samite_workloads.parallel.sharding import local
from samite_workloads.train.adamw import AdamW
from samite_workloads.train.groups import ParameterGroups
from samite_workloads.train.muon import Muon
from samite_workloads.train.plan import OptimizerPlan


class Optimizer:
    """All optimizer state of this rank's shards. Collective: every rank steps together."""

    def __init__(self, groups: ParameterGroups, plan: OptimizerPlan, device: torch.device) -> None:
        self._groups = groups
        self._device = device
        compute_dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self._muon = Muon(groups.matrices, momentum=plan.momentum, weight_decay=plan.weight_decay, compute_dtype=compute_dtype)
        self._adamw = AdamW(groups.vectors, betas=plan.betas, epsilon=plan.epsilon, weight_decay=plan.weight_decay, device=device)

    def tensors(self) -> dict[str, Tensor]:
        """State by name (`muon/<parameter>`, `adamw/first/<parameter>`, ...), for checkpoints: restore writes into these very tensors."""
        return {**self._muon.tensors(), **self._adamw.tensors()}

    def reset(self) -> None:
        """Forget all moments and step counts, as a hand-over with `optimizer: Reset` asks."""
        for state in self.tensors().values():
            local(state).zero_()

    @torch.no_grad()
    def step(self, *, learning_rate: float, clip: Tensor, accepted: Tensor) -> None:
        """Clip by the factor `clip` and update; do nothing at all where `accepted` (bool, on the device) is false."""
        gradients = [local(parameter.grad) for parameter in self._groups.parameters if parameter.grad is not None]
        torch._foreach_mul_(gradients, clip)
        if self._device.type == "cuda":
            # On CPU the loop has already looked at the verdict. NaN times zero is NaN, but its bits times zero are zero.
            torch._foreach_mul_([gradient.view(torch.int32) for gradient in gradients], accepted.to(torch.int32))
        go = accepted.to(torch.float32)
        rate = go * learning_rate
        self._muon.step(learning_rate=rate, accepted=go)
        self._adamw.step(learning_rate=rate, accepted=go)

    def zero_gradients(self) -> None:
        """Drop the gradients of the last step."""
        for parameter in self._groups.parameters:
            parameter.grad = None
