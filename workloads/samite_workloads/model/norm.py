"""RMS normalisation: computed in float32, cast back, then multiplied by the weight, as the released code does."""

from typing import Any

import torch
from torch import Tensor, nn


class RmsNorm(nn.Module):
    """rms(x; w, eps) = w * x / sqrt(mean(x^2) + eps) over the last dim."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """x [..., width] -> the same shape and type."""
        return rms_norm(x, self.weight, self.eps)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., D], weight [D] -> the same shape and type as x."""
    normalised: Tensor = _RmsNorm.apply(x, weight, eps)
    return normalised


def inverse_rms(x: Tensor, eps: float) -> Tensor:
    """1 / sqrt(mean(x^2) + eps) over the last dim, which is kept; float32, or float64 for float64."""
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=wide)
    return norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_()


class _RmsNorm(torch.autograd.Function):
    """Keeps x and one number per row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        inverse = inverse_rms(x, eps)
        ctx.save_for_backward(x, weight, inverse)
        return (x * inverse).to(x.dtype) * weight.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, inverse = ctx.saved_tensors
        unit = x * inverse
        gradient = gradients[0].to(inverse.dtype)
        d_weight = (gradient * unit).flatten(0, -2).sum(0)
        scaled = gradient * weight.to(inverse.dtype)
        along = (scaled * unit).mean(-1, keepdim=True)
        d_x = scaled.addcmul_(unit, along, value=-1.0).mul_(inverse)
        return d_x.to(x.dtype), d_weight.to(weight.dtype), None
