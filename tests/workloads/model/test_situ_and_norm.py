"""SiTU-GLU and RMS norm: values, bounds, gradients, extremes."""

import pytest
import torch

from samite_workloads.model.norm import rms_norm
from samite_workloads.model.situ import situ_glu


def pair(scale, dtype=torch.float64, count=2000):
    generator = torch.Generator().manual_seed(0)
    return [(scale * torch.randn(count, generator=generator, dtype=torch.float64)).to(dtype).requires_grad_() for _ in range(2)]


def test_values_equal_the_formula(oracle, relative):
    gate, up = pair(5.0)
    assert relative(situ_glu(gate, up, beta=4.0, linear_beta=25.0), oracle.situ(gate, up)) < 1e-12
    gate, up = pair(5.0, torch.float32)
    assert relative(situ_glu(gate, up, beta=4.0, linear_beta=25.0), oracle.situ(gate.double(), up.double())) < 1e-6


def test_the_activation_never_passes_the_product_of_its_bounds():
    gate, up = pair(1e3)
    activated = situ_glu(gate, up, beta=4.0, linear_beta=25.0)
    assert activated.abs().max().item() <= 100.0
    assert activated.abs().max().item() > 99.0


def test_gradients_pass_gradcheck():
    inputs = pair(3.0, count=40)
    assert torch.autograd.gradcheck(lambda g, u: situ_glu(g, u, beta=4.0, linear_beta=25.0), inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_extreme_inputs_stay_finite_forward_and_backward(dtype):
    gate, up = pair(1e4, dtype)
    activated = situ_glu(gate, up, beta=4.0, linear_beta=25.0)
    activated.sum().backward()
    assert activated.dtype == gate.grad.dtype == dtype
    assert all(torch.isfinite(x).all() for x in (activated, gate.grad, up.grad))


def test_without_bounds_it_becomes_swiglu(relative):
    gate, up = pair(2.0)
    assert relative(situ_glu(gate, up, beta=1e6, linear_beta=1e6), torch.nn.functional.silu(gate) * up) < 1e-9


def test_rms_norm_and_its_gradients_equal_torch(relative):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 7, 24, generator=generator, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(24, generator=generator, dtype=torch.float64, requires_grad=True)
    pull = torch.randn(3, 7, 24, generator=generator, dtype=torch.float64)
    mine = torch.autograd.grad((rms_norm(x, weight, 1e-5) * pull).sum(), (x, weight))
    theirs = torch.autograd.grad((torch.nn.functional.rms_norm(x, (24,), weight, 1e-5) * pull).sum(), (x, weight))
    assert all(relative(a, b) < 1e-12 for a, b in zip(mine, theirs, strict=True))


def test_rms_norm_is_computed_in_float32_and_cast_before_the_weight():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(50, 64, generator=generator).bfloat16()
    weight = torch.randn(64, generator=generator)
    unit = (x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-5)).bfloat16()
    found = rms_norm(x, weight, 1e-5)
    assert found.dtype == torch.bfloat16
    assert (found != unit * weight.bfloat16()).float().mean().item() < 0.01
