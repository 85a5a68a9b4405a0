# ruff: noqa: D103, INP001 - tests that travel with this folder
"""The forward cut into pieces, on the device: against float64, against the plain scan, documents, gradients, repeats, capture."""

import pytest
import torch
from cases import REGIMES, Results, exact, make_inputs, on_hopper, relative_error
from torch import Tensor

from samite_kernels.kda import chunk_kda
from samite_kernels.kda.documents import Documents
from samite_kernels.kda.sm90_pieces import VARIABLE, wanted_pieces

pytestmark = on_hopper


def forward(inputs: Results, documents: Documents, state: Tensor | None, monkeypatch: pytest.MonkeyPatch, *, pieces: bool) -> list[Tensor]:
    monkeypatch.setenv(VARIABLE, str(int(pieces)))
    found = wanted_pieces(documents, inputs["q"].shape[2], inputs["q"].device)
    assert (found is not None) == pieces
    o, last = chunk_kda(**inputs, cu_seqlens=torch.tensor(documents.offsets), initial_state=state, output_final_state=True)
    assert last is not None
    return [o, last]


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize(("num_heads", "offsets"), [(1, (0, 9000)), (4, (0, 0, 1, 30000, 30001, 64000, 64000)), (16, (0, 20001))])
def test_pieces_are_as_exact_as_the_scan(monkeypatch: pytest.MonkeyPatch, regime: str, num_heads: int, offsets: tuple[int, ...]) -> None:
    inputs, documents = make_inputs(offsets[-1], num_heads, regime), Documents(offsets)
    state = torch.randn(documents.count, num_heads, 128, 128, device="cuda")
    plain = forward(inputs, documents, state, monkeypatch, pieces=False)
    found = forward(inputs, documents, state, monkeypatch, pieces=True)
    # float64 one head at a time, to stay small.
    for head in range(0, num_heads, 5):
        part = {name: x[:, :, head : head + 1] for name, x in inputs.items() if x.dim() > 2}
        part |= {"A_log": inputs["A_log"][head : head + 1], "dt_bias": inputs["dt_bias"].view(-1, 128)[head]}
        o, last = exact(**part, documents=documents, initial_state=state[:, head : head + 1])
        for a, b, x in ((found[0][:, :, head], plain[0][:, :, head], o[:, :, 0]), (found[1][:, head], plain[1][:, head], last[:, 0])):
            assert relative_error(a, x) < 1.25 * relative_error(b, x) + 3e-4


def test_gradients_with_pieces_equal_those_without(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = make_inputs(64 * 400, 4, "init")
    d_o = torch.randn_like(inputs["v"])

    def gradients(pieces: int) -> list[Tensor]:
        monkeypatch.setenv(VARIABLE, str(pieces))
        leaves = {name: x.detach().requires_grad_() for name, x in inputs.items()}
        return list(torch.autograd.grad(chunk_kda(**leaves)[0], list(leaves.values()), d_o))

    for name, a, b in zip(inputs, gradients(1), gradients(0), strict=True):
        assert relative_error(a, b) < (2e-2 if name == "A_log" else 6e-3), name


def test_twenty_repeats_agree_bitwise_and_nothing_unwritten_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, documents = make_inputs(64 * 300 + 5, 4), Documents((0, 64 * 300 + 5))
    first = forward(inputs, documents, None, monkeypatch, pieces=True)
    for _ in range(19):
        poison = torch.full((1 << 28,), float("nan"), device="cuda")
        del poison
        again = forward(inputs, documents, None, monkeypatch, pieces=True)
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_the_future_never_changes_the_past(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "1")
    inputs = make_inputs(64 * 300, 4)
    o, _ = chunk_kda(**inputs)
    for name in ("q", "k", "v", "g", "beta"):
        edited = inputs | {name: inputs[name].clone()}
        edited[name][:, 64 * 200 + 9] += 1.0
        assert torch.equal(chunk_kda(**edited)[0][:, : 64 * 200 + 9], o[:, : 64 * 200 + 9]), name


def test_it_can_be_captured_in_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "1")
    inputs = make_inputs(64 * 300, 4)
    wanted = chunk_kda(**inputs)[0].clone()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found, _ = chunk_kda(**inputs)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(found, wanted)
