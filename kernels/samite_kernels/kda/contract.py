"""The checks of the KDA interface: one function per contract, each error says what was wanted, found, and what to do.

Called by the public entry points before any backend is chosen. Looks at shapes, types and devices, never at values.
"""

import torch
from torch import Tensor

from samite_kernels.runtime.tensors import check_devices

LOWEST_BOUND = -5.0
"""Below -5 nats per token a 16-token tile leaves the range of float32 and bfloat16."""
_FLOAT_TYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


def check_lower_bound(lower_bound: float) -> None:
    """Refuses bounds for which the 16-token tiles aren't safe."""
    if not LOWEST_BOUND <= lower_bound < 0.0:
        raise ValueError(
            f"lower_bound must lie in [{LOWEST_BOUND:g}, 0), found {lower_bound:g}: "
            "a lower bound overflows the 16-token tiles, a bound of 0 switches the gate off"
        )


def check_tensors(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> None:
    """q, k, g [B, T, H, K], v [B, T, H, V], beta [B, T, H], floating point, on one device; k in the type of q. T may be 0."""
    if q.dim() != 4:
        raise ValueError(f"q must have shape [B, T, H, K], found {tuple(q.shape)}")
    batch, num_tokens, num_heads, key_dim = q.shape
    if 0 in (batch, num_heads, key_dim, v.shape[-1]):
        raise ValueError(f"B, H, K and V must be at least 1, found q {list(q.shape)} and v {list(v.shape)}: leave out the empty call")
    wanted: dict[str, tuple[Tensor, tuple[int, ...]]] = {
        "k": (k, (batch, num_tokens, num_heads, key_dim)),
        "g": (g, (batch, num_tokens, num_heads, key_dim)),
    }
    wanted["beta"] = (beta, (batch, num_tokens, num_heads))
    wanted["v"] = (v, (batch, num_tokens, num_heads, v.shape[-1]))
    for name, (tensor, shape) in wanted.items():
        if tuple(tensor.shape) != shape:
            raise ValueError(f"{name} must have shape {list(shape)} to fit q, found {list(tensor.shape)}")
    for name, tensor in {"q": q, "k": k, "v": v, "g": g, "beta": beta}.items():
        if tensor.dtype not in _FLOAT_TYPES:
            raise ValueError(f"{name} must be a floating-point tensor, found {tensor.dtype}")
    if k.dtype != q.dtype:
        raise ValueError(f"k must be {q.dtype} like q, found {k.dtype}: convert one of them")
    check_devices(("q", q), k=k, v=v, g=g, beta=beta)


def check_gate_parameters(A_log: Tensor, dt_bias: Tensor, *, q: Tensor) -> None:
    """A_log [H]; dt_bias [H * K] or [H, K], floating point, beside q. A released checkpoint pads A_log: narrow it first."""
    num_heads, key_dim = q.shape[2:]
    if tuple(A_log.shape) != (num_heads,):
        raise ValueError(f"A_log must have shape [{num_heads}], found {list(A_log.shape)}: narrow a padded one to the heads in use")
    if tuple(dt_bias.shape) not in {(num_heads * key_dim,), (num_heads, key_dim)}:
        raise ValueError(f"dt_bias must have shape [{num_heads * key_dim}] or [{num_heads}, {key_dim}], found {list(dt_bias.shape)}")
    for name, tensor in {"A_log": A_log, "dt_bias": dt_bias}.items():
        if tensor.dtype not in _FLOAT_TYPES:
            raise ValueError(f"{name} must be a floating-point tensor, found {tensor.dtype}")
    check_devices(("q", q), A_log=A_log, dt_bias=dt_bias)


def check_initial_state(initial_state: Tensor | None, *, wanted: tuple[int, int, int, int], q: Tensor) -> None:
    """initial_state [N, H, K, V], float32 or float64: one state per document."""
    if initial_state is None:
        return
    if tuple(initial_state.shape) != wanted:
        hint = ""
        if tuple(initial_state.shape) == (*wanted[:2], wanted[3], wanted[2]):
            hint = ": this one looks like [N, H, V, K], give .transpose(-1, -2)"
        raise ValueError(f"initial_state must have shape {list(wanted)} ([N, H, K, V]), found {list(initial_state.shape)}{hint}")
    if initial_state.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"initial_state must be float32 or float64, found {initial_state.dtype}: states are kept in float32")
    check_devices(("q", q), initial_state=initial_state)
