"""What the KDA and convolution interfaces refuse, in words that help, and which backend they choose."""

import pytest
import torch
from torch import Tensor

from samite_kernels.conv import short_conv
from samite_kernels.kda import chunk_kda, explain, recurrent_kda


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
    "single": ([0], "at least 2 entries"),
    "empty": ([], "at least 2 entries"),
}


@pytest.mark.parametrize("case", list(ILLEGAL_OFFSETS))
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("function", ["chunk", "recurrent", "conv"])
def test_illegal_document_offsets_are_refused_on_the_host(case: str, dtype: torch.dtype, function: str) -> None:
    offsets, message = ILLEGAL_OFFSETS[case]
    cu_seqlens = torch.tensor(offsets, dtype=dtype)
    with pytest.raises(ValueError, match=message):
        call(function, inputs(), cu_seqlens)


@pytest.mark.parametrize("function", ["chunk", "recurrent", "conv"])
def test_offsets_of_another_type_or_a_batch_are_refused(function: str) -> None:
    with pytest.raises(ValueError, match=r"int32 or int64, found torch\.float32"):
        call(function, inputs(), torch.tensor([0.0, 16.0]))
    with pytest.raises(ValueError, match="batch of 1, found 2"):
        call(function, inputs(batch=2, length=8), torch.tensor([0, 16]))


def call(function: str, parts: dict[str, Tensor], cu_seqlens: Tensor) -> object:
    if function == "conv":
        return short_conv(parts["q"].flatten(2), torch.randn(16, 4), cu_seqlens=cu_seqlens)
    return (chunk_kda if function == "chunk" else recurrent_kda)(**parts, cu_seqlens=cu_seqlens)


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
