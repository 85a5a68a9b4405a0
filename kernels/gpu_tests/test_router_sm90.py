# ruff: noqa: D103, INP001 - tests that travel with this folder
"""The router kernels against plain torch on the same device: choice, weights, gradient, counts, repeats, capture, size."""

import pytest
import torch
from cases import on_hopper, relative_error
from torch import Tensor

from samite_kernels.router import count_margins, count_margins_reference, route, route_reference

pytestmark = on_hopper


@pytest.fixture(autouse=True)
def forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAMITE_KERNELS_ROUTER", "sm90")


def make(num_tokens: int, num_experts: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator(device="cuda").manual_seed(seed)
    logits = 1.5 * torch.randn(num_tokens, num_experts, generator=generator, device="cuda")
    return logits, 0.1 * torch.randn(num_experts, generator=generator, device="cuda")


@pytest.mark.parametrize(("num_tokens", "num_experts", "top_k"), [(1, 128, 8), (4099, 896, 16), (1000, 1024, 31), (777, 256, 8)])
def test_the_choice_is_that_of_torch_and_repeats_bitwise(num_tokens: int, num_experts: int, top_k: int) -> None:
    logits, bias = make(num_tokens, num_experts)
    found = route(logits, bias, top_k=top_k, scaling_factor=2.5)
    chosen, weight, threshold = route_reference(logits, bias, top_k=top_k, scaling_factor=2.5)
    biased = logits.sigmoid() + bias
    # Only experts with equal biased scores may change places.
    assert torch.equal(biased.gather(1, found.chosen_TK), biased.gather(1, chosen))
    assert float((found.chosen_TK == chosen).float().mean()) > 0.999
    # Those that did have other weights, as the bias takes part in the choice alone.
    picked = logits.sigmoid().gather(1, found.chosen_TK)
    torch.testing.assert_close(found.weight_TK, 2.5 * picked / picked.sum(-1, keepdim=True), rtol=2e-6, atol=0)
    torch.testing.assert_close(found.weight_TK.sum(-1), weight.sum(-1), rtol=2e-6, atol=0)
    torch.testing.assert_close(found.threshold_T, threshold, rtol=2e-7, atol=0)
    for _ in range(19):
        again = route(logits, bias, top_k=top_k, scaling_factor=2.5)
        assert all(torch.equal(a, b) for a, b in zip(found, again, strict=True))


def test_the_gradient_equals_double_precision() -> None:
    logits, bias = make(4099, 896)
    d_weight = torch.randn(4099, 16, device="cuda")
    logits.requires_grad_()
    routes = route(logits, bias, top_k=16)
    (found,) = torch.autograd.grad(routes.weight_TK, logits, d_weight)
    exact = logits.detach().double().requires_grad_()
    picked = exact.sigmoid().gather(1, routes.chosen_TK)
    (wanted,) = torch.autograd.grad(picked / picked.sum(-1, keepdim=True), exact, d_weight.double())
    assert relative_error(found, wanted) < 1e-6


@pytest.mark.parametrize("num_tokens", [1, 300, 65536, 200_000])
def test_counts_equal_those_of_torch_and_repeat_bitwise(num_tokens: int) -> None:
    logits, bias = make(num_tokens, 896)
    padding = torch.arange(num_tokens, device="cuda") % 11 == 3
    routes = route(logits, bias, top_k=16)

    def counted() -> Tensor:
        counts = torch.zeros(896, 1001, dtype=torch.int32, device="cuda")
        count_margins(logits, bias, routes.threshold_T, routes.chosen_TK, counts, is_padding_T=padding)
        return counts

    found, wanted = counted(), torch.zeros(896, 1001, dtype=torch.int32, device="cuda")
    for piece in torch.arange(num_tokens, device="cuda").split(16384):
        count_margins_reference(logits[piece], bias, routes.threshold_T[piece], routes.chosen_TK[piece], wanted, padding[piece])
    assert torch.equal(found[:, -1], wanted[:, -1])
    assert int(found[:, :-1].sum()) == 896 * int((~padding).sum())
    # One margin in ten thousand may round into the bin beside, and is then missed in one and found in the other.
    assert int((found - wanted).abs().sum()) <= 2 * (896 * num_tokens // 10000 + 1)
    for _ in range(19):
        assert torch.equal(found, counted())


def test_it_can_be_captured_in_a_graph() -> None:
    logits, bias = make(1000, 896)
    counts = torch.zeros(896, 1001, dtype=torch.int32, device="cuda")

    def run() -> Tensor:
        routes = route(logits, bias, top_k=16)
        count_margins(logits, bias, routes.threshold_T, routes.chosen_TK, counts)
        return routes.weight_TK

    wanted = run().clone()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = run()
    counts.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(found, wanted)
    assert int(counts[:, -1].sum()) == 16000


@pytest.mark.slow
def test_logits_of_more_than_two_to_the_31_elements_are_addressed_right() -> None:
    num_tokens = 2**31 // 896 + 5000
    logits, bias = torch.zeros(num_tokens, 896, device="cuda"), make(1, 896)[1]
    logits[-3000:] = make(3000, 896)[0]
    assert logits.numel() > 2**31
    routes, end = route(logits, bias, top_k=16), route(logits[-3000:].clone(), bias, top_k=16)
    assert torch.equal(routes.chosen_TK[-3000:], end.chosen_TK)
    counts = torch.zeros(896, 1001, dtype=torch.int32, device="cuda")
    count_margins(logits, bias, routes.threshold_T, routes.chosen_TK, counts)
    assert counts[:, :-1].sum(-1).unique().tolist() == [num_tokens]
