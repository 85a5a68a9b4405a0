# ruff: noqa: D103, INP001 - tests that travel with this folder
"""The block attention residual on the device against float64: values, gradients, adding in place, repeats, capture, size."""

import pytest
import torch
from cases import on_hopper, relative_error
from torch import Tensor

from samite_kernels.residual import attention_residual, attention_residual_reference, freeze

pytestmark = on_hopper


@pytest.fixture(autouse=True)
def forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAMITE_KERNELS_RESIDUAL", "sm90")


def make(num_tokens: int, width: int, count: int) -> list[Tensor]:
    """Query, norm weight, then the sources, of growing size as in a network."""
    generator = torch.Generator(device="cuda").manual_seed(2)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device="cuda")

    weights = [normal(width) / width**0.5, 1.0 + 0.1 * normal(width)]
    return weights + [((i + 1.0) * normal(num_tokens, width)).bfloat16() for i in range(count)]


def step(leaves: list[Tensor], *, normed: bool, exact: bool = False) -> list[Tensor]:
    leaves = [(x.double() if exact else x).detach().clone().requires_grad_() for x in leaves]
    query, weight, values = leaves[0], leaves[1] if normed else None, leaves[2:]
    y = attention_residual_reference(values, query, weight, 1e-5) if exact else attention_residual(values, query, norm_weight_D=weight)
    generator = torch.Generator(device="cuda").manual_seed(9)
    d_y = torch.randn(y.shape, generator=generator, device="cuda").bfloat16().to(y.dtype)
    return [y.detach(), *torch.autograd.grad(y, [x for x in leaves if normed or x is not leaves[1]], d_y)]


@pytest.mark.parametrize(
    ("num_tokens", "width", "count"), [(1, 8, 2), (700, 1024, 7), (1000, 7168, 9), (4000, 7168, 9), (500, 7168, 14), (333, 3592, 16)]
)
@pytest.mark.parametrize("normed", [True, False])
def test_values_and_gradients_are_right_and_repeat_bitwise(num_tokens: int, width: int, count: int, normed: bool) -> None:
    leaves = make(num_tokens, width, count)
    found, wanted = step(leaves, normed=normed), step(leaves, normed=normed, exact=True)
    for index, (a, b) in enumerate(zip(found, wanted, strict=True)):
        assert relative_error(a, b) < 5e-3, index
    for _ in range(19):
        assert all(torch.equal(a, b) for a, b in zip(found, step(leaves, normed=normed), strict=True))


def readers(leaves: list[Tensor], *, shared: bool) -> list[Tensor]:
    query, weight, *values = (x.detach().clone().requires_grad_() for x in leaves)
    made = [2.0 * v for v in values]
    blocks = [freeze(v) for v in made] if shared else made
    h = values[0]
    for part in range(3):
        h = h + attention_residual([*blocks, h], query * (part + 1.0), norm_weight_D=weight)
    h.float().square().sum().backward()
    return [x.grad for x in (query, weight, *values) if x.grad is not None]


def test_readers_of_frozen_blocks_add_in_place() -> None:
    leaves = make(300, 1024, 5)
    found, wanted = readers(leaves, shared=True), readers(leaves, shared=False)
    for index, (a, b) in enumerate(zip(found, wanted, strict=True)):
        assert relative_error(a, b) < 8e-3, index
    for _ in range(19):
        assert all(torch.equal(a, b) for a, b in zip(found, readers(leaves, shared=True), strict=True))


def test_it_can_be_captured_in_a_graph() -> None:
    leaves = [x.requires_grad_() for x in make(300, 1024, 4)]

    def run() -> tuple[Tensor, ...]:
        y = attention_residual(leaves[2:], leaves[0], norm_weight_D=leaves[1])
        return (y, *torch.autograd.grad(y, leaves, torch.ones_like(y)))

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        wanted = [x.clone() for x in run()]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        found = run()
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


@pytest.mark.slow
def test_sources_of_more_than_two_to_the_31_elements_are_addressed_right() -> None:
    num_tokens, width = 2**31 // 7168 + 2000, 7168
    query, weight = make(1, width, 1)[:2]
    values = [torch.zeros(num_tokens, width, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
    end = make(500, width, 2)[2:]
    for value, last in zip(values, end, strict=True):
        value[-500:] = last
    assert values[0].numel() > 2**31
    leaves = [v.requires_grad_() for v in values]
    y = attention_residual(leaves, query, norm_weight_D=weight)
    few = [v.requires_grad_() for v in end]
    wanted = attention_residual(few, query, norm_weight_D=weight)
    assert torch.equal(y[-500:], wanted)
    found = torch.autograd.grad(y[-500:].float().sum(), leaves)
    expected = torch.autograd.grad(wanted.float().sum(), few)
    assert all(torch.equal(a[-500:], b) for a, b in zip(found, expected, strict=True))
