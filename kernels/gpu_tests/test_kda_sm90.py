# ruff: noqa: D103, INP001 - tests that travel with this folder
"""The Hopper kernels against the float64 reference: values, every gradient, causality, documents, determinism, capture."""

from collections.abc import Callable

import pytest
import torch
from cases import INPUTS, REGIMES, Results, exact, make_inputs, on_hopper, relative_error, run
from torch import Tensor

from samite_kernels.kda import chunk_kda, explain, fold_segments, segment_map
from samite_kernels.kda.documents import Documents

pytestmark = on_hopper
_BAR = {"o": 6e-3, "state": 5e-3, "dh0": 5e-3, "dbeta": 1.5e-2, "dA_log": 6e-2}
_DEAD = {"floor": {"dg", "dA_log", "ddt_bias"}, "none": {"dA_log"}}
"""Gradients that vanish in a regime: their relative error says nothing."""


def check(inputs: Results, documents: Documents, regime: str, *, slack: float = 1.0) -> None:
    found, wanted = run(inputs, documents, backend="sm90"), run(inputs, documents, backend="exact")
    errors = {name: relative_error(found[name], wanted[name]) for name in wanted}
    for name, error in errors.items():
        if name in _DEAD.get(regime, set()):
            assert torch.isfinite(found[name]).all(), name
        else:
            assert error <= slack * _BAR.get(name, 8e-3), (name, errors)


def test_a_hopper_device_gets_our_kernels() -> None:
    inputs = make_inputs(16, 1)
    assert explain(inputs["q"], inputs["v"]).backend == "sm90"


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("num_tokens", [333, 1536])
def test_values_and_gradients_are_right_in_every_gate_regime(regime: str, num_tokens: int) -> None:
    check(make_inputs(num_tokens, 4, regime), Documents((0, num_tokens)), regime)


@pytest.mark.parametrize("num_tokens", [1, 2, 15, 16, 17, 31, 48, 63, 64, 65, 100, 127, 128, 129, 1000])
def test_any_length_works(num_tokens: int) -> None:
    check(make_inputs(num_tokens, 2), Documents((0, num_tokens)), "mixed", slack=5.0 if num_tokens < 64 else 2.0)


def test_documents_of_any_length_are_kept_apart() -> None:
    check(make_inputs(333, 3), Documents((0, 0, 1, 2, 100, 164, 164, 333, 333)), "mixed", slack=2.0)


def test_a_batch_is_a_set_of_documents() -> None:
    check(make_inputs(100, 2, batch=3), Documents((0, 100, 200, 300)), "mixed", slack=2.0)


@pytest.mark.slow
def test_segments_of_a_long_document_join() -> None:
    check(make_inputs(64 * 300 + 5, 1, "init"), Documents((0, 64 * 300 + 5)), "init", slack=2.0)


@pytest.mark.slow
def test_segments_of_many_documents_join() -> None:
    offsets = (0, 3000, 3001, 9000, 9000, 9100, 20000)
    check(make_inputs(20000, 1), Documents(offsets), "mixed", slack=2.0)


@pytest.mark.parametrize("offsets", [(0, 333), (0, 64 * 300 + 5), (0, 3000, 3001, 9000, 9000, 20000)])
def test_recomputing_the_states_changes_nothing(offsets: tuple[int, ...]) -> None:
    inputs, documents = make_inputs(offsets[-1], 2), Documents(offsets)
    kept, again = (run(inputs, documents, backend="sm90", recompute=recompute) for recompute in (False, True))
    for name, wanted in kept.items():
        # The factors of the backward are made by another kernel: equal but for the rounding of some.
        assert relative_error(again[name], wanted) < 1e-2, name


def test_the_future_never_changes_the_past() -> None:
    inputs = make_inputs(200, 2)
    o, _ = chunk_kda(**inputs)
    for name in ("q", "k", "v", "g", "beta"):
        edited = inputs | {name: inputs[name].clone()}
        edited[name][:, 150] += 1.0
        assert torch.equal(chunk_kda(**edited)[0][:, :150], o[:, :150]), name


def test_a_sequence_cut_between_chunks_equals_the_whole_bitwise() -> None:
    inputs = make_inputs(256, 2)
    whole, last = chunk_kda(**inputs, output_final_state=True)
    halves = [{name: x[:, piece] if x.dim() > 1 else x for name, x in inputs.items()} for piece in (slice(0, 128), slice(128, 256))]
    first, state = chunk_kda(**halves[0], output_final_state=True)
    second, end = chunk_kda(**halves[1], initial_state=state, output_final_state=True)
    assert torch.equal(torch.cat([first, second], 1), whole)
    assert last is not None
    assert end is not None
    assert torch.equal(end, last)


def test_segments_fold_to_the_state_of_the_whole() -> None:
    inputs = make_inputs(500, 2, "init")
    del inputs["q"]
    cut = [{name: x[:, piece] if x.dim() > 2 else x for name, x in inputs.items()} for piece in (slice(0, 200), slice(200, 500))]
    maps = [segment_map(**piece) for piece in cut]
    start = torch.randn(1, 2, 128, 128, device="cuda")
    folded = fold_segments(torch.stack([m for m, _ in maps]), torch.stack([b for _, b in maps]), start)
    _, wanted = exact(inputs["k"], **inputs, documents=Documents((0, 500)), initial_state=start)
    assert relative_error(folded, wanted) < 8e-3


def test_twenty_repeats_agree_bitwise() -> None:
    inputs = make_inputs(64 * 140, 2)
    documents = Documents((0, 64 * 140))
    first = run(inputs, documents, backend="sm90")
    for _ in range(19):
        again = run(inputs, documents, backend="sm90")
        assert all(torch.equal(first[name], again[name]) for name in first)


def test_a_thousand_seeds_at_the_floor_stay_finite() -> None:
    for seed in range(20):
        inputs = make_inputs(80, 1, "floor", batch=50, seed=seed)
        results = run(inputs, Documents(tuple(range(0, 80 * 51, 80))), backend="sm90")
        assert all(torch.isfinite(x).all() for x in results.values())


def test_nothing_is_read_that_was_not_written() -> None:
    inputs = make_inputs(333, 2)
    documents = Documents((0, 100, 333))
    before = run(inputs, documents, backend="sm90")
    poison = torch.full((1 << 28,), float("nan"), device="cuda")
    del poison
    after = run(inputs, documents, backend="sm90")
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_another_stream_is_respected() -> None:
    inputs = make_inputs(130, 2)
    wanted, _ = chunk_kda(**inputs)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        o, _ = chunk_kda(**inputs)
    torch.cuda.current_stream().wait_stream(stream)
    assert torch.equal(o, wanted)


@pytest.mark.parametrize("num_tokens", [130, 64 * 130])
def test_forward_and_backward_can_be_captured_in_a_graph(num_tokens: int) -> None:
    inputs = make_inputs(num_tokens, 2)
    leaves = {name: x.requires_grad_() for name, x in inputs.items()}
    d_o = torch.randn_like(inputs["v"])

    def step() -> tuple[Tensor, ...]:
        o, _ = chunk_kda(**leaves)
        return (o, *torch.autograd.grad(o, [leaves[name] for name in INPUTS], d_o))

    # All on one stream from the start: autograd remembers the stream on which it first met a leaf.
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        wanted = [x.clone() for x in step()]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        found = step()
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def _step(function: Callable[..., Tensor], inputs: Results) -> list[Tensor]:
    leaves = {name: x.detach().clone().requires_grad_() for name, x in inputs.items()}
    o = function(**leaves)
    o.float().square().sum().backward()
    return [o.detach(), *(leaf.grad for leaf in leaves.values() if leaf.grad is not None)]


def _o(**inputs: Tensor) -> Tensor:
    return chunk_kda(**inputs)[0]


def test_compiled_and_checkpointed_calls_equal_the_plain_one() -> None:
    inputs = make_inputs(130, 2)
    wanted = _step(_o, inputs)
    compiled = torch.compile(_o, backend="aot_eager", fullgraph=True)

    def checkpointed(**leaves: Tensor) -> Tensor:
        o: Tensor = torch.utils.checkpoint.checkpoint(lambda: _o(**leaves), use_reentrant=False)
        return o

    for function in (compiled, checkpointed):
        assert all(torch.equal(a, b) for a, b in zip(_step(function, inputs), wanted, strict=True))


@pytest.mark.slow
def test_tensors_of_more_than_two_to_the_31_elements_are_addressed_right() -> None:
    num_tokens, num_heads = 262144, 66
    inputs = make_inputs(num_tokens, num_heads)
    assert inputs["q"].numel() > 2**31
    o, _ = chunk_kda(**inputs)
    last = {name: x[:, :, -1:].contiguous() if x.dim() > 2 else x[-1:] if name == "A_log" else x[-128:] for name, x in inputs.items()}
    assert torch.equal(chunk_kda(**last)[0], o[:, :, -1:])
