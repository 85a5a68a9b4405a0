# ruff: noqa: D103, INP001 - tests that travel with this folder
"""The kernel for the convolutions of q, k and v against plain torch in float64: values, gradients, halo, repeats, capture, size."""

import pytest
import torch
from cases import on_hopper, relative_error
from torch import Tensor

from samite_kernels.conv import short_conv_qkv, short_conv_reference

pytestmark = on_hopper
OFFSETS = (0, 1, 1, 3, 260, 515, 516, 1333)


@pytest.fixture(autouse=True)
def forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAMITE_KERNELS_CONV", "sm90")


def make(widths: tuple[int, ...], num_tokens: int, documents: int, *, with_state: bool) -> list[Tensor]:
    generator = torch.Generator(device="cuda").manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device="cuda")

    leaves = [normal(1, num_tokens, width).bfloat16() for width in widths] + [normal(width, 4) for width in widths]
    return leaves + [normal(documents, 3, width).bfloat16() for width in widths if with_state]


def step(leaves: list[Tensor], offsets: Tensor | None, *, exact: bool = False) -> list[Tensor]:
    leaves = [(x.double() if exact else x).detach().clone().requires_grad_() for x in leaves]
    streams, taps, states = leaves[:3], leaves[3:6], leaves[6:]
    if exact:
        y = [
            short_conv_reference(x, w, cu_seqlens=offsets, initial_state=states[i] if states else None)[0]
            for i, (x, w) in enumerate(zip(streams, taps, strict=True))
        ]
    else:
        given = (states[0], states[1], states[2]) if states else None
        y = list(short_conv_qkv(*streams, (taps[0], taps[1], taps[2]), cu_seqlens=offsets, initial_states=given)[0])
    generator = torch.Generator(device="cuda").manual_seed(7)
    d_y = [torch.randn(x.shape, generator=generator, device="cuda").bfloat16().to(x.dtype) for x in y]
    return [*(x.detach() for x in y), *torch.autograd.grad(y, leaves, d_y)]


@pytest.mark.parametrize("widths", [(4, 8, 12), (1000, 512, 516), (4096, 4096, 4096)])
@pytest.mark.parametrize("with_state", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_values_and_gradients_are_right_and_repeat_bitwise(widths: tuple[int, ...], with_state: bool, packed: bool) -> None:
    offsets = torch.tensor(OFFSETS) if packed else None
    leaves = make(widths, 1333, 7 if packed else 1, with_state=with_state)
    found, wanted = step(leaves, offsets), step(leaves, offsets, exact=True)
    for index, (a, b) in enumerate(zip(found, wanted, strict=True)):
        assert relative_error(a, b) < 4e-3, index
    for _ in range(19):
        assert all(torch.equal(a, b) for a, b in zip(found, step(leaves, offsets), strict=True))


def test_it_can_be_captured_in_a_graph() -> None:
    leaves = make((64, 64, 64), 700, 1, with_state=False)
    wanted = step(leaves, None)
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    inputs = [x.requires_grad_() for x in leaves]
    d_y = [torch.ones_like(x) for x in leaves[:3]]

    def run() -> list[Tensor]:
        y, _ = short_conv_qkv(*inputs[:3], (inputs[3], inputs[4], inputs[5]))
        return [*y, *torch.autograd.grad(list(y), inputs, d_y)]

    with torch.cuda.stream(stream):
        plain = [x.clone() for x in run()]
    with torch.cuda.graph(graph, stream=stream):
        found = run()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(found[0], wanted[0])
    assert all(torch.equal(a, b) for a, b in zip(found, plain, strict=True))


@pytest.mark.slow
def test_tensors_of_more_than_two_to_the_31_elements_are_addressed_right() -> None:
    num_tokens, width = 524300, 4100
    leaves = make((width, 4, 4), num_tokens, 1, with_state=False)
    assert leaves[0].numel() > 2**31
    y = short_conv_qkv(*leaves[:3], (leaves[3], leaves[4], leaves[5]))[0].q
    last, _ = short_conv_reference(leaves[0][:, -200:].float(), leaves[3], initial_state=leaves[0][:, -203:-200].float())
    assert relative_error(y[:, -200:], last) < 4e-3
    x = leaves[0].requires_grad_()
    (d_x,) = torch.autograd.grad(short_conv_qkv(x, *leaves[1:3], (leaves[3], leaves[4], leaves[5]))[0].q, x, torch.ones_like(y))
    end = leaves[0][:, -203:].detach().float().requires_grad_()
    out, _ = short_conv_reference(end, leaves[3])
    (wanted,) = torch.autograd.grad(out[:, 3:].sum(), end)
    assert relative_error(d_x[:, -200:], wanted[:, -200:]) < 4e-3
