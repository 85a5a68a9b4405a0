"""Which KDA backend runs, and why not the others.

    sm90       ours, CUDA for Hopper: bfloat16 inputs of 128 channels on a device of compute capability 9.0
    fla        flash-linear-attention (Triton), if installed: other CUDA devices, and the gaps of ours
    reference  plain torch, anywhere

`SAMITE_KERNELS_KDA` or the `backend` argument forces one; a forced backend that can't run is an error, never a silent change.
"""

import os
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

BACKENDS = ("sm90", "fla", "reference")
VARIABLE = "SAMITE_KERNELS_KDA"
_HEAD_DIM = 128
_FLA_KEY_DIM = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """The backend that runs, and for every one passed over the reason in words."""

    backend: str
    reason: str
    rejected: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"KDA backend: {self.backend} ({self.reason})"]
        lines += [f"  not {name}: {why}" for name, why in self.rejected.items()]
        return "\n".join(lines)


def explain(q: Tensor, v: Tensor, *, lower_bound: float = -5.0, backend: str | None = None) -> Choice:
    """Decides the backend for inputs like q [B, T, H, K] and v [B, T, H, V]. Raises ValueError when a forced one can't run."""
    forced, source = (backend, "the backend argument") if backend else (os.environ.get(VARIABLE), VARIABLE)
    if forced:
        if forced not in BACKENDS:
            raise ValueError(f"{source} must be one of {', '.join(BACKENDS)}, found {forced!r}")
        obstacle = _why_not(forced, q, v, lower_bound)
        if obstacle:
            raise ValueError(f"{source} asks for {forced}, which can't run here: {obstacle}. Unset it to let Samite choose")
        return Choice(backend=forced, reason=f"forced by {source}")
    rejected: dict[str, str] = {}
    for name in BACKENDS:
        obstacle = _why_not(name, q, v, lower_bound)
        if obstacle is None:
            return Choice(backend=name, reason=_REASONS[name], rejected=rejected)
        rejected[name] = obstacle
    raise AssertionError("the reference runs everywhere")


_REASONS = {"sm90": "Hopper device", "fla": "CUDA device, flash-linear-attention found", "reference": "nothing faster fits"}


def _why_not(backend: str, q: Tensor, v: Tensor, lower_bound: float) -> str | None:
    if backend == "sm90":
        return _why_not_sm90(q, v)
    return _why_not_fla(q, lower_bound) if backend == "fla" else None


def _why_not_sm90(q: Tensor, v: Tensor) -> str | None:
    if q.device.type != "cuda":
        return f"q is on {q.device.type}, it needs a Hopper GPU"
    capability = torch.cuda.get_device_capability(q.device)
    if capability != (9, 0):
        return f"{q.device} has compute capability {capability[0]}.{capability[1]}, it needs 9.0"
    if q.shape[-1] != _HEAD_DIM or v.shape[-1] != _HEAD_DIM:
        return f"head dims are K={q.shape[-1]}, V={v.shape[-1]}, it needs {_HEAD_DIM} and {_HEAD_DIM}"
    if q.dtype != torch.bfloat16 or v.dtype != torch.bfloat16:
        return f"q is {q.dtype} and v is {v.dtype}, it needs bfloat16"
    return None


def _why_not_fla(q: Tensor, lower_bound: float) -> str | None:
    if q.device.type != "cuda":
        return f"q is on {q.device.type}, it needs a CUDA GPU"
    if not _fla_found():
        return "flash-linear-attention is not installed (pip install fla-core==0.6.0 einops)"
    if q.dtype not in (torch.bfloat16, torch.float16):
        return f"q is {q.dtype}, it needs bfloat16 or float16"
    if q.shape[-1] > _FLA_KEY_DIM:
        return f"the key dim is {q.shape[-1]}, it needs at most {_FLA_KEY_DIM}"
    if lower_bound >= 0:
        return f"lower_bound is {lower_bound:g}, it needs a negative one"
    return None


@cache
def _fla_found() -> bool:
    return find_spec("fla") is not None and find_spec("triton") is not None
