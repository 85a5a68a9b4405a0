"""SiTU-GLU, K3's bounded activation: phi(g, u) = [b1 tanh(g/b1) sigmoid(g)] * [b2 tanh(u/b2)], so |phi| <= b1 b2.

Computed in float32 (float64 for float64 inputs) and cast back. The backward recomputes from g and u: nothing else is kept.
"""

from typing import Any

import torch
from torch import Tensor


def situ_glu(gate: Tensor, up: Tensor, *, beta: float, linear_beta: float) -> Tensor:
    """gate and up of one shape -> phi of that shape and type; `beta` bounds the gate side, `linear_beta` the linear side."""
    activated: Tensor = _SituGlu.apply(gate, up, beta, linear_beta)
    return activated


def situ_value(gate: Tensor, up: Tensor, beta: float, linear_beta: float) -> Tensor:
    """phi without autograd, in the type of the inputs (float32 or float64)."""
    value = torch.tanh(gate / beta).mul_(torch.sigmoid(gate))
    return value.mul_(torch.tanh(up / linear_beta)).mul_(beta * linear_beta)


def situ_gradients(gate: Tensor, up: Tensor, gradient: Tensor, beta: float, linear_beta: float) -> tuple[Tensor, Tensor, Tensor]:
    """(phi, d gate, d up) for d phi = `gradient`, all in the type of the inputs (float32 or float64).

    With a = tanh(g/b1), y = sigmoid(g), c = tanh(u/b2): dphi/dg = [(1-a^2) y + b1 a y (1-y)] b2 c and dphi/du = b1 a y (1-c^2).
    """
    a = torch.tanh(gate / beta)
    y = torch.sigmoid(gate)
    c = torch.tanh(up / linear_beta)
    bounded = (a * y).mul_(beta)
    d_gate = torch.addcmul(y, y, a.square(), value=-1.0).addcmul_(bounded, 1.0 - y).mul_(c).mul_(gradient).mul_(linear_beta)
    d_up = torch.addcmul(bounded, bounded, c.square(), value=-1.0).mul_(gradient)
    return bounded.mul_(c).mul_(linear_beta), d_gate, d_up


def widened(x: Tensor) -> Tensor:
    """x in float32, or as it is in float64."""
    return x if x.dtype == torch.float64 else x.float()


class _SituGlu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, beta: float, linear_beta: float) -> Tensor:
        ctx.save_for_backward(gate, up)
        ctx.bounds = beta, linear_beta
        return situ_value(widened(gate), widened(up), beta, linear_beta).to(gate.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        gate, up = ctx.saved_tensors
        _, d_gate, d_up = situ_gradients(widened(gate), widened(up), widened(gradients[0]), *ctx.bounds)
        return d_gate.to(gate.dtype), d_up.to(up.dtype), None, None
