# ruff: noqa: INP001 - tests that travel with this folder
"""Random KDA inputs in every gate regime, the float64 reference beside them, and relative errors."""

import pytest
import torch
from torch import Tensor

from samite_kernels.kda import chunk_kda
from samite_kernels.kda.chunkwise import chunkwise_core
from samite_kernels.kda.documents import Documents
from samite_kernels.kda.gate import bounded_log_decay, l2_normalize

_HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
on_hopper = [pytest.mark.gpu, pytest.mark.skipif(not _HOPPER, reason="needs a GPU of compute capability 9.0")]
"""The `pytestmark` of every test file here."""
REGIMES = ("steep", "floor", "mixed", "init", "none", "tiles")
INPUTS = ("q", "k", "v", "g", "beta", "A_log", "dt_bias")
Results = dict[str, Tensor]


def raw_gate(regime: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Gate pre-activations of a regime: all saturated (floor), spread (mixed, steep), nearly open (init), open (none), by tiles."""
    noise = torch.randn(shape, generator=generator, device="cuda")
    if regime == "floor":
        return torch.full(shape, 60.0, device="cuda")
    if regime == "none":
        return torch.full(shape, -60.0, device="cuda")
    if regime == "tiles":
        position = torch.arange(shape[1], device="cuda").view(1, -1, 1, 1)
        return torch.where(position // 64 % 2 == 0, 60.0, -8.0) + 0.1 * noise
    center, spread = {"steep": (0.6, 1.0), "mixed": (0.0, 3.0), "init": (-4.0, 1.0)}[regime]
    return center + spread * noise


def make_inputs(num_tokens: int, num_heads: int, regime: str = "mixed", *, batch: int = 1, seed: int = 0) -> Results:
    """Raw bfloat16 inputs of `chunk_kda` on the GPU."""
    generator = torch.Generator(device="cuda").manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device="cuda")

    shape = (batch, num_tokens, num_heads, 128)
    inputs = {name: normal(*shape).bfloat16() for name in ("q", "k", "v")}
    inputs["g"] = raw_gate(regime, shape, generator).bfloat16()
    inputs["beta"] = normal(*shape[:3]).bfloat16()
    return inputs | {"A_log": 0.1 * normal(num_heads), "dt_bias": 0.1 * normal(num_heads * 128)}


def exact(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, A_log: Tensor, dt_bias: Tensor, **options: object
) -> tuple[Tensor, Tensor]:
    """The chunkwise reference in float64, with the arguments of `chunk_kda`."""
    documents, state = options["documents"], options["initial_state"]
    assert isinstance(documents, Documents)
    assert isinstance(state, Tensor)
    o, final_state = chunkwise_core(
        l2_normalize(q.double()).flatten(0, 1),
        l2_normalize(k.double()).flatten(0, 1),
        v.double().flatten(0, 1),
        bounded_log_decay(g.double(), A_log.double(), dt_bias.double(), lower_bound=-5.0).flatten(0, 1),
        beta.double().sigmoid().flatten(0, 1),
        scale=128**-0.5,
        documents=documents,
        initial_state=state.double(),
    )
    return o.view(v.shape), final_state


def run(inputs: Results, documents: Documents, *, backend: str | None, seed: int = 1, recompute: bool = False) -> Results:
    """Outputs and every gradient; `backend` "exact" is the float64 reference. The weights of the loss depend on the seed alone."""
    generator = torch.Generator(device="cuda").manual_seed(seed)
    num_heads = inputs["q"].shape[2]
    state = torch.randn(documents.count, num_heads, 128, 128, generator=generator, device="cuda")
    d_o = torch.randn(inputs["v"].shape, generator=generator, device="cuda").bfloat16()
    d_state = torch.randn(state.shape, generator=generator, device="cuda")
    is_exact = backend == "exact"
    leaves = {name: (x.double() if is_exact else x).detach().clone().requires_grad_() for name, x in inputs.items()}
    state = (state.double() if is_exact else state).requires_grad_()
    if is_exact:
        o, final_state = exact(**leaves, documents=documents, initial_state=state)
    else:
        packed = inputs["q"].shape[0] == 1 and documents.count > 1
        offsets = torch.tensor(documents.offsets, dtype=torch.int32) if packed else None
        options = {"cu_seqlens": offsets, "initial_state": state, "recompute_states": recompute}
        o, last = chunk_kda(**leaves, **options, output_final_state=True, backend=backend)
        assert last is not None
        final_state = last
    torch.autograd.backward([o, final_state], [d_o.to(o.dtype), d_state.to(final_state.dtype)])
    results = {"o": o.detach(), "state": final_state.detach(), "dh0": state.grad}
    results |= {f"d{name}": leaf.grad for name, leaf in leaves.items()}
    return {name: x for name, x in results.items() if x is not None}


def relative_error(found: Tensor, wanted: Tensor) -> float:
    """Norm of the difference over the norm of what was wanted; NaN for anything not finite."""
    if not bool(torch.isfinite(found).all()):
        return float("nan")
    return float((found.double() - wanted.double()).norm() / wanted.double().norm().clamp(min=1e-30))
