"""Bias-free projections. Weights live in float32 (the optimizer's copy) and are used in the type of the activations."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from samite_workloads.model.situ import situ_glu


class Linear(nn.Module):
    """y = x W^T with W [out, in]; the product runs in the type of x."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features))

    def forward(self, x: Tensor) -> Tensor:
        """x [..., in] -> [..., out], dtype of x."""
        return functional.linear(x, self.weight.to(x.dtype))


class SituMlp(nn.Module):
    """SiTU-GLU feed-forward network: dense layers and the shared experts. K3 report, SiTU."""

    def __init__(self, width: int, hidden: int, *, beta: float, linear_beta: float) -> None:
        super().__init__()
        self.gate_proj = Linear(width, hidden)
        self.up_proj = Linear(width, hidden)
        self.down_proj = Linear(hidden, width)
        self.beta, self.linear_beta = beta, linear_beta

    def forward(self, x_TD: Tensor) -> Tensor:
        """x [T, D] -> [T, D]."""
        return self.down_proj(situ_glu(self.gate_proj(x_TD), self.up_proj(x_TD), beta=self.beta, linear_beta=self.linear_beta))
