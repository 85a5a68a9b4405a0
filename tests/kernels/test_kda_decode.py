"""The decode kernel in emulation against the recurrence in float64: documents, states, gates, and when it is refused."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from samite_kernels.kda import explain_decode, recurrent_kda

HEADS = 2


@pytest.fixture
def forced(emulation: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    monkeypatch.setenv("SAMITE_KERNELS_DECODE", "sm90")
    return emulation


def make(batch: int, length: int, *, center: float = 0.0, spread: float = 3.0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(5)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    shape = (batch, length, HEADS, 128)
    inputs = {name: normal(*shape).bfloat16() for name in ("q", "k", "v")}
    inputs |= {"g": (center + spread * normal(*shape)).bfloat16(), "beta": normal(*shape[:3]).bfloat16()}
    return inputs | {"A_log": 0.1 * normal(HEADS), "dt_bias": 0.1 * normal(HEADS * 128)}


def relative_error(found: Tensor, wanted: Tensor) -> float:
    assert torch.isfinite(found).all()
    return float((found.double() - wanted).norm() / wanted.norm())


@pytest.mark.parametrize(("center", "spread"), [(0.0, 3.0), (60.0, 0.0), (-60.0, 0.0), (-4.0, 1.0)])
@pytest.mark.parametrize("length", [1, 5])
def test_a_batch_of_tokens_equals_the_recurrence(
    forced: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch, length: int, center: float, spread: float
) -> None:
    inputs = make(2, length, center=center, spread=spread)
    start = torch.randn(2, HEADS, 128, 128, generator=torch.Generator().manual_seed(1))
    o, state = recurrent_kda(**inputs, initial_state=start, output_final_state=True)
    forced(True)
    again, same = recurrent_kda(**inputs, initial_state=start, output_final_state=True)
    assert torch.equal(o, again)
    assert torch.equal(state, same)
    monkeypatch.delenv("SAMITE_KERNELS_DECODE")
    exact = {name: x.double() for name, x in inputs.items()}
    wanted, last = recurrent_kda(**exact, initial_state=start.double(), output_final_state=True)
    assert relative_error(o, wanted) < 4e-3
    assert relative_error(state, last) < 1e-5


def test_packed_documents_are_kept_apart_and_empty_ones_pass_their_state(
    forced: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs, offsets = make(1, 7), torch.tensor([0, 0, 1, 4, 4, 7])
    start = torch.randn(5, HEADS, 128, 128, generator=torch.Generator().manual_seed(1))
    o, state = recurrent_kda(**inputs, cu_seqlens=offsets, initial_state=start, output_final_state=True)
    fresh, _ = recurrent_kda(**inputs, cu_seqlens=offsets)
    monkeypatch.delenv("SAMITE_KERNELS_DECODE")
    exact = {name: x.double() for name, x in inputs.items()}
    wanted, last = recurrent_kda(**exact, cu_seqlens=offsets, initial_state=start.double(), output_final_state=True)
    assert relative_error(o, wanted) < 4e-3
    assert relative_error(state, last) < 1e-5
    assert torch.equal(state[0], start[0])
    assert torch.equal(state[3], start[3])
    assert relative_error(fresh, recurrent_kda(**exact, cu_seqlens=offsets)[0]) < 4e-3


def test_steps_of_one_token_equal_one_call_bitwise(forced: Callable[[bool], None]) -> None:
    inputs = make(1, 4)
    whole, last = recurrent_kda(**inputs, output_final_state=True)
    state: Tensor | None = None
    for t in range(4):
        step = {name: x[:, t : t + 1] if x.dim() > 1 else x for name, x in inputs.items()}
        o, state = recurrent_kda(**step, initial_state=state, output_final_state=True)
        assert torch.equal(o, whole[:, t : t + 1])
    assert torch.equal(state, last)


def test_a_compiled_step_equals_the_plain_one(forced: Callable[[bool], None]) -> None:
    inputs = make(1, 1)
    compiled = torch.compile(lambda **x: recurrent_kda(**x, output_final_state=True), backend="aot_eager", fullgraph=True)
    for a, b in zip(compiled(**inputs), recurrent_kda(**inputs, output_final_state=True), strict=True):
        assert torch.equal(a, b)


def test_it_runs_where_it_can_and_refuses_gradients(emulation: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = make(1, 1)
    assert explain_decode(inputs["q"], inputs["v"]).backend == "sm90"
    monkeypatch.setenv("SAMITE_KERNELS_DECODE", "sm90")
    inputs["q"].requires_grad_()
    with pytest.raises(ValueError, match="a gradient is asked for, it has none"):
        recurrent_kda(**inputs)
    with pytest.raises(ValueError, match=r"q is torch\.float32"):
        recurrent_kda(**{name: x.detach().float() for name, x in inputs.items()})
