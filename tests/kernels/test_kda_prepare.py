"""The prepare kernels of KDA in emulation: factors against float64, and the slim layout against the wide one."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from samite_kernels.kda import sm90_launch as kernels
from samite_kernels.kda.documents import Documents
from samite_kernels.kda.gate import bounded_log_decay, l2_normalize

HEADS, SCALE, BOUND = 2, 0.125, -5.0
CPU = torch.device("cpu")
IMAGES = {"minus_w": 8192, "q_grown": 8192, "k_kept": 8192, "u_transposed": 8192, "inverse": 4096, "scores": 4096}
FORWARD = ("minus_w", "q_grown", "k_kept", "scores", "u_transposed", "keep")
BACKWARD = ("minus_w", "q_grown", "k_kept", "scores", "inverse", "keep")
Factors = dict[str, Tensor]


def make_inputs(num_tokens: int, gate: str) -> Factors:
    generator = torch.Generator().manual_seed(3)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    center, spread = {"mixed": (0.0, 3.0), "init": (-4.0, 1.0), "floor": (60.0, 0.0), "none": (-60.0, 0.0)}[gate]
    inputs = {name: normal(num_tokens, HEADS, 128).bfloat16() for name in "qkv"}
    inputs |= {"g": (center + spread * normal(num_tokens, HEADS, 128)).bfloat16(), "beta": normal(num_tokens, HEADS).bfloat16()}
    return inputs | {"a_log": 0.1 * normal(HEADS), "dt_bias": 0.1 * normal(HEADS, 128)}


def factors(inputs: Factors, documents: Documents, names: tuple[str, ...]) -> Factors:
    table = kernels.chunk_table(documents, CPU)
    tiles = table.num_chunks * HEADS
    made = {name: torch.full((tiles, size), float("nan"), dtype=torch.bfloat16) for name, size in IMAGES.items() if name in names}
    made["keep"] = torch.full((tiles, 128), float("nan"))
    addresses = kernels.addresses_of(inputs | made | {"chunks": table.chunks})
    block = kernels.fill(kernels.PrepareArguments, addresses, num_chunks=table.num_chunks, num_heads=HEADS, scale=SCALE, lower_bound=BOUND)
    (kernels.prepare_forward if "u_transposed" in names else kernels.prepare_backward)(block, CPU)
    return made


def matrix(image: Tensor) -> Tensor:
    """Panels of 64 columns and 64 rows, pieces of a row permuted by the row, as [panels, 64, 64]."""
    panels = image.view(-1, 64, 8, 8)
    pieces = torch.arange(8).view(1, 8) ^ (torch.arange(64).view(64, 1) & 7)
    return panels.gather(2, pieces.view(1, 64, 8, 1).expand_as(panels)).flatten(2)


def relative_error(found: Tensor, wanted: Tensor) -> float:
    return float((found.double() - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("layout", ["wide", "slim"])
@pytest.mark.parametrize("gate", ["mixed", "init", "floor"])
def test_factors_equal_their_definition(emulation: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch, layout: str, gate: str) -> None:
    monkeypatch.setenv(kernels.PREPARE_VARIABLE, layout)
    inputs = make_inputs(90, gate)
    found = factors(inputs, Documents((0, 90)), FORWARD)
    for tile, (start, stop) in enumerate([(0, 64), (0, 64), (64, 90), (64, 90)]):
        head, rows = tile % HEADS, stop - start
        q, k, v = (x[start:stop, head].double() for x in (inputs["q"], inputs["k"], inputs["v"]))
        decay = bounded_log_decay(inputs["g"].double(), inputs["a_log"].double(), inputs["dt_bias"].double(), lower_bound=BOUND)
        total = decay[start:stop, head].cumsum(0)
        q, k, beta = l2_normalize(q), l2_normalize(k), inputs["beta"][start:stop, head].double().sigmoid()
        causal = torch.ones(rows, rows, dtype=torch.bool).tril()
        between = torch.where(causal.unsqueeze(-1), (total.unsqueeze(1) - total.unsqueeze(0)).clamp(max=0).exp(), 0.0)
        scores = SCALE * torch.einsum("id,jd,ijd->ij", q, k, between)
        strengths = torch.einsum("id,jd,ijd->ij", k, k, between).tril(-1) * beta.unsqueeze(1)
        inverse = torch.linalg.inv(torch.eye(rows).double() + strengths) * beta
        w = matrix(found["minus_w"][tile]).permute(1, 0, 2).flatten(1)[:rows]
        u = matrix(found["u_transposed"][tile]).flatten(0, 1)[:, :rows]
        assert relative_error(-w, inverse @ (k * total.exp())) < 8e-3
        assert relative_error(u, (inverse @ v).T) < 8e-3
        assert relative_error(matrix(found["scores"][tile])[0, :rows, :rows], scores) < 8e-3
        kept = matrix(found["k_kept"][tile]).permute(1, 0, 2).flatten(1)[:rows]
        assert relative_error(kept, k * (total[-1:] - total).exp()) < 8e-3


@pytest.mark.parametrize("names", [FORWARD, BACKWARD])
@pytest.mark.parametrize("gate", ["mixed", "none", "floor"])
def test_the_slim_layout_differs_from_the_wide_one_below_the_normal_range_only(
    emulation: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], gate: str
) -> None:
    inputs, documents = make_inputs(150, gate), Documents((0, 1, 1, 66, 150))
    wide = factors(inputs, documents, names)
    monkeypatch.setenv(kernels.PREPARE_VARIABLE, "slim")
    slim = factors(inputs, documents, names)
    emulation(True)
    turned = factors(inputs, documents, names)
    assert all(torch.isfinite(x.float()).all() for x in slim.values())
    for name in names:
        assert torch.equal(slim[name], turned[name]), name
        # Growing in place keeps subnormal values of k 2^G, which the wide layout flushes.
        torch.testing.assert_close(slim[name], wide[name], rtol=0.0, atol=1e-36)


def test_an_unknown_layout_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(kernels.PREPARE_VARIABLE, "narrow")
    with pytest.raises(ValueError, match="must be one of wide, slim, found 'narrow'"):
        kernels.prepare_forward(kernels.PrepareArguments(), CPU)
