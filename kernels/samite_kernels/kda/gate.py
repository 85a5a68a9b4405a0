"""What happens to raw inputs before the recurrence: L2 norm of q and k, sigmoid of beta, the lower-bounded gate.

    g [.., H, K] raw  --(+ dt_bias)--> u --(* exp A_log, sigmoid, * lower_bound)--> log-decay in [lower_bound, 0]

Called by the references; the kernels repeat the same arithmetic in registers.
"""

import torch
from torch import Tensor

L2_NORM_EPSILON = 1e-6
MAX_A_LOG = 20.0
"""exp(A_log) is taken of at most this, so that a saturated gate never forms 0 * inf in its gradient."""


def compute_dtype(*tensors: Tensor | None) -> torch.dtype:
    """float64 when any input is, else float32."""
    return torch.float64 if any(t is not None and t.dtype == torch.float64 for t in tensors) else torch.float32


def l2_normalize(x: Tensor) -> Tensor:
    """x / sqrt(sum of squares + 1e-6) over the last dim, in the dtype of x."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + L2_NORM_EPSILON)


def bounded_log_decay(g: Tensor, A_log: Tensor, dt_bias: Tensor, *, lower_bound: float) -> Tensor:
    """Log-decay per channel, `lower_bound * sigmoid(exp(A_log) * (g + dt_bias))`; K3 report, gate of KDA.

    g [.., H, K], A_log [H], dt_bias [H * K] or [H, K]. The result is in the dtype of g and lies in [lower_bound, 0].
    """
    num_heads, key_dim = g.shape[-2:]
    pre_activation = g + dt_bias.to(g.dtype).view(num_heads, key_dim)
    steepness = A_log.to(g.dtype).clamp(max=MAX_A_LOG).exp().unsqueeze(-1)
    return lower_bound * torch.sigmoid(steepness * pre_activation)
