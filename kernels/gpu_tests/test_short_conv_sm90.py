# ruff: noqa: D103, INP001 - tests that travel with this folder
"""The convolution kernel against plain torch in float64: values, gradients, documents, halo, repeats."""

import pytest
import torch
from cases import on_hopper, relative_error
from torch import Tensor

from samite_kernels.conv import short_conv, short_conv_reference

pytestmark = on_hopper


def gradients(function: object, x: Tensor, weight: Tensor, state: Tensor | None, offsets: Tensor | None) -> list[Tensor]:
    leaves = [t.clone().requires_grad_() for t in (x, weight, state) if t is not None]
    start = leaves[2] if state is not None else None
    y, last = function(leaves[0], leaves[1], cu_seqlens=offsets, initial_state=start, output_final_state=True)  # type: ignore[operator]
    generator = torch.Generator(device="cuda").manual_seed(7)
    d_y = torch.randn(y.shape, generator=generator, device="cuda").bfloat16().to(y.dtype)
    d_last = torch.randn(last.shape, generator=generator, device="cuda").bfloat16().to(last.dtype)
    return [y.detach(), last.detach(), *torch.autograd.grad([y, last], leaves, [d_y, d_last])]


@pytest.mark.parametrize("channels", [8, 1000, 1032])
@pytest.mark.parametrize("offsets", [None, (0, 1, 1, 3, 67, 130, 333)])
@pytest.mark.parametrize("with_state", [False, True])
def test_values_and_gradients_are_right(channels: int, offsets: tuple[int, ...] | None, with_state: bool) -> None:
    generator = torch.Generator(device="cuda").manual_seed(0)
    batch = 1 if offsets else 2
    x = torch.randn(batch, 333, channels, generator=generator, device="cuda").bfloat16()
    weight = torch.randn(channels, 1, 4, generator=generator, device="cuda")
    count = len(offsets) - 1 if offsets else batch
    state = torch.randn(count, 3, channels, generator=generator, device="cuda").bfloat16() if with_state else None
    packed = torch.tensor(offsets) if offsets else None
    found = gradients(short_conv, x, weight, state, packed)
    wanted = gradients(short_conv_reference, x.double(), weight.double(), None if state is None else state.double(), packed)
    for a, b in zip(found, wanted, strict=True):
        assert relative_error(a, b) < 4e-3
    again = gradients(short_conv, x, weight, state, packed)
    assert all(torch.equal(a, b) for a, b in zip(found, again, strict=True))


def test_a_row_without_tokens_gives_its_state_back() -> None:
    weight, state = torch.randn(8, 4, device="cuda", requires_grad=True), torch.randn(1, 3, 8, device="cuda").bfloat16().requires_grad_()
    y, last = short_conv(torch.empty(1, 0, 8, device="cuda").bfloat16(), weight, initial_state=state, output_final_state=True)
    assert y.shape == (1, 0, 8)
    assert last is not None
    assert torch.equal(last, state)
    d_weight, d_state = torch.autograd.grad([y.sum(), last.sum()], [weight, state])
    assert not d_weight.any()
    assert torch.equal(d_state, torch.ones_like(state))


@pytest.mark.slow
def test_tensors_of_more_than_two_to_the_31_elements_are_addressed_right() -> None:
    num_tokens, width = 524300, 4104
    x = torch.randn(1, num_tokens, width, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(width, 4, device="cuda")
    assert x.numel() > 2**31
    y, _ = short_conv(x, weight)
    before, end = x[:, -203:-200].detach().float(), x[:, -200:].detach().float().requires_grad_()
    wanted, _ = short_conv_reference(end, weight, initial_state=before)
    assert relative_error(y[:, -200:], wanted) < 4e-3
    (d_x,) = torch.autograd.grad(y, x, torch.ones_like(y))
    (d_end,) = torch.autograd.grad(wanted.sum(), end)
    assert relative_error(d_x[:, -200:], d_end) < 4e-3
