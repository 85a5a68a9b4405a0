"""The router: plain torch against its definition, the CUDA kernels in emulation against plain torch, ties, padding, counts."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from samite_kernels.router import count_margins, explain_route, route
from samite_kernels.router.sm90 import num_segments_of


@pytest.fixture
def forced(emulation: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    monkeypatch.setenv("SAMITE_KERNELS_ROUTER", "sm90")
    return emulation


def inputs(num_tokens: int, num_experts: int, *, spread: float = 1.5, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = spread * torch.randn(num_tokens, num_experts, generator=generator)
    return logits, 0.1 * torch.randn(num_experts, generator=generator)


def counts_for(num_experts: int, num_bins: int) -> Tensor:
    return torch.zeros(num_experts, num_bins + 1, dtype=torch.int32)


def test_the_definition_for_one_token_written_out() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0, -3.0]], dtype=torch.float64)
    bias = torch.tensor([0.5, 0.0, 0.0, 0.0], dtype=torch.float64)
    routes = route(logits, bias, top_k=2, scaling_factor=2.0)
    score = logits.sigmoid()[0]
    assert routes.chosen_TK.tolist() == [[0, 1]]
    torch.testing.assert_close(routes.weight_TK[0], 2.0 * score[:2] / score[:2].sum())
    torch.testing.assert_close(routes.threshold_T[0], score[2])


def test_the_weight_gradient_in_double_precision_passes_gradcheck() -> None:
    logits = torch.randn(3, 7, dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(7, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: route(x, bias, top_k=3).weight_TK, logits)


@pytest.mark.parametrize(("num_tokens", "num_experts", "top_k"), [(1, 128, 8), (37, 896, 16), (9, 1024, 31), (18, 256, 1)])
def test_choice_weights_and_threshold_equal_the_reference(
    forced: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch, num_tokens: int, num_experts: int, top_k: int
) -> None:
    logits, bias = inputs(num_tokens, num_experts)
    found = route(logits, bias, top_k=top_k, scaling_factor=2.5)
    monkeypatch.setenv("SAMITE_KERNELS_ROUTER", "reference")
    wanted = route(logits, bias, top_k=top_k, scaling_factor=2.5)
    assert torch.equal(found.chosen_TK, wanted.chosen_TK)
    torch.testing.assert_close(found.weight_TK, wanted.weight_TK, rtol=1e-6, atol=0)
    torch.testing.assert_close(found.threshold_T, wanted.threshold_T, rtol=1e-6, atol=0)


@pytest.mark.parametrize(("num_experts", "top_k"), [(896, 16), (128, 8)])
def test_the_gradient_equals_the_reference_in_double_precision(forced: Callable[[bool], None], num_experts: int, top_k: int) -> None:
    logits, bias = inputs(21, num_experts)
    weight = torch.randn(21, top_k)
    logits.requires_grad_()
    routes = route(logits, bias, top_k=top_k, scaling_factor=2.5)
    (found,) = torch.autograd.grad(routes.weight_TK, logits, weight)
    exact = logits.detach().double().requires_grad_()
    picked = exact.sigmoid().gather(1, routes.chosen_TK)
    (wanted,) = torch.autograd.grad(2.5 * picked / picked.sum(-1, keepdim=True), exact, weight.double())
    torch.testing.assert_close(found, wanted.float(), rtol=1e-5, atol=1e-7)
    assert int((found != 0).sum()) <= 21 * top_k


@pytest.mark.parametrize(("num_tokens", "num_bins"), [(1, 1000), (777, 1000), (300, 7), (65, 3000)])
@pytest.mark.parametrize("padded", [False, True])
def test_counts_equal_the_reference_but_for_margins_on_an_edge(
    forced: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch, num_tokens: int, num_bins: int, padded: bool
) -> None:
    logits, bias = inputs(num_tokens, 128)
    padding = (torch.arange(num_tokens) % 5 == 3) if padded else None
    routes = route(logits, bias, top_k=8)
    found = counts_for(128, num_bins)
    for _ in range(2):
        count_margins(logits, bias, routes.threshold_T, routes.chosen_TK, found, is_padding_T=padding)
    monkeypatch.setenv("SAMITE_KERNELS_ROUTER", "reference")
    wanted = counts_for(128, num_bins)
    for _ in range(2):
        count_margins(logits, bias, routes.threshold_T, routes.chosen_TK, wanted, is_padding_T=padding)
    real = 2 * (num_tokens if padding is None else int((~padding).sum()))
    assert torch.equal(found[:, -1], wanted[:, -1])
    assert found[:, :-1].sum(-1).tolist() == [real] * 128
    # Exponentials of two libraries may differ in the last bit, which moves a margin on an edge by one bin.
    assert int((found - wanted).abs().sum()) <= 2 + real * 128 // 1000
    assert int((found.cumsum(-1) - wanted.cumsum(-1))[:, :-1].abs().max()) <= 2 + real // 50


def test_counts_do_not_depend_on_the_order_of_threads_or_shards(forced: Callable[[bool], None]) -> None:
    logits, bias = inputs(600, 128)
    routes = route(logits, bias, top_k=8)

    def counted(*pieces: slice) -> Tensor:
        counts = counts_for(128, 50)
        for piece in pieces:
            count_margins(logits[piece], bias, routes.threshold_T[piece], routes.chosen_TK[piece], counts)
        return counts

    whole = counted(slice(None))
    forced(True)
    assert torch.equal(whole, counted(slice(None)))
    assert torch.equal(whole, counted(slice(0, 1), slice(1, 257), slice(257, 600)))
    assert torch.equal(routes.chosen_TK, route(logits, bias, top_k=8).chosen_TK)


def test_equal_scores_go_to_the_lowest_experts(forced: Callable[[bool], None]) -> None:
    routes = route(torch.zeros(3, 256), torch.zeros(256), top_k=16)
    assert routes.chosen_TK.tolist() == [list(range(16))] * 3
    logits = torch.full((1, 256), -1.0)
    logits[0, 200::3] = 4.0
    assert route(logits, torch.zeros(256), top_k=5).chosen_TK.tolist() == [[200, 203, 206, 209, 212]]
    saturated = route(torch.full((2, 128), 90.0), torch.zeros(128), top_k=4)
    assert saturated.chosen_TK.tolist() == [[0, 1, 2, 3]] * 2
    assert saturated.threshold_T.tolist() == [1.0, 1.0]


def test_negative_biased_scores_are_ordered_right(forced: Callable[[bool], None]) -> None:
    logits, bias = inputs(5, 128)
    routes = route(logits, bias - 3.0, top_k=8)
    wanted = (logits.sigmoid() + (bias - 3.0)).topk(9, -1)
    assert torch.equal(routes.chosen_TK, wanted.indices[:, :8])
    torch.testing.assert_close(routes.threshold_T, wanted.values[:, 8], rtol=1e-6, atol=0)


def test_a_compiled_call_equals_the_plain_one(forced: Callable[[bool], None]) -> None:
    logits, bias = inputs(10, 128)
    logits.requires_grad_()

    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        routes = route(x, bias, top_k=8)
        counts = counts_for(128, 20)
        count_margins(x, bias, routes.threshold_T, routes.chosen_TK, counts)
        return routes.weight_TK, counts

    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    for a, b in zip(compiled(logits), step(logits), strict=True):
        assert torch.equal(a, b)
    found, wanted = (torch.autograd.grad(f(logits)[0].square().sum(), logits)[0] for f in (compiled, step))
    assert torch.equal(found, wanted)


def test_a_segment_never_holds_more_tokens_than_its_counters_can() -> None:
    device = torch.device("cpu")
    for num_tokens in (0, 1, 255, 65535, 65536, 10**6, 10**7):
        segments = num_segments_of(num_tokens, 896, device)
        assert segments >= 1
        assert -(-num_tokens // segments) <= 65535


def test_wrong_inputs_are_named(emulation: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch) -> None:
    logits, bias = inputs(4, 128)
    assert explain_route(logits, top_k=4).backend == "sm90"
    with pytest.raises(ValueError, match=r"bias \[E\], found"):
        route(logits, bias[:5], top_k=2)
    with pytest.raises(ValueError, match=r"top_k must lie in \[1, 127\]"):
        route(logits, bias, top_k=128)
    with pytest.raises(ValueError, match="counts must be int32"):
        count_margins(logits, bias, logits[:, 0], torch.zeros(4, 2, dtype=torch.int64), torch.zeros(128, 3))
    monkeypatch.setenv("SAMITE_KERNELS_ROUTER", "sm90")
    with pytest.raises(ValueError, match="100 experts, it needs a multiple of 128"):
        route(logits[:, :100], bias[:100], top_k=2)
    with pytest.raises(ValueError, match=r"the logits are torch\.float64"):
        route(logits.double(), bias.double(), top_k=2)
    monkeypatch.setenv("SAMITE_KERNELS_ROUTER", "fast")
    with pytest.raises(ValueError, match="must be one of sm90, reference, found 'fast'"):
        route(logits, bias, top_k=2)


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("counts_EB1", torch.zeros(11, 4, dtype=torch.int32).T, "counts must be contiguous"),
        ("counts_EB1", torch.zeros(4, 11), "counts must be int32"),
        ("threshold_T", torch.zeros(6), r"threshold must have shape \[5\]"),
        ("chosen_TK", torch.zeros(4, 2, dtype=torch.int64), r"chosen must have shape \[5, 2\]"),
        ("chosen_TK", torch.zeros(5, 2, dtype=torch.int32), "chosen must be int64"),
        ("is_padding_T", torch.zeros(4, dtype=torch.bool), r"is_padding must have shape \[5\]"),
        ("bias_E", torch.empty(4, device="meta"), "bias must be on cpu like logits, found meta"),
        ("threshold_T", torch.empty(5, device="meta"), "threshold must be on cpu like logits, found meta"),
    ],
)
def test_what_does_not_fit_the_logits_is_named_before_anything_is_counted(name: str, wrong: Tensor, message: str) -> None:
    logits, bias = inputs(5, 4)
    given = {
        "bias_E": bias,
        "threshold_T": torch.zeros(5),
        "chosen_TK": torch.zeros(5, 2, dtype=torch.int64),
        "counts_EB1": counts_for(4, 10),
    }
    with pytest.raises(ValueError, match=message):
        count_margins(logits, **(given | {name: wrong}))
