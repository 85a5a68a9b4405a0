"""The convolutions of q, k and v as one operator: the CUDA kernel in emulation against plain torch in float64."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from samite_kernels.conv import explain_qkv, short_conv_qkv, short_conv_reference

OFFSETS = (0, 1, 1, 3, 260, 515, 516, 800)
WIDTHS = (12, 516, 8)


def relative_error(found: Tensor, wanted: Tensor) -> float:
    assert torch.isfinite(found).all()
    return float((found.detach().double() - wanted.detach()).norm() / wanted.detach().norm().clamp(min=1e-30))


def inputs(*, batch: int, length: int, documents: int, with_state: bool) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    streams = [normal(batch, length, width).bfloat16() for width in WIDTHS]
    taps = [normal(width, 1, 4) for width in WIDTHS]
    return streams + taps + ([normal(documents, 3, width).bfloat16() for width in WIDTHS] if with_state else [])


def results(leaves: list[Tensor], offsets: Tensor | None, *, exact: bool, activation: bool = True) -> list[Tensor]:
    leaves = [(x.double() if exact else x).detach().clone().requires_grad_() for x in leaves]
    streams, taps, states = leaves[:3], leaves[3:6], leaves[6:] or None
    if exact:
        pairs = [
            short_conv_reference(
                x,
                weight,
                cu_seqlens=offsets,
                initial_state=None if states is None else states[i],
                output_final_state=True,
                activation=activation,
            )
            for i, (x, weight) in enumerate(zip(streams, taps, strict=True))
        ]
        y, last = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    else:
        y, last = short_conv_qkv(
            *streams, tuple(taps), cu_seqlens=offsets, initial_states=states, output_final_states=True, activation=activation
        )
    generator = torch.Generator().manual_seed(7)
    outputs = [*y, *last]
    weights = [torch.randn(x.shape, generator=generator).bfloat16().to(x.dtype) for x in outputs]
    return [*(x.detach() for x in outputs), *torch.autograd.grad(outputs, leaves, weights)]


@pytest.fixture
def forced(emulation: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    monkeypatch.setenv("SAMITE_KERNELS_CONV", "sm90")
    return emulation


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("with_state", [True, False])
def test_the_kernel_is_right_for_documents_batches_and_halos(forced: Callable[[bool], None], packed: bool, with_state: bool) -> None:
    offsets = torch.tensor(OFFSETS) if packed else None
    leaves = inputs(batch=1 if packed else 3, length=800 if packed else 259, documents=7 if packed else 3, with_state=with_state)
    found, wanted = results(leaves, offsets, exact=False), results(leaves, offsets, exact=True)
    for index, (a, b) in enumerate(zip(found, wanted, strict=True)):
        assert relative_error(a, b) < 4e-3, index
    forced(True)
    assert all(torch.equal(a, b) for a, b in zip(found, results(leaves, offsets, exact=False), strict=True))


@pytest.mark.parametrize("length", [1, 2, 3, 4, 7, 8, 9, 255, 256, 257])
def test_the_kernel_is_right_at_any_length_without_activation(forced: Callable[[bool], None], length: int) -> None:
    leaves = inputs(batch=1, length=length, documents=1, with_state=True)
    found, wanted = (results(leaves, None, exact=exact, activation=False) for exact in (False, True))
    for index, (a, b) in enumerate(zip(found, wanted, strict=True)):
        assert relative_error(a, b) < 5e-3, index


def test_views_of_one_projection_are_read_where_they_are(forced: Callable[[bool], None]) -> None:
    projection = torch.randn(1, 40, 48).bfloat16()
    taps = (torch.randn(16, 4), torch.randn(16, 4), torch.randn(16, 4))
    views = projection.chunk(3, -1)
    assert not views[1].is_contiguous()
    found, _ = short_conv_qkv(*views, taps)
    wanted, _ = short_conv_qkv(*(x.contiguous() for x in views), taps)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_a_compiled_call_equals_the_plain_one(forced: Callable[[bool], None]) -> None:
    leaves = [x.requires_grad_() for x in inputs(batch=1, length=70, documents=1, with_state=False)]

    def loss(*x: Tensor) -> Tensor:
        y, _ = short_conv_qkv(*x[:3], tuple(x[3:]))
        return sum(part.float().square().sum() for part in y)

    wanted = torch.autograd.grad(loss(*leaves), leaves)
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    found = torch.autograd.grad(compiled(*leaves), leaves)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_the_kernel_runs_where_it_can_and_says_why_not(emulation: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch) -> None:
    parts = inputs(batch=1, length=8, documents=1, with_state=False)
    assert explain_qkv(*parts[:3], tuple(parts[3:])).backend == "sm90"
    choice = explain_qkv(*(x.float() for x in parts[:3]), tuple(parts[3:]))
    assert choice.backend == "separate"
    assert "q is torch.float32" in str(choice)
    monkeypatch.setenv("SAMITE_KERNELS_CONV", "sm90")
    with pytest.raises(ValueError, match=r"q is torch\.float32, it needs bfloat16"):
        explain_qkv(*(x.float() for x in parts[:3]), tuple(parts[3:]))
    monkeypatch.delenv("SAMITE_KERNELS_EMULATION")
    with pytest.raises(ValueError, match="the tensors are on cpu, it needs a Hopper GPU"):
        short_conv_qkv(*parts[:3], tuple(parts[3:]))


def test_streams_of_different_lengths_are_refused() -> None:
    q = torch.randn(1, 4, 8)
    with pytest.raises(ValueError, match=r"must have the same \[B, T\]"):
        short_conv_qkv(q, q[:, :3], q, (torch.randn(8, 4),) * 3)
