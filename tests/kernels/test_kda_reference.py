"""The plain-torch KDA: chunkwise against the recurrence, documents, state, gradients, and that the tests can fail."""

import pytest
import torch
from torch import Tensor

from samite_kernels.kda import chunk_kda, chunk_kda_core, compose_segments, fold_segments, recurrent_kda, segment_map
from samite_kernels.kda.chunkwise import chunkwise_core
from samite_kernels.kda.documents import find_documents
from samite_kernels.kda.reference import recurrent_core

GATES = ["floor", "mixed", "init", "none", "one-hot", "tiles"]
LENGTHS = [1, 15, 16, 17, 63, 64, 65, 150]
Inputs = dict[str, Tensor]


def raw_gate(kind: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Pre-activations for which the log-decay -5 * sigmoid(.) is of the named kind."""
    noise = torch.randn(shape, generator=generator, dtype=torch.float64)
    if kind == "floor":
        return torch.full(shape, 60.0, dtype=torch.float64)
    if kind == "mixed":
        return 3.0 * noise
    if kind == "init":
        return -4.0 + noise
    if kind == "none":
        return torch.full(shape, -60.0, dtype=torch.float64)
    position = torch.arange(shape[1]).view(1, -1, 1, 1)
    if kind == "one-hot":
        return torch.where(position % 7 == 3, 60.0, -60.0).expand(shape).double().clone()
    return torch.where(position // 64 % 2 == 0, 60.0, -8.0) + 0.1 * noise


def kda_inputs(
    *,
    length: int,
    gate: str = "mixed",
    heads: int = 2,
    key_dim: int = 16,
    value_dim: int = 24,
    batch: int = 1,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
) -> Inputs:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    inputs = {
        "q": normal(batch, length, heads, key_dim),
        "k": normal(batch, length, heads, key_dim),
        "v": normal(batch, length, heads, value_dim),
        "g": raw_gate(gate, (batch, length, heads, key_dim), generator),
        "beta": normal(batch, length, heads),
        "A_log": 0.1 * normal(heads),
        "dt_bias": 0.1 * normal(heads * key_dim),
    }
    return {name: tensor.to(dtype) for name, tensor in inputs.items()}


def distance(found: Tensor, wanted: Tensor) -> float:
    assert torch.isfinite(found).all()
    return float((found.double() - wanted.double()).norm() / wanted.double().norm().clamp(min=1e-30))


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("length", LENGTHS)
def test_chunks_equal_the_recurrence_in_double_precision(gate: str, length: int) -> None:
    inputs = kda_inputs(length=length, gate=gate, batch=2)
    start = torch.randn(2, 2, 16, 24, dtype=torch.float64)
    o, state = chunk_kda(**inputs, initial_state=start, output_final_state=True)
    wanted_o, wanted_state = recurrent_kda(**inputs, initial_state=start, output_final_state=True)
    assert distance(o, wanted_o) < 1e-13
    assert distance(state, wanted_state) < 1e-12


@pytest.mark.parametrize("gate", GATES)
def test_single_precision_keeps_two_millionths(gate: str) -> None:
    inputs = kda_inputs(length=256, gate=gate, key_dim=128, value_dim=128)
    wanted, _ = recurrent_kda(**inputs)
    o, _ = chunk_kda(**{name: tensor.float() for name, tensor in inputs.items()})
    assert distance(o, wanted) <= 2e-6


@pytest.mark.parametrize("gate", ["floor", "mixed", "init", "none", "tiles"])
def test_bfloat16_operands_keep_five_thousandths(gate: str) -> None:
    inputs = {name: tensor.bfloat16().double() for name, tensor in kda_inputs(length=200, gate=gate, key_dim=128, value_dim=128).items()}
    wanted, _ = recurrent_kda(**inputs)
    o = rounded_chunks(inputs)
    assert distance(o, wanted) <= 5e-3


def rounded_chunks(inputs: Inputs) -> Tensor:
    prepared = prepare({name: tensor.float() for name, tensor in inputs.items()})
    documents = find_documents(None, batch=1, num_tokens=inputs["q"].shape[1])
    o, _ = chunkwise_core(**prepared, scale=inputs["q"].shape[-1] ** -0.5, documents=documents, rounding=torch.bfloat16)
    return o.unsqueeze(0)


def prepare(inputs: Inputs) -> Inputs:
    from samite_kernels.kda.gate import bounded_log_decay, l2_normalize

    decay = bounded_log_decay(inputs["g"], inputs["A_log"], inputs["dt_bias"], lower_bound=-5.0)
    prepared = {"q": l2_normalize(inputs["q"]), "k": l2_normalize(inputs["k"]), "v": inputs["v"]}
    prepared |= {"log_decay": decay, "beta": inputs["beta"].sigmoid()}
    return {name: tensor.flatten(0, 1) for name, tensor in prepared.items()}


@pytest.mark.parametrize("gate", ["floor", "mixed", "init", "none"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_gradients_equal_those_of_the_recurrence(gate: str, dtype: torch.dtype) -> None:
    exact = kda_inputs(length=81, gate=gate)
    start = torch.randn(1, 2, 16, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    wanted = gradients(recurrent_kda, exact, start)
    found = gradients(chunk_kda, {name: tensor.to(dtype) for name, tensor in exact.items()}, start.to(dtype))
    bar = 1e-12 if dtype == torch.float64 else 1e-5
    for name, gradient in wanted.items():
        dead = gate in {"floor", "none"} and name in {"g", "A_log", "dt_bias"}
        assert torch.isfinite(found[name]).all()
        assert dead or distance(found[name], gradient) <= bar, name


def gradients(function: object, inputs: Inputs, start: Tensor) -> Inputs:
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in inputs.items()}
    state = start.clone().requires_grad_()
    o, final = function(**leaves, initial_state=state, output_final_state=True)  # type: ignore[operator]
    generator = torch.Generator().manual_seed(5)
    weight = torch.randn(o.shape, generator=generator, dtype=torch.float64).to(o.dtype)
    final_weight = torch.randn(final.shape, generator=generator, dtype=torch.float64).to(final.dtype)
    ((o * weight).sum() + (final * final_weight).sum()).backward()
    return {name: leaf.grad for name, leaf in (leaves | {"initial_state": state}).items() if leaf.grad is not None}


@pytest.mark.parametrize("chunk_size", [16, 32, 64])
def test_the_size_of_chunks_does_not_matter(chunk_size: int) -> None:
    inputs = prepare(kda_inputs(length=130))
    documents = find_documents(None, batch=1, num_tokens=130)
    o, _ = chunkwise_core(**inputs, scale=1.0, documents=documents, chunk_size=chunk_size)
    wanted, _ = recurrent_core(**inputs, scale=1.0, documents=documents)
    assert distance(o, wanted) < 1e-13


def test_one_anchor_for_64_rows_overflows_at_the_floor() -> None:
    inputs = {name: tensor.float() for name, tensor in prepare(kda_inputs(length=64, gate="floor")).items()}
    documents = find_documents(None, batch=1, num_tokens=64)
    o, _ = chunkwise_core(**inputs, scale=1.0, documents=documents, tile_size=64)
    assert not torch.isfinite(o).all()


def test_packed_documents_equal_separate_ones() -> None:
    lengths = [1, 0, 15, 16, 17, 64, 100, 0]
    inputs = kda_inputs(length=sum(lengths), dtype=torch.float32)
    offsets = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()])
    start = torch.randn(len(lengths), 2, 16, 24)
    o, state = chunk_kda(**inputs, cu_seqlens=offsets, initial_state=start, output_final_state=True)
    for index, length in enumerate(lengths):
        piece = slice(int(offsets[index]), int(offsets[index]) + length)
        alone = {name: tensor[:, piece] if tensor.dim() > 1 else tensor for name, tensor in inputs.items()}
        alone_o, alone_state = chunk_kda(**alone, initial_state=start[index : index + 1], output_final_state=True)
        torch.testing.assert_close(o[:, piece], alone_o, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(state[index : index + 1], alone_state, rtol=1e-5, atol=1e-6)


def test_the_future_never_changes_the_past() -> None:
    inputs = kda_inputs(length=100, dtype=torch.float32)
    o, _ = chunk_kda(**inputs)
    for name in ("q", "k", "v", "g", "beta"):
        edited = dict(inputs)
        edited[name] = inputs[name].clone()
        edited[name][:, 70] += 1.0
        assert torch.equal(chunk_kda(**edited)[0][:, :70], o[:, :70]), name


def test_a_cut_sequence_equals_the_whole() -> None:
    inputs = kda_inputs(length=120)
    whole, wanted = chunk_kda(**inputs, output_final_state=True)
    first = {name: tensor[:, :53] if tensor.dim() > 1 else tensor for name, tensor in inputs.items()}
    second = {name: tensor[:, 53:] if tensor.dim() > 1 else tensor for name, tensor in inputs.items()}
    o1, middle = chunk_kda(**first, output_final_state=True)
    o2, state = recurrent_kda(**second, initial_state=middle, output_final_state=True)
    assert distance(torch.cat([o1, o2], 1), whole) < 1e-12
    assert distance(state, wanted) < 1e-12


def test_segments_compose_to_the_whole() -> None:
    inputs = kda_inputs(length=150, batch=1)
    del inputs["q"]
    pieces = [slice(0, 40), slice(40, 104), slice(104, 150)]
    cut = [{name: x[:, piece] if x.dim() > 1 else x for name, x in inputs.items()} for piece in pieces]
    maps = [segment_map(**piece) for piece in cut]
    whole = segment_map(**inputs)
    composed = compose_segments(maps[2], compose_segments(maps[1], maps[0]))
    assert distance(composed[0], whole[0]) < 1e-12
    start = torch.randn(1, 2, 16, 24, dtype=torch.float64)
    folded = fold_segments(torch.stack([m for m, _ in maps]), torch.stack([b for _, b in maps]), start)
    assert distance(folded, whole[0] @ start + whole[1]) < 1e-12


def test_without_writing_the_output_is_zero_and_without_decay_it_is_the_delta_rule() -> None:
    inputs = kda_inputs(length=40, gate="none")
    inputs["beta"] = torch.full_like(inputs["beta"], -1000.0)
    assert float(chunk_kda(**inputs)[0].abs().max()) == 0.0
    prepared = prepare(kda_inputs(length=40, gate="none"))
    documents = find_documents(None, batch=1, num_tokens=40)
    state = torch.zeros(2, 16, 24, dtype=torch.float64)
    for t in range(40):
        k, v, beta = prepared["k"][t], prepared["v"][t], prepared["beta"][t]
        state = state - torch.einsum("h,hk,hj,hjv->hkv", beta, k, k, state) + torch.einsum("h,hk,hv->hkv", beta, k, v)
    _, found = chunkwise_core(**prepared, scale=1.0, documents=documents)
    assert distance(found[0], state) < 1e-12


@pytest.mark.parametrize("mutation", ["sign", "scale", "read before write", "decay after delta"])
def test_a_wrong_recurrence_is_noticed(mutation: str) -> None:
    prepared = prepare(kda_inputs(length=40))
    documents = find_documents(None, batch=1, num_tokens=40)
    wanted, _ = recurrent_core(**prepared, scale=0.25, documents=documents)
    state = torch.zeros(2, 16, 24, dtype=torch.float64)
    rows: list[Tensor] = []
    for t in range(40):
        q, k, v, beta = (prepared[name][t] for name in ("q", "k", "v", "beta"))
        decay = prepared["log_decay"][t].exp().unsqueeze(-1)
        before = state
        state = state if mutation == "decay after delta" else decay * state
        error = torch.einsum("hkv,hk->hv", state, k) - v if mutation == "sign" else v - torch.einsum("hkv,hk->hv", state, k)
        state = state + torch.einsum("h,hk,hv->hkv", beta, k, error)
        state = decay * state if mutation == "decay after delta" else state
        read = before if mutation == "read before write" else state
        rows.append((1.0 if mutation == "scale" else 0.25) * torch.einsum("hkv,hk->hv", read, q))
    assert distance(torch.stack(rows), wanted) > 1e-2


def test_a_thousand_seeds_at_the_floor_stay_finite() -> None:
    for seed in range(20):
        inputs = kda_inputs(length=48, gate="floor", batch=50, dtype=torch.float32, seed=seed)
        leaves = {name: tensor.requires_grad_() for name, tensor in inputs.items()}
        o, _ = chunk_kda(**leaves)
        o.square().sum().backward()
        assert torch.isfinite(o).all()
        assert all(torch.isfinite(leaf.grad).all() for leaf in leaves.values() if leaf.grad is not None)


def test_prepared_log_decay_outside_the_bound_is_named() -> None:
    decay = torch.full((1, 4, 1, 2), -1.0)
    decay[0, 2, 0, 1] = -6.0
    x = torch.ones(1, 4, 1, 2)
    with pytest.raises(ValueError, match=r"\[-5, 0\], found -6 at \[b, t, h, k\] = \[0, 2, 0, 1\]"):
        chunk_kda_core(x, x, x, decay, x[..., 0], check_decay=True)
