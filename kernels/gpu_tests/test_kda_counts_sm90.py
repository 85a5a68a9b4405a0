# ruff: noqa: D103, INP001 - tests that travel with this folder
"""The decay signals that the forward counts beside its work, against the pass of torch that defines them."""

import dataclasses
from itertools import accumulate, pairwise

import pytest
import torch
from cases import REGIMES, Results, make_inputs, on_hopper
from torch import Tensor

from samite_kernels.kda import DecayCounts, chunk_kda, counted_chunk_kda, decay_counts
from samite_kernels.kda.signals import LN_MAX_FLOAT32
from samite_kernels.kda.sm90_counts import VARIABLE

pytestmark = on_hopper
_SAMPLED = {"gate_total", "gate_sat_count", "gate_open_count", "benign_flush_count", "benign_total"} | {"chunk_total", "tile_span_max"}
_SAMPLED |= {"normal", "bfloat16_subnormal", "float32_subnormal", "chunk_decay_min", "memoryless_head_count", "tile_margin"}
_EXACT = {"gate_total", "chunk_total", "head_total", "beta_total", "benign_total", "nonfinite_operands", "lossy_flush_events"}
_ELEMENTS = {"gate_total", "gate_sat_count", "gate_open_count", "benign_flush_count", "benign_total"}
_EVERY = {"beside": (16, 16), "idle": (64, 16)}
"""In which chunks of a document elements are counted, and the decay over the chunk."""


@pytest.fixture(params=list(_EVERY))
def who(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Who counts: all warps beside their work, or those that idle."""
    monkeypatch.setenv(VARIABLE, request.param)
    return str(request.param)


def reference(inputs: Results, offsets: tuple[int, ...], who: str) -> Results:
    """By field. Alarms and beta over everything; the rest in some chunks of a document, for a head in others than for the next."""

    def counts(heads: slice, cu_seqlens: list[int], tokens: Tensor) -> DecayCounts:
        part = {name: inputs[name][:, tokens, heads] for name in ("q", "k", "g", "beta")}
        bias = inputs["dt_bias"].view(-1, 128)[heads].flatten()
        options = {"cu_seqlens": torch.tensor(cu_seqlens), "anchor": "start", "scale": 128**-0.5}
        return decay_counts(**part, A_log=inputs["A_log"][heads], dt_bias=bias, **options)

    whole = vars_of(counts(slice(None), list(offsets), torch.arange(offsets[-1], device="cuda")))
    chunks = [(place, a, min(a + 64, stop)) for start, stop in pairwise(offsets) for place, a in enumerate(range(start, stop, 64))]
    sampled = {name: torch.zeros((), dtype=torch.float64) for name in _SAMPLED}
    for names, every in zip((_ELEMENTS, _SAMPLED - _ELEMENTS), _EVERY[who], strict=True):
        for head in range(inputs["q"].shape[2]):
            seen = [(a, b) for place, a, b in chunks if (place + head) % every == 0]
            if seen:
                tokens = torch.cat([torch.arange(a, b, device="cuda") for a, b in seen])
                found = vars_of(counts(slice(head, head + 1), list(accumulate((b - a for a, b in seen), initial=0)), tokens))
                for name in names:
                    join = {"tile_span_max": torch.maximum, "chunk_decay_min": torch.minimum}.get(name, torch.add)
                    sampled[name] = join(sampled[name], found[name].double().cpu())
    sampled["tile_margin"] = LN_MAX_FLOAT32 - sampled["tile_span_max"]
    return whole | sampled


def vars_of(counts: DecayCounts) -> Results:
    fields = {field.name: getattr(counts, field.name) for field in dataclasses.fields(counts)}
    return fields | fields.pop("chunk_forget_counts")


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("offsets", [(0, 1000), (0, 0, 1, 70, 164, 164, 9000)])
def test_the_kernels_count_what_torch_counts(regime: str, offsets: tuple[int, ...], who: str) -> None:
    inputs, cu_seqlens = make_inputs(offsets[-1], 3, regime), torch.tensor(offsets)
    o, _, counts = counted_chunk_kda(**inputs, cu_seqlens=cu_seqlens)
    assert torch.equal(o, chunk_kda(**inputs, cu_seqlens=cu_seqlens)[0])
    found, wanted = vars_of(counts), reference(inputs, offsets, who)
    assert set(found) == set(wanted)
    for name, x in wanted.items():
        a, b = float(found[name]), float(x)
        # Whoever stands on a threshold may fall to either side.
        slack = 0.0 if name in _EXACT else 2e-3 * abs(b) + (0.0 if name.endswith(("_max", "_margin", "_min")) else 2.0)
        assert abs(a - b) <= slack, (name, a, b)


@pytest.mark.usefixtures("who")
def test_what_is_not_finite_is_counted() -> None:
    inputs = make_inputs(100, 1)
    inputs["q"][0, 3, 0, 5] = float("nan")
    inputs["k"][0, 70, 0, 6] = float("inf")
    inputs["g"][0, 10, 0, 7] = float("nan")
    inputs["beta"][0, 20, 0] = float("nan")
    counts = counted_chunk_kda(**inputs)[2]
    del inputs["v"]
    assert int(counts.nonfinite_operands) == int(decay_counts(**inputs).nonfinite_operands) == 131


@pytest.mark.usefixtures("who")
def test_twenty_repeats_count_the_same() -> None:
    inputs = make_inputs(5000, 4)
    first = counted_chunk_kda(**inputs)[2]
    for _ in range(19):
        again = counted_chunk_kda(**inputs)[2]
        assert all(str(getattr(first, f.name)) == str(getattr(again, f.name)) for f in dataclasses.fields(first))
