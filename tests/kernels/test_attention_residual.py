"""The block attention residual: its kernel in emulation against float64, one gradient buffer per block, compiled code, refusals."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from samite_kernels.residual import attention_residual, attention_residual_reference, explain_residual, freeze
from samite_kernels.residual.sm90 import size_obstacle


@pytest.fixture
def forced(emulation: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    monkeypatch.setenv("SAMITE_KERNELS_RESIDUAL", "sm90")
    return emulation


def make(num_tokens: int, width: int, count: int, *, normed: bool) -> list[Tensor]:
    """Query, norm weight if wanted, then the sources."""
    generator = torch.Generator().manual_seed(2)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    weights = [normal(width) / width**0.5] + ([1.0 + 0.1 * normal(width)] if normed else [])
    return weights + [((i + 1.0) * normal(num_tokens, width)).bfloat16() for i in range(count)]


def attention_residual_of(values: list[Tensor], query: Tensor, norm_weight: Tensor | None, eps: float) -> Tensor:
    return attention_residual(values, query, norm_weight_D=norm_weight, eps=eps)


def step(leaves: list[Tensor], *, normed: bool, exact: bool) -> list[Tensor]:
    leaves = [(x.double() if exact else x).detach().clone().requires_grad_() for x in leaves]
    query, norm_weight, values = leaves[0], leaves[1] if normed else None, leaves[2 if normed else 1 :]
    mix = attention_residual_reference if exact else attention_residual_of
    y = mix(values, query, norm_weight, 1e-5)
    d_y = torch.randn(y.shape, generator=torch.Generator().manual_seed(9)).bfloat16().to(y.dtype)
    return [y.detach(), *torch.autograd.grad(y, leaves, d_y)]


def relative_error(found: Tensor, wanted: Tensor) -> float:
    assert torch.isfinite(found).all()
    return float((found.double() - wanted).norm() / wanted.norm())


@pytest.mark.parametrize(("num_tokens", "width", "count"), [(1, 8, 1), (7, 520, 9), (13, 64, 4), (5, 1032, 16)])
@pytest.mark.parametrize("normed", [True, False])
def test_values_and_gradients_are_right(forced: Callable[[bool], None], num_tokens: int, width: int, count: int, normed: bool) -> None:
    leaves = make(num_tokens, width, count, normed=normed)
    found, wanted = step(leaves, normed=normed, exact=False), step(leaves, normed=normed, exact=True)
    for index, (a, b) in enumerate(zip(found, wanted, strict=True)):
        alone = count == 1 and index == 1  # a query with nothing to choose from has no gradient
        assert alone or relative_error(a, b) < 4e-3, index
    forced(True)
    assert all(torch.equal(a, b) for a, b in zip(found, step(leaves, normed=normed, exact=False), strict=True))


@pytest.mark.slow
def test_the_widest_rows_fit(forced: Callable[[bool], None]) -> None:
    leaves = make(4, 7168, 9, normed=True)
    found, wanted = step(leaves, normed=True, exact=False), step(leaves, normed=True, exact=True)
    for index, (a, b) in enumerate(zip(found, wanted, strict=True)):
        assert relative_error(a, b) < 4e-3, index


def two_readers(leaves: list[Tensor], *, shared: bool) -> list[Tensor]:
    query, norm_weight, first, second, partial = (x.detach().clone().requires_grad_() for x in leaves)
    made = [first * 2.0, second * 3.0]
    blocks = [freeze(x) for x in made] if shared else made
    h = attention_residual([*blocks, partial], query, norm_weight_D=norm_weight)
    again = attention_residual([*blocks, partial + h], query * 0.5, norm_weight_D=norm_weight)
    third = attention_residual([blocks[0], again], query)
    direct = (blocks[1].value_TD if shared else made[1]).float().square().sum()
    (third.float().square().sum() + direct).backward()
    return [x.grad for x in (query, norm_weight, first, second, partial)]


@pytest.mark.parametrize("backend", ["sm90", "reference"])
def test_readers_of_a_frozen_block_add_to_one_gradient(
    emulation: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    monkeypatch.setenv("SAMITE_KERNELS_RESIDUAL", backend)
    leaves = make(6, 72, 3, normed=True)
    found, wanted = two_readers(leaves, shared=True), two_readers(leaves, shared=False)
    for index, (a, b) in enumerate(zip(found, wanted, strict=True)):
        assert relative_error(a, b.double()) < 6e-3, index
    assert all(torch.equal(a, b) for a, b in zip(found, two_readers(leaves, shared=True), strict=True))


def test_in_double_precision_the_common_buffer_changes_nothing() -> None:
    leaves = [x.double() for x in make(6, 24, 3, normed=True)]
    for a, b in zip(two_readers(leaves, shared=True), two_readers(leaves, shared=False), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


def test_the_reference_passes_gradcheck() -> None:
    query, weight, *values = (x.double().requires_grad_() for x in make(3, 8, 3, normed=True))

    def mix(q: Tensor, w: Tensor, *v: Tensor) -> Tensor:
        return attention_residual(v, q, norm_weight_D=w)

    assert torch.autograd.gradcheck(mix, (query, weight, *values))


def test_a_zero_query_gives_the_mean_and_one_source_itself(forced: Callable[[bool], None]) -> None:
    _, *values = make(5, 40, 3, normed=False)
    mean = torch.stack([v.float() for v in values]).mean(0)
    torch.testing.assert_close(attention_residual(values, torch.zeros(40)).float(), mean, rtol=8e-3, atol=1e-3)
    assert torch.equal(attention_residual(values[:1], torch.ones(40)), values[0])


def test_sources_at_odd_addresses_are_read_right(forced: Callable[[bool], None]) -> None:
    query, *values = make(5, 40, 3, normed=False)
    shifted = [torch.cat([v.new_zeros(1), v.flatten()])[1:].view(v.shape) for v in values]
    assert shifted[0].data_ptr() % 16
    assert torch.equal(attention_residual(shifted, query), attention_residual(values, query))


def test_a_compiled_call_equals_the_plain_one(forced: Callable[[bool], None]) -> None:
    leaves = [x.requires_grad_() for x in make(5, 40, 3, normed=True)]

    def loss(*x: Tensor) -> Tensor:
        return attention_residual(x[2:], x[0], norm_weight_D=x[1]).float().square().sum()

    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    found, wanted = (torch.autograd.grad(f(*leaves), leaves) for f in (compiled, loss))
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_wrong_inputs_are_named(emulation: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch) -> None:
    query, *values = make(3, 16, 2, normed=False)
    monkeypatch.delenv("SAMITE_KERNELS_RESIDUAL", raising=False)
    assert explain_residual(values).backend == "sm90"
    assert "it needs bfloat16" in str(explain_residual([v.float() for v in values]))
    with pytest.raises(ValueError, match=r"of one shape \[T, D\]"):
        attention_residual([values[0], values[1][:2]], query)
    with pytest.raises(ValueError, match=r"query must have shape \[16\], found \[8\]"):
        attention_residual(values, query[:8])
    assert size_obstacle(14, 7168) is None
    assert size_obstacle(15, 7168) == "there are 15 sources, it needs at most 14 at width 7168"
    monkeypatch.setenv("SAMITE_KERNELS_RESIDUAL", "sm90")
    with pytest.raises(ValueError, match=r"torch\.float32, it needs bfloat16"):
        attention_residual([v.float() for v in values], query)
