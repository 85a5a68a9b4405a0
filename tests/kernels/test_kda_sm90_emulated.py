"""All KDA kernels together, compiled for the CPU: values and every gradient against float64, states kept and recomputed."""

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from samite_kernels.kda.chunkwise import chunkwise_core
from samite_kernels.kda.documents import Documents
from samite_kernels.kda.gate import bounded_log_decay, l2_normalize
from samite_kernels.kda.sm90 import chunk_kda_sm90, counted_chunk_kda_sm90

SCALE = 128**-0.5
Results = dict[str, Tensor]


def make_inputs(num_tokens: int, num_heads: int, gate: str) -> Results:
    generator = torch.Generator().manual_seed(5)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    center, spread = {"mixed": (0.0, 3.0), "init": (-4.0, 1.0), "none": (-60.0, 0.0), "floor": (60.0, 0.0)}[gate]
    shape = (1, num_tokens, num_heads, 128)
    inputs = {name: normal(*shape).bfloat16() for name in "qkv"}
    inputs |= {"g": (center + spread * normal(*shape)).bfloat16(), "beta": normal(*shape[:3]).bfloat16()}
    return inputs | {"A_log": 0.1 * normal(num_heads), "dt_bias": 0.1 * normal(num_heads * 128)}


def exact(leaves: Results, documents: Documents, state: Tensor) -> tuple[Tensor, Tensor]:
    q, k, v, g, beta = (leaves[name].flatten(0, 1) for name in ("q", "k", "v", "g", "beta"))
    decay = bounded_log_decay(g, leaves["A_log"], leaves["dt_bias"], lower_bound=-5.0)
    o, last = chunkwise_core(
        l2_normalize(q), l2_normalize(k), v, decay, beta.sigmoid(), scale=SCALE, documents=documents, initial_state=state
    )
    return o.view(leaves["v"].shape), last


def step(inputs: Results, documents: Documents, *, precise: bool = False, recompute: bool = False) -> Results:
    generator = torch.Generator().manual_seed(6)
    state = torch.randn(documents.count, inputs["q"].shape[2], 128, 128, generator=generator)
    d_o, d_last = torch.randn(inputs["v"].shape, generator=generator).bfloat16(), torch.randn(state.shape, generator=generator)
    leaves = {name: (x.double() if precise else x).detach().clone().requires_grad_() for name, x in inputs.items()}
    state = (state.double() if precise else state).requires_grad_()
    if precise:
        o, last = exact(leaves, documents, state)
    else:
        options = {"cu_seqlens": torch.tensor(documents.offsets), "initial_state": state, "recompute": recompute}
        o, last = chunk_kda_sm90(**leaves, scale=SCALE, lower_bound=-5.0, **options)
    torch.autograd.backward([o, last], [d_o.to(o.dtype), d_last.to(last.dtype)])
    results = {"o": o, "state": last, "d_state": state.grad} | {f"d_{name}": leaf.grad for name, leaf in leaves.items()}
    return {name: x.detach() for name, x in results.items() if x is not None}


@pytest.mark.slow
@pytest.mark.parametrize(("gate", "offsets"), [("mixed", (0, 100)), ("none", (0, 0, 1, 70)), ("init", (0, 130))])
def test_values_and_gradients_are_right_with_states_kept_and_recomputed(emulation: object, gate: str, offsets: tuple[int, ...]) -> None:
    inputs, documents = make_inputs(offsets[-1], 1, gate), Documents(offsets)
    wanted = step(inputs, documents, precise=True)
    for recompute in (False, True):
        found = step(inputs, documents, recompute=recompute)
        for name, x in wanted.items():
            bar = 2e-2 if name == "d_A_log" else 8e-3
            assert float((found[name].double() - x).norm() / x.norm()) < bar, (recompute, name)


OPTIONS: dict[str, Any] = {"scale": SCALE, "lower_bound": -5.0, "cu_seqlens": None, "initial_state": None}


@pytest.mark.parametrize("who", ["beside", "idle"])
def test_counting_changes_no_output(emulation: object, monkeypatch: pytest.MonkeyPatch, who: str) -> None:
    monkeypatch.setenv("SAMITE_KERNELS_KDA_COUNTS", who)
    inputs = make_inputs(70, 1, "init")
    o, last = chunk_kda_sm90(**inputs, **OPTIONS)
    counted, end, counts = counted_chunk_kda_sm90(*inputs.values(), **OPTIONS)
    assert torch.equal(counted, o)
    assert torch.equal(end, last)
    assert int(counts.gate_total) == 64 * 128
    assert int(counts.beta_total) == 70


def broken(inputs: Results) -> Results:
    """Values that are not finite, in every operand."""
    inputs["q"][0, 3, 0, 5] = math.nan
    inputs["k"][0, 69, 0, 6] = math.inf
    inputs["g"][0, 10, 0, 7] = math.nan
    inputs["beta"][0, 20, 0] = math.nan
    return inputs


@pytest.mark.slow
@pytest.mark.parametrize("gate", ["mixed", "none", "floor", "broken"])
def test_warps_that_idle_count_what_all_count_beside_their_work(emulation: object, monkeypatch: pytest.MonkeyPatch, gate: str) -> None:
    inputs = broken(make_inputs(70, 1, "mixed")) if gate == "broken" else make_inputs(50, 2, gate)
    counts = {}
    for who in ("beside", "idle"):  # the first chunk of the first head is sampled by both
        monkeypatch.setenv("SAMITE_KERNELS_KDA_COUNTS", who)
        counts[who] = dataclasses.asdict(counted_chunk_kda_sm90(*inputs.values(), **OPTIONS)[2])
    assert str(counts["idle"]) == str(counts["beside"])
    assert int(counts["idle"]["nonfinite_operands"]) == (131 if gate == "broken" else 0)
    assert int(counts["idle"]["gate_total"]) == min(inputs["q"].shape[1], 64) * 128
    if gate == "floor":
        assert int(counts["idle"]["gate_sat_count"]) == int(counts["idle"]["gate_total"])


def test_an_unknown_way_of_counting_is_refused(emulation: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAMITE_KERNELS_KDA_COUNTS", "some")
    with pytest.raises(ValueError, match="must be beside or idle, found 'some'"):
        counted_chunk_kda_sm90(*make_inputs(3, 1, "none").values(), **OPTIONS)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["q", "k", "v", "g", "beta", "dt_bias", "initial_state", "d_o"])
def test_memory_between_two_vectors_is_copied_not_misread(emulation: object, name: str) -> None:
    def shifted(x: Tensor) -> Tensor:
        return torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape)

    inputs = make_inputs(20, 1, "mixed")
    inputs["initial_state"] = torch.randn(1, 1, 128, 128)
    d_o = torch.randn(inputs["v"].shape).bfloat16()

    def gradients(**given: Tensor) -> list[Tensor]:
        leaves = {x: y.detach().requires_grad_() for x, y in given.items() if x != "d_o"}
        o, _ = chunk_kda_sm90(**leaves, scale=SCALE, lower_bound=-5.0, cu_seqlens=None)
        return [o.detach(), *torch.autograd.grad(o, list(leaves.values()), given["d_o"])]

    plain = inputs | {"d_o": d_o}
    moved = plain | {name: shifted(plain[name])}
    assert moved[name].data_ptr() % 16 != 0
    assert all(torch.equal(a, b) for a, b in zip(gradients(**moved), gradients(**plain), strict=True))
