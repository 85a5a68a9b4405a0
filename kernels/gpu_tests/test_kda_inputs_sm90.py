# ruff: noqa: D103, INP001 - tests that travel with this folder
"""What a caller may hand over on a GPU and what not: illegal offsets, types, strides, addresses, devices, streams, sizes past 2^31."""

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from cases import INPUTS, Results, make_inputs, on_hopper
from torch import Tensor

from samite_kernels.conv import short_conv, short_conv_qkv
from samite_kernels.kda import chunk_kda, counted_chunk_kda, recurrent_kda, segment_map

pytestmark = on_hopper
T = 200
ILLEGAL = {
    "falling": [0, 120, 80, T],
    "negative": [0, -1, T],
    "not from zero": [4, T],
    "short": [0, 80, 120],
    "long": [0, 80, T + 1],
    "past the end inside": [0, T + 64, T],
    "far past the end": [0, 2**31 - 1],
    "single": [0],
    "empty": [],
}


def gradients(inputs: Results, d_o: Tensor, **options: object) -> list[Tensor]:
    leaves = {name: x.detach().requires_grad_() for name, x in inputs.items()}
    o, _ = chunk_kda(**leaves, **options)
    return [o.detach(), *torch.autograd.grad(o, [leaves[name] for name in INPUTS], d_o)]


def same(found: list[Tensor], wanted: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize("place", ["cpu", "cuda"])
@pytest.mark.parametrize("case", list(ILLEGAL))
def test_illegal_offsets_are_refused_and_the_device_stays_usable(case: str, place: str) -> None:
    inputs, offsets = make_inputs(T, 2), torch.tensor(ILLEGAL[case], dtype=torch.int32, device=place)
    taps = torch.randn(256, 4, device="cuda")
    flat = inputs["q"].flatten(2)
    without_q = {name: x for name, x in inputs.items() if name != "q"}
    calls: list[Callable[[], object]] = [
        lambda: chunk_kda(**inputs, cu_seqlens=offsets),
        lambda: counted_chunk_kda(**inputs, cu_seqlens=offsets),
        lambda: recurrent_kda(**inputs, cu_seqlens=offsets),
        lambda: segment_map(**without_q, cu_seqlens=offsets),
        lambda: short_conv(flat, taps, cu_seqlens=offsets),
        lambda: short_conv_qkv(flat, flat, flat, (taps, taps, taps), cu_seqlens=offsets),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="cu_seqlens must"):
            call()
    assert torch.isfinite(chunk_kda(**inputs)[0]).all()
    torch.cuda.synchronize()


def test_offsets_in_any_legal_form_mean_the_same() -> None:
    inputs, d_o = make_inputs(T, 2), torch.randn(1, T, 2, 128, device="cuda").bfloat16()
    offsets = torch.tensor([0, 0, 1, 65, 65, T, T])
    wanted = gradients(inputs, d_o, cu_seqlens=offsets)
    apart = torch.stack([offsets, offsets + 7], 1)[:, 0]
    for given in (offsets.int(), offsets.cuda(), offsets.int().cuda(), apart, apart.cuda(), offsets.pin_memory()):
        assert same(gradients(inputs, d_o, cu_seqlens=given), wanted)


def test_documents_give_what_they_give_alone_and_empty_ones_pass_their_state() -> None:
    inputs, offsets = make_inputs(T, 2), [0, 0, 1, 65, 65, T, T]
    start = torch.randn(6, 2, 128, 128, device="cuda")
    o, state = chunk_kda(**inputs, cu_seqlens=torch.tensor(offsets), initial_state=start, output_final_state=True)
    assert state is not None
    for document, (a, b) in enumerate(pairwise(offsets)):
        if a == b:
            assert torch.equal(state[document], start[document])
            continue
        one = {name: x[:, a:b] if x.dim() > 2 else x for name, x in inputs.items()}
        alone, last = chunk_kda(**one, initial_state=start[document : document + 1], output_final_state=True)
        assert last is not None
        assert torch.equal(o[:, a:b], alone)
        assert torch.equal(state[document], last[0])


def test_a_call_without_tokens_gives_its_state_back() -> None:
    inputs, start = make_inputs(0, 2), torch.randn(1, 2, 128, 128, device="cuda", requires_grad=True)
    o, state = chunk_kda(**inputs, initial_state=start, output_final_state=True)
    assert o.shape == (1, 0, 2, 128)
    assert state is not None
    assert torch.equal(state, start)
    state.sum().backward()
    assert start.grad is not None
    assert torch.equal(start.grad, torch.ones_like(start))


@pytest.mark.parametrize("name", ["k", "v", "A_log", "dt_bias", "initial_state", "beta", "g"])
def test_a_tensor_on_the_cpu_is_refused_before_its_address_is_taken(name: str) -> None:
    inputs = make_inputs(T, 2) | {"initial_state": torch.zeros(1, 2, 128, 128, device="cuda")}
    with pytest.raises(ValueError, match=f"{name} must be on cuda:0 like q, found cpu"):
        chunk_kda(**(inputs | {name: inputs[name].cpu()}))


def test_keys_of_another_type_are_refused() -> None:
    inputs = make_inputs(T, 2)
    with pytest.raises(ValueError, match=r"k must be torch.bfloat16 like q, found torch.float32"):
        chunk_kda(**(inputs | {"k": inputs["k"].float()}))


@pytest.mark.parametrize("name", [*INPUTS, "d_o"])
def test_memory_between_two_vectors_and_any_strides_change_nothing(name: str) -> None:
    inputs, d_o = make_inputs(T, 2), torch.randn(1, T, 2, 128, device="cuda").bfloat16()
    wanted = gradients(inputs, d_o)
    x = d_o if name == "d_o" else inputs[name]
    views = [torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape), torch.stack([x, x], -1)[..., 0]]
    if x.dim() == 4:
        views += [x.transpose(1, 2).contiguous().transpose(1, 2), torch.cat([x, x], -1)[..., :128]]
    for view in views:
        assert view.data_ptr() % 16 != 0 or not view.is_contiguous()
        given = inputs if name == "d_o" else inputs | {name: view}
        assert same(gradients(given, view if name == "d_o" else d_o), wanted)


def test_streams_side_by_side_do_not_disturb_each_other() -> None:
    calls = [(make_inputs(64 * 260 + seed, 4, seed=seed), torch.tensor([0, 64 * 130 + seed, 64 * 260 + seed])) for seed in range(4)]
    wanted = [chunk_kda(**inputs, cu_seqlens=offsets)[0] for inputs, offsets in calls]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in calls]
    for _ in range(5):
        found = []
        for stream, (inputs, offsets) in zip(streams, calls, strict=True):
            with torch.cuda.stream(stream):
                found.append(chunk_kda(**inputs, cu_seqlens=offsets)[0])
        torch.cuda.synchronize()
        assert same(found, wanted)


def test_a_graph_reads_its_tables_after_many_others_were_made() -> None:
    inputs, offsets = make_inputs(T, 2), torch.tensor([0, 70, T])
    wanted = chunk_kda(**inputs, cu_seqlens=offsets)[0].clone()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found, _ = chunk_kda(**inputs, cu_seqlens=offsets)
    for cut in range(1, 150):
        chunk_kda(**inputs, cu_seqlens=torch.tensor([0, cut, T]))
    poison = torch.full((1 << 28,), float("nan"), device="cuda")
    small = [torch.full((64,), -1, dtype=torch.int32, device="cuda") for _ in range(1000)]
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(found, wanted)
    del poison, small


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_device_that_is_not_the_current_one_is_used() -> None:
    inputs = make_inputs(64 * 260, 4)
    d_o = torch.randn_like(inputs["v"])
    wanted = gradients(inputs, d_o)
    there = {name: x.to("cuda:1") for name, x in inputs.items()}
    found = gradients(there, d_o.to("cuda:1"))
    assert torch.cuda.current_device() == 0
    assert same([x.to("cuda:0") for x in found], wanted)


@pytest.mark.slow
def test_gradients_of_more_than_two_to_the_31_elements_are_addressed_right() -> None:
    num_tokens, num_heads = 262144, 66
    inputs = make_inputs(num_tokens, num_heads)
    d_o = torch.randn_like(inputs["v"])
    assert inputs["q"].numel() > 2**31
    names = ("q", "k", "v", "g", "beta")

    def step(given: Results, gradient: Tensor) -> list[Tensor]:
        leaves = {name: x.detach().requires_grad_(name in names) for name, x in given.items()}
        o, _ = chunk_kda(**leaves, recompute_states=True)
        return list(torch.autograd.grad(o, [leaves[name] for name in names], gradient))

    whole = [x[:, :, -1:].clone() for x in step(inputs, d_o)]
    last = {name: x[:, :, -1:].contiguous() if x.dim() > 2 else x[-1:] if name == "A_log" else x[-128:] for name, x in inputs.items()}
    for name, a, b in zip(names, whole, step(last, d_o[:, :, -1:].contiguous()), strict=True):
        # Another number of heads is cut elsewhere: states between segments pass in float32 all the same.
        assert torch.equal(a, b), name
