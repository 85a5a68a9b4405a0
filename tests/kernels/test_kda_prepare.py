"""The kernels that make the factors of KDA, in emulation: prepare against float64, rebuild against prepare, the decay signals counted beside."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from samite_kernels.kda import decay_counts
from samite_kernels.kda import sm90_launch as kernels
from samite_kernels.kda.documents import Documents
from samite_kernels.kda.gate import bounded_log_decay, l2_normalize
from samite_kernels.kda.sm90_counts import TALLY_ROW, VARIABLE, counting

HEADS, SCALE, BOUND = 2, 0.125, -5.0
CPU = torch.device("cpu")
IMAGES = {"minus_w": 8192, "q_grown": 8192, "k_kept": 8192, "u_transposed": 8192, "inverse": 4096, "scores": 4096}
REBUILT = ("minus_w", "q_grown", "k_kept", "keep")
Factors = dict[str, Tensor]


def make_inputs(num_tokens: int, gate: str) -> Factors:
    generator = torch.Generator().manual_seed(3)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    center, spread = {"mixed": (0.0, 3.0), "init": (-4.0, 1.0), "floor": (60.0, 0.0), "none": (-60.0, 0.0)}[gate]
    inputs = {name: normal(num_tokens, HEADS, 128).bfloat16() for name in "qkv"}
    inputs |= {"g": (center + spread * normal(num_tokens, HEADS, 128)).bfloat16(), "beta": normal(num_tokens, HEADS).bfloat16()}
    return inputs | {"a_log": 0.1 * normal(HEADS), "dt_bias": 0.1 * normal(HEADS, 128)}


def factors(inputs: Factors, documents: Documents, *, lower_bound: float = BOUND, counts: Tensor | None = None) -> Factors:
    """What prepare makes, and as `again_...` what rebuild makes of the inverse."""
    table = kernels.chunk_table(documents, CPU)
    tiles = table.num_chunks * HEADS
    made = {name: torch.full((tiles, size), float("nan"), dtype=torch.bfloat16) for name, size in IMAGES.items()}
    made["keep"] = torch.full((tiles, 128), float("nan"))
    again = {name: torch.full_like(made[name], float("nan")) for name in REBUILT}
    numbers = {"num_chunks": table.num_chunks, "num_heads": HEADS, "scale": SCALE, "lower_bound": lower_bound}
    addresses = kernels.addresses_of(inputs | made | {"chunks": table.chunks, "counts": counts})
    kernels.prepare(kernels.fill(kernels.PrepareArguments, addresses, **numbers, **counting(lower_bound)), CPU)
    addresses |= kernels.addresses_of(again)
    kernels.rebuild(kernels.fill(kernels.RebuildArguments, addresses, **numbers), CPU)
    return made | {f"again_{name}": x for name, x in again.items()}


def matrix(image: Tensor) -> Tensor:
    """Panels of 64 columns and 64 rows, pieces of a row permuted by the row, as [panels, 64, 64]."""
    panels = image.view(-1, 64, 8, 8)
    pieces = torch.arange(8).view(1, 8) ^ (torch.arange(64).view(64, 1) & 7)
    return panels.gather(2, pieces.view(1, 64, 8, 1).expand_as(panels)).flatten(2)


def relative_error(found: Tensor, wanted: Tensor) -> float:
    return float((found.double() - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("gate", ["mixed", "init", "floor"])
def test_factors_equal_their_definition(emulation: Callable[[bool], None], gate: str) -> None:
    inputs = make_inputs(90, gate)
    found = factors(inputs, Documents((0, 90)))
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


@pytest.mark.parametrize("gate", ["mixed", "none", "floor"])
def test_factors_are_rebuilt_as_they_were_and_in_any_order_of_threads(emulation: Callable[[bool], None], gate: str) -> None:
    inputs, documents = make_inputs(150, gate), Documents((0, 1, 1, 66, 150))
    found = factors(inputs, documents)
    emulation(True)
    turned = factors(inputs, documents)
    for name, x in found.items():
        assert torch.isfinite(x.float()).all(), name
        assert torch.equal(x, turned[name]), name
    for name in REBUILT:
        assert relative_error(found[f"again_{name}"], found[name].double()) < 3e-3, name


def tallied(inputs: Factors, documents: Documents, lower_bound: float = BOUND) -> Tensor:
    """Sums over heads of a tally."""
    tally = torch.zeros(HEADS, TALLY_ROW, dtype=torch.int64)
    factors(inputs, documents, lower_bound=lower_bound, counts=tally)
    return tally.sum(0)


@pytest.fixture(params=["beside", "idle"])
def counted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Who counts: all warps beside their work, or those that idle."""
    monkeypatch.setenv(VARIABLE, request.param)
    return str(request.param)


@pytest.mark.parametrize("gate", ["mixed", "init", "floor", "none"])
def test_the_first_chunk_of_the_first_head_is_counted_as_torch_does(emulation: Callable[[bool], None], counted: str, gate: str) -> None:
    inputs = make_inputs(60, gate)
    sums = tallied(inputs, Documents((0, 60)))
    emulation(True)
    assert torch.equal(tallied(inputs, Documents((0, 60))), sums)
    q, k, g = (inputs[name][None, :, :1] for name in ("q", "k", "g"))
    beta, bias = inputs["beta"][None, :, :1], inputs["dt_bias"][0]
    wanted = decay_counts(q, k, g, beta, inputs["a_log"][:1], bias, anchor="start", scale=SCALE)
    pairs = {
        wanted.gate_sat_count: sums[0] & 0xFFFFFFFF,
        wanted.gate_open_count: sums[0] >> 32,
        wanted.benign_total: sums[1] & 0xFFFFFFFF,
        wanted.benign_flush_count: sums[1] >> 32,
        wanted.gate_total: sums[8] * 128,
        wanted.chunk_total: sums[9] * 128,
    }
    pairs |= dict(zip(wanted.chunk_forget_counts.values(), sums[2:5], strict=True))
    for theirs, ours in pairs.items():
        assert abs(int(theirs) - int(ours)) <= 2, (pairs, wanted)
    assert int(sums[6]) == int(sums[7]) == 0


def test_a_bound_that_lets_a_tile_overflow_is_told(emulation: Callable[[bool], None], counted: str) -> None:
    inputs = make_inputs(100, "mixed")
    lossy = int(tallied(inputs, Documents((0, 100)), lower_bound=-12.0)[7])
    raw = {name: inputs[name][None] for name in ("q", "k", "g", "beta")}
    wanted = decay_counts(**raw, A_log=inputs["a_log"], dt_bias=inputs["dt_bias"].flatten(), lower_bound=-12.0, anchor="start")
    assert lossy > 0
    assert lossy == pytest.approx(int(wanted.lossy_flush_events), rel=1e-2)


def test_a_gate_that_is_not_a_number_is_told(emulation: Callable[[bool], None], counted: str) -> None:
    inputs = make_inputs(100, "init")
    inputs["g"][70, 1, 5] = float("nan")
    inputs["q"][3, 0, 2] = float("nan")
    assert int(tallied(inputs, Documents((0, 100)))[6]) == 1 + 128
