# ruff: noqa: D103, INP001 - tests that travel with this folder
"""The convolution kernel against plain torch in float64: values, gradients, documents, halo, repeats."""

import pytest
import torch
from cases import relative_error
from torch import Tensor

from samite_kernels.conv import short_conv, short_conv_reference

_HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not _HOPPER, reason="needs a GPU of compute capability 9.0")]


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
