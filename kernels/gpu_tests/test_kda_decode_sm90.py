# ruff: noqa: D103, INP001 - tests that travel with this folder
"""The decode kernel against the recurrence in float64: gates, documents, repeats, capture, states past 2^31 elements."""

import pytest
import torch
from cases import REGIMES, make_inputs, on_hopper, relative_error

from samite_kernels.kda import recurrent_kda

pytestmark = on_hopper


@pytest.fixture(autouse=True)
def forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAMITE_KERNELS_DECODE", "sm90")


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize(("batch", "num_tokens"), [(3, 1), (2, 33)])
def test_it_equals_the_recurrence_and_repeats_bitwise(monkeypatch: pytest.MonkeyPatch, regime: str, batch: int, num_tokens: int) -> None:
    inputs = make_inputs(num_tokens, 5, regime, batch=batch)
    start = torch.randn(batch, 5, 128, 128, device="cuda")
    o, state = recurrent_kda(**inputs, initial_state=start, output_final_state=True)
    for _ in range(19):
        again, same = recurrent_kda(**inputs, initial_state=start, output_final_state=True)
        assert torch.equal(o, again)
        assert same is not None
        assert torch.equal(state, same)
    monkeypatch.delenv("SAMITE_KERNELS_DECODE")
    exact = {name: x.double() for name, x in inputs.items()}
    wanted, last = recurrent_kda(**exact, initial_state=start.double(), output_final_state=True)
    assert last is not None
    assert relative_error(o, wanted) < 5e-3
    assert relative_error(state, last) < 1e-5


def test_documents_are_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, offsets = make_inputs(40, 2), torch.tensor([0, 0, 1, 4, 4, 40])
    start = torch.randn(5, 2, 128, 128, device="cuda")
    o, state = recurrent_kda(**inputs, cu_seqlens=offsets, initial_state=start, output_final_state=True)
    monkeypatch.delenv("SAMITE_KERNELS_DECODE")
    exact = {name: x.double() for name, x in inputs.items()}
    wanted, last = recurrent_kda(**exact, cu_seqlens=offsets, initial_state=start.double(), output_final_state=True)
    assert relative_error(o, wanted) < 5e-3
    assert relative_error(state, last) < 1e-5
    assert torch.equal(state[3], start[3])


def test_a_step_can_be_captured_in_a_graph() -> None:
    inputs, start = make_inputs(1, 4, batch=8), torch.randn(8, 4, 128, 128, device="cuda")
    wanted, _ = recurrent_kda(**inputs, initial_state=start)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o, _ = recurrent_kda(**inputs, initial_state=start)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(o, wanted)


@pytest.mark.slow
def test_states_of_more_than_two_to_the_31_elements_are_addressed_right() -> None:
    batch, num_heads = 2100, 64
    inputs = make_inputs(1, num_heads, batch=batch)
    start = torch.randn(batch, num_heads, 128, 128, device="cuda")
    assert start.numel() > 2**31
    o, state = recurrent_kda(**inputs, initial_state=start, output_final_state=True)
    end = {name: x[-2:] if x.dim() > 2 else x for name, x in inputs.items()}
    last, last_state = recurrent_kda(**end, initial_state=start[-2:], output_final_state=True)
    assert torch.equal(o[-2:], last)
    assert torch.equal(state[-2:], last_state)
