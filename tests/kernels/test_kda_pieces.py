"""The forward cut into pieces: where documents are cut, the map of a piece against its definition, and everything against float64 and the plain scan."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from samite_kernels.kda import sm90, sm90_pieces
from samite_kernels.kda.chunkwise import chunkwise_core
from samite_kernels.kda.documents import Documents
from samite_kernels.kda.gate import bounded_log_decay, l2_normalize

CPU = torch.device("cpu")


def cut(offsets: tuple[int, ...], num_heads: int = 1, multiprocessors: int = 132, least_chunks: int = 32) -> sm90_pieces.Pieces | None:
    return sm90_pieces.pieces_of(Documents(offsets), num_heads, CPU, multiprocessors, least_chunks)


@pytest.mark.parametrize(("num_heads", "count"), [(1, 32), (4, 16), (8, 8), (12, 5), (16, 4)])
def test_a_long_document_is_cut_into_as_many_pieces_as_run_at_once(num_heads: int, count: int) -> None:
    pieces = cut((0, 65536), num_heads)
    assert pieces is not None
    assert pieces.count == count
    assert 2 * count * num_heads <= 132
    lengths = pieces.first_chunk.diff()
    assert int(lengths.sum()) == 1024
    assert int(lengths.max() - lengths.min()) <= 1
    assert pieces.last_piece.tolist() == [count - 1]


@pytest.mark.parametrize("offsets", [(0, 65536), (0, 30000, 30001, 65536)])
@pytest.mark.parametrize("num_heads", [23, 32, 96])
def test_enough_heads_are_not_cut(offsets: tuple[int, ...], num_heads: int) -> None:
    assert cut(offsets, num_heads) is None


@pytest.mark.parametrize("offsets", [(0, 0), (0, 1), (0, 64 * 95), tuple(range(0, 64 * 200, 64))])
def test_short_and_many_documents_are_not_cut(offsets: tuple[int, ...]) -> None:
    assert cut(offsets) is None


def test_every_document_has_a_piece_and_pieces_stay_within_documents() -> None:
    offsets = (0, 0, 64 * 500, 64 * 500 + 1, 64 * 800, 64 * 800)
    pieces = cut(offsets, 2)
    assert pieces is not None
    ends = [0, *torch.tensor(Documents(offsets).num_chunks(64)).cumsum(0).tolist()]
    first = pieces.first_piece.tolist()
    for document, (a, b) in enumerate(pairwise(ends)):
        mine = pieces.first_chunk[first[document] : first[document + 1] + 1].tolist()
        assert mine[0] == a
        assert mine[-1] == b
    assert pieces.count <= 33


def test_the_switch_is_off_by_default_and_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    documents = Documents((0, 65536))
    monkeypatch.setattr(sm90_pieces, "num_multiprocessors", lambda _device: 132)
    monkeypatch.delenv(sm90_pieces.VARIABLE, raising=False)
    assert sm90_pieces.wanted_pieces(documents, 4, CPU) is None
    monkeypatch.setenv(sm90_pieces.VARIABLE, "1")
    assert sm90_pieces.wanted_pieces(documents, 4, CPU) is not None
    monkeypatch.setenv(sm90_pieces.VARIABLE, "yes")
    with pytest.raises(ValueError, match="must be 0 or 1, found 'yes'"):
        sm90_pieces.wanted_pieces(documents, 4, CPU)


def make_inputs(num_tokens: int, num_heads: int, gate: str) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(7)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    center, spread = {"mixed": (0.0, 3.0), "init": (-4.0, 1.0), "none": (-60.0, 0.0), "floor": (60.0, 0.0)}[gate]
    shape = (1, num_tokens, num_heads, 128)
    inputs = {name: normal(*shape).bfloat16() for name in "qkv"}
    inputs |= {"g": (center + spread * normal(*shape)).bfloat16(), "beta": normal(*shape[:3]).bfloat16()}
    return inputs | {"A_log": 0.1 * normal(num_heads), "dt_bias": 0.1 * normal(num_heads * 128)}


def exact(inputs: dict[str, Tensor], documents: Documents, state: Tensor) -> tuple[Tensor, Tensor]:
    x = {name: value.double() for name, value in inputs.items()}
    q, k, v, g, beta = (x[name].flatten(0, 1) for name in ("q", "k", "v", "g", "beta"))
    decay = bounded_log_decay(g, x["A_log"], x["dt_bias"], lower_bound=-5.0)
    return chunkwise_core(
        l2_normalize(q), l2_normalize(k), v, decay, beta.sigmoid(), scale=128**-0.5, documents=documents, initial_state=state.double()
    )


def rounded_factors(gate: str, num_chunks: int) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """W, U, kt of each chunk and e^G_last, in float64 as they are on paper."""
    x = {name: value.double() for name, value in make_inputs(64 * num_chunks, 1, gate).items()}
    decay = bounded_log_decay(x["g"], x["A_log"], x["dt_bias"], lower_bound=-5.0)[0, :, 0]
    k, v, beta = l2_normalize(x["k"])[0, :, 0], x["v"][0, :, 0], x["beta"].sigmoid()[0, :, 0]
    factors = []
    for rows in torch.arange(64 * num_chunks).split(64):
        total, key = decay[rows].cumsum(0), k[rows]
        between = (total[:, None] - total[None]).clamp(max=0).exp()
        strengths = torch.einsum("id,jd,ijd->ij", key, key, between).tril(-1) * beta[rows, None]
        inverse = torch.linalg.inv(torch.eye(64).double() + strengths) * beta[None, rows]
        factors.append((inverse @ (key * total.exp()), inverse @ v[rows], key * (total[-1] - total).exp(), total[-1].exp()[:, None]))
    return factors


@pytest.mark.parametrize("gate", ["none", "init", "mixed"])
def test_a_map_over_a_long_piece_carries_a_state_as_exactly_as_the_scan(gate: str) -> None:
    factors = rounded_factors(gate, 64)

    def scan(state: Tensor, chunks: slice, *, values: float = 1.0, exact: bool = False) -> Tensor:
        def rounded(x: Tensor) -> Tensor:  # to bfloat16 where the kernels do
            return x if exact else x.bfloat16().double()

        for w, u, kt, keep in factors[chunks]:
            new = rounded(values * rounded(u) - rounded(w) @ rounded(state))
            state = keep * state + rounded(kt).T @ new
        return state

    exact = found = by_scan = torch.randn(128, 128, generator=torch.Generator().manual_seed(1)).double()
    for piece in (slice(0, 32), slice(32, 64)):
        exact, by_scan = scan(exact, piece, exact=True), scan(by_scan, piece)
        found = scan(torch.eye(128).double(), piece, values=0.0) @ found + scan(torch.zeros(128, 128).double(), piece)
        errors = [float((x - exact).norm() / exact.norm()) for x in (found, by_scan)]
        assert errors[0] < 1.1 * errors[1] < 6e-3, errors


def in_pieces(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Cuts wherever it can; the counts of pieces of the calls so far."""
    found: list[int] = []

    def wanted(documents: Documents, num_heads: int, device: torch.device) -> sm90_pieces.Pieces | None:
        pieces = sm90_pieces.pieces_of(documents, num_heads, device, 16, 1)
        found.append(0 if pieces is None else pieces.count)
        return pieces

    monkeypatch.setattr(sm90, "wanted_pieces", wanted)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gate", "offsets", "with_state"),
    [
        ("none", (0, 330), True),
        ("mixed", (0, 0, 1, 290, 290), True),
        ("init", (0, 320), False),
        ("floor", (0, 200), True),
    ],
)
def test_pieces_are_as_exact_as_the_scan(
    emulation: object, monkeypatch: pytest.MonkeyPatch, gate: str, offsets: tuple[int, ...], with_state: bool
) -> None:
    inputs, documents = make_inputs(offsets[-1], 1, gate), Documents(offsets)
    state = torch.randn(documents.count, 1, 128, 128, generator=torch.Generator().manual_seed(8)) * float(with_state)
    options = {"scale": 128**-0.5, "lower_bound": -5.0, "cu_seqlens": torch.tensor(offsets), "initial_state": state if with_state else None}
    wanted = exact(inputs, documents, state)
    plain = sm90.chunk_kda_sm90(**inputs, **options)
    counts = in_pieces(monkeypatch)
    found = sm90.chunk_kda_sm90(**inputs, **options)
    assert counts[0] >= 4
    for a, b, x in zip(found, plain, wanted, strict=True):
        error, of_scan = (float((y.double().view(x.shape) - x).norm() / x.norm()) for y in (a, b))
        assert error < 1.3 * of_scan + 2e-4, (error, of_scan)
    for document, (start, end) in enumerate(pairwise(offsets)):
        if start == end:
            assert torch.equal(found[1][document], state[document])


@pytest.mark.slow
def test_gradients_follow_from_states_that_pieces_kept(emulation: object, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = make_inputs(250, 1, "init")
    options = {"scale": 128**-0.5, "lower_bound": -5.0, "cu_seqlens": None, "initial_state": None}
    d_o = torch.randn(inputs["v"].shape, generator=torch.Generator().manual_seed(9)).bfloat16()

    def gradients() -> list[Tensor]:
        leaves = {name: x.clone().requires_grad_() for name, x in inputs.items()}
        o, _ = sm90.chunk_kda_sm90(**leaves, **options)
        return [o.detach(), *torch.autograd.grad(o, list(leaves.values()), d_o)]

    plain = gradients()
    counts = in_pieces(monkeypatch)
    found = gradients()
    assert counts[0] == 4
    for name, a, b in zip(("o", *inputs), found, plain, strict=True):
        bar = 2e-2 if name == "A_log" else 6e-3  # one number, of terms that cancel
        assert float((a.double() - b.double()).norm() / b.double().norm()) < bar, name


@pytest.mark.slow
def test_it_does_not_matter_in_which_order_threads_run(emulation: object, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = make_inputs(200, 1, "mixed")
    options = {"scale": 1.0, "lower_bound": -5.0, "cu_seqlens": None, "initial_state": torch.randn(1, 1, 128, 128)}
    assert in_pieces(monkeypatch) == []
    first = sm90.chunk_kda_sm90(**inputs, **options)
    emulation(True)  # type: ignore[operator]
    again = sm90.chunk_kda_sm90(**inputs, **options)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
