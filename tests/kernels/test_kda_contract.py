"""What the KDA and convolution interfaces refuse, in words that help, and which backend they choose."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from samite_kernels.conv import short_conv, short_conv_qkv
from samite_kernels.kda import chunk_kda, chunk_kda_core, counted_chunk_kda, decay_counts, explain, recurrent_kda, segment_map
from samite_kernels.kda.documents import Documents
from samite_kernels.kda.sm90_launch import ChunkTable


def inputs(batch: int = 1, length: int = 16, heads: int = 2, dim: int = 8) -> dict[str, Tensor]:
    x = torch.randn(batch, length, heads, dim)
    parts = {"q": x, "k": x.clone(), "v": x.clone(), "g": x.clone(), "beta": x[..., 0].clone()}
    return parts | {"A_log": torch.zeros(heads), "dt_bias": torch.zeros(heads * dim)}


ILLEGAL_OFFSETS = {
    "falling": ([0, 12, 8, 16], "must not fall, found 12 then 8"),
    "not from zero": ([4, 16], "must start at 0, found 4"),
    "too short": ([0, 8, 12], "must end at the number of tokens, 16, found 12"),
    "too long": ([0, 8, 20], "must end at the number of tokens, 16, found 20"),
    "negative": ([0, -1, 16], "must not fall"),
    "past the end inside": ([0, 20, 16], "must not fall, found 20 then 16"),
    "past 32 bits": ([0, 2**40], "must end at the number of tokens, 16, found 1099511627776"),
    "single": ([0], "at least 2 entries"),
    "empty": ([], "at least 2 entries"),
    "two-dimensional": ([[0, 16]], "one-dimensional"),
}
FUNCTIONS = ["chunk", "recurrent", "core", "counted", "counts", "map", "conv", "conv of three"]


@pytest.mark.parametrize(
    ("case", "dtype"),
    [(case, dtype) for case in ILLEGAL_OFFSETS for dtype in (torch.int32, torch.int64) if case != "past 32 bits" or dtype == torch.int64],
)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_illegal_document_offsets_are_refused_on_the_host(case: str, dtype: torch.dtype, function: str) -> None:
    offsets, message = ILLEGAL_OFFSETS[case]
    cu_seqlens = torch.tensor(offsets, dtype=dtype)
    with pytest.raises(ValueError, match=message):
        call(function, inputs(), cu_seqlens)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_offsets_of_another_type_or_place_or_a_batch_are_refused(function: str) -> None:
    for dtype in (torch.float32, torch.int16, torch.uint8, torch.bool):
        with pytest.raises(ValueError, match=rf"int32 or int64, found {dtype}"):
            call(function, inputs(), torch.tensor([0, 16]).to(dtype))
    with pytest.raises(ValueError, match="must be a tensor, found list"):
        call(function, inputs(), [0, 16])
    with pytest.raises(ValueError, match="must hold values, found a tensor on meta"):
        call(function, inputs(), torch.empty(2, dtype=torch.int32, device="meta"))
    with pytest.raises(ValueError, match="batch of 1, found 2"):
        call(function, inputs(batch=2, length=8), torch.tensor([0, 16]))


def call(function: str, parts: dict[str, Tensor], cu_seqlens: object) -> object:
    given: Any = {"cu_seqlens": cu_seqlens}
    q, k, v, g, beta = (parts[name] for name in ("q", "k", "v", "g", "beta"))
    gate = (parts["A_log"], parts["dt_bias"])
    flat, taps = q.flatten(2), torch.randn(16, 4)
    calls: dict[str, Callable[[], object]] = {
        "chunk": lambda: chunk_kda(**parts, **given),
        "recurrent": lambda: recurrent_kda(**parts, **given),
        "core": lambda: chunk_kda_core(q, k, v, -g.sigmoid(), beta.sigmoid(), **given),
        "counted": lambda: counted_chunk_kda(**parts, **given),
        "counts": lambda: decay_counts(q, k, g, beta, *gate, **given),
        "map": lambda: segment_map(k, v, g, beta, *gate, **given),
        "conv": lambda: short_conv(flat, taps, **given),
        "conv of three": lambda: short_conv_qkv(flat, flat, flat, (taps, taps, taps), **given),
    }
    return calls[function]()


@pytest.mark.parametrize("function", [chunk_kda, recurrent_kda])
def test_offsets_may_lie_apart_and_documents_may_have_one_token(function: Callable[..., tuple[Tensor, Tensor]]) -> None:
    parts, offsets = inputs(), [0, 1, 1, 2, 16]
    apart = torch.tensor([[x, -7] for x in offsets], dtype=torch.int32)[:, 0]
    assert not apart.is_contiguous()
    o, state = function(**parts, cu_seqlens=apart, output_final_state=True)
    for document, (start, end) in enumerate(pairwise(offsets)):
        one = {name: x[:, start:end] if x.dim() > 2 else x for name, x in parts.items()}
        alone, last = function(**one, output_final_state=True)
        torch.testing.assert_close(o[:, start:end], alone)
        torch.testing.assert_close(state[document], last[0])


@pytest.mark.parametrize("function", [chunk_kda, recurrent_kda])
def test_views_with_any_strides_equal_contiguous_tensors(function: Callable[..., tuple[Tensor, Tensor]]) -> None:
    parts = inputs()
    wanted, _ = function(**parts)
    views = {
        "heads first": {name: x.transpose(1, 2).contiguous().transpose(1, 2) if x.dim() > 3 else x for name, x in parts.items()},
        "every second": {name: torch.stack([x, x], -1)[..., 0] for name, x in parts.items()},
        "one number over": {name: torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape) for name, x in parts.items()},
        "of one projection": parts | dict(zip("qkv", torch.cat([parts[name] for name in "qkv"], -1).split(8, -1), strict=True)),
    }
    for kind, given in views.items():
        torch.testing.assert_close(function(**given)[0], wanted, msg=kind)
    spread = {name: x[:, :1].expand(x.shape) if x.dim() > 2 else x for name, x in parts.items()}
    same = {name: x.contiguous() for name, x in spread.items()}
    torch.testing.assert_close(function(**spread)[0], function(**same)[0])


def test_more_tokens_than_a_chunk_table_can_name_are_refused() -> None:
    with pytest.raises(ValueError, match="count tokens in 32 bits, at most 2147483647, found 2147483648"):
        ChunkTable(Documents((0, 2**31)), torch.device("cpu"))


@pytest.mark.parametrize("function", [chunk_kda, recurrent_kda])
def test_empty_documents_and_empty_rows_pass_their_state_through(function: object) -> None:
    start = torch.randn(3, 2, 8, 8)
    _, state = function(  # type: ignore[operator]
        **inputs(), cu_seqlens=torch.tensor([0, 0, 16, 16]), initial_state=start, output_final_state=True
    )
    assert torch.equal(state[0], start[0])
    assert torch.equal(state[2], start[2])
    o, state = function(**inputs(length=0), initial_state=start[:1], output_final_state=True)  # type: ignore[operator]
    assert o.shape == (1, 0, 2, 8)
    assert torch.equal(state, start[:1])


@pytest.mark.parametrize("bound", [-5.1, 0.0, 1.0, float("nan")])
def test_a_bound_outside_the_safe_range_is_refused(bound: float) -> None:
    with pytest.raises(ValueError, match=r"lower_bound must lie in \[-5, 0\)"):
        chunk_kda(**inputs(), lower_bound=bound)


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("q", torch.randn(16, 2, 8), r"q must have shape \[B, T, H, K\]"),
        ("q", torch.randn(0, 16, 2, 8), "must be at least 1"),
        ("q", torch.randn(1, 16, 0, 8), "must be at least 1"),
        ("k", torch.randn(1, 16, 2, 8).bfloat16(), r"k must be torch\.float32 like q, found torch\.bfloat16"),
        ("A_log", torch.empty(2, device="meta"), "A_log must be on cpu like q, found meta"),
        ("A_log", torch.zeros(2, dtype=torch.int64), "A_log must be a floating-point tensor"),
        ("dt_bias", torch.empty(16, device="meta"), "dt_bias must be on cpu like q, found meta"),
        ("initial_state", torch.empty(1, 2, 8, 8, device="meta"), "initial_state must be on cpu like q, found meta"),
        ("k", torch.randn(1, 16, 2, 4), r"k must have shape \[1, 16, 2, 8\]"),
        ("beta", torch.randn(1, 16, 3), "beta must have shape"),
        ("g", torch.ones(1, 16, 2, 8, dtype=torch.int32), "g must be a floating-point tensor"),
        ("v", torch.empty(1, 16, 2, 8, device="meta"), "v must be on cpu like q, found meta"),
        ("A_log", torch.zeros(128), "narrow a padded one"),
        ("dt_bias", torch.zeros(2), "dt_bias must have shape"),
        ("initial_state", torch.zeros(1, 2, 8, 8, dtype=torch.bfloat16), "initial_state must be float32"),
        ("initial_state", torch.zeros(2, 2, 8, 8), "initial_state must have shape"),
    ],
)
def test_a_wrong_tensor_is_named_with_what_was_wanted(name: str, wrong: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        chunk_kda(**(inputs() | {name: wrong}))


def test_a_state_in_the_other_order_is_recognised() -> None:
    parts = inputs()
    parts["v"] = torch.randn(1, 16, 2, 24)
    with pytest.raises(ValueError, match="looks like"):
        chunk_kda(**parts, initial_state=torch.zeros(1, 2, 24, 8))


def test_the_choice_of_a_backend_comes_with_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SAMITE_KERNELS_KDA", raising=False)
    parts = inputs()
    choice = explain(parts["q"], parts["v"])
    assert choice.backend == "reference"
    assert "needs a Hopper GPU" in choice.rejected["sm90"]
    assert "not fla" in str(choice)


@pytest.mark.parametrize("backend", ["sm90", "fla"])
def test_a_forced_backend_that_cannot_run_is_an_error(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=f"the backend argument asks for {backend}"):
        chunk_kda(**inputs(), backend=backend)
    monkeypatch.setenv("SAMITE_KERNELS_KDA", backend)
    with pytest.raises(ValueError, match=f"SAMITE_KERNELS_KDA asks for {backend}"):
        chunk_kda(**inputs())


def test_an_unknown_backend_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAMITE_KERNELS_KDA", "sm100")
    with pytest.raises(ValueError, match="must be one of sm90, fla, reference, found 'sm100'"):
        chunk_kda(**inputs())
