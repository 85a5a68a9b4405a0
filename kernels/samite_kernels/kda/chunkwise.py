"""KDA chunk by chunk in plain torch: the same result as the recurrence, as dense products over all chunks at once.

Only the state passes from chunk to chunk; everything else is batched over chunks, tiles and heads, so that two CPU cores can
train with it. Differentiable by autograd, deterministic, float32 or float64. `rounding` repeats the points where the CUDA
forward rounds to bfloat16, for tests that ask for tight agreement.

    scores  A_kk = stril(beta k e^G (k e^-G)^T)    A_qk = s tril(q e^G (k e^-G)^T)     in row tiles of 16, one anchor each
    factors [U | W] = (I + A_kk)^-1 [beta v | beta k e^G]
    scan    Vn = U - W S ;  S' = e^(G_C) S + (k e^(G_C - G))^T Vn
    output  O  = s q e^G S + A_qk Vn
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from samite_kernels.kda.contract import LOWEST_BOUND
from samite_kernels.kda.documents import Documents

CHUNK_SIZE = 32
"""Half of what the kernels take: on a CPU core short documents are padded less and the triangular solve is smaller (97 to 57 ms forward and
backward for a row of 2048 tokens with 22 captions, 4 heads of 32)."""
TILE_SIZE = 16


def chunkwise_core(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    *,
    scale: float,
    documents: Documents,
    initial_state: Tensor | None = None,
    chunk_size: int = CHUNK_SIZE,
    tile_size: int = TILE_SIZE,
    rounding: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """Prepared inputs on a flat token axis: q, k, log_decay [N, H, K], v [N, H, V], beta [N, H], one dtype.

    Returns o [N, H, V] and the state after each document, [documents, H, K, V]. `tile_size` is the number of rows that share
    an anchor: with a bound of -5 only 16 is safe, larger ones exist for the tests that show it.
    """
    num_heads, key_dim = q.shape[1:]
    layout = ChunkLayout(documents, chunk_size, q.device)
    if layout.num_chunks == 0:
        states = initial_state if initial_state is not None else q.new_zeros(documents.count, num_heads, key_dim, v.shape[-1])
        return torch.zeros_like(v), states.clone()

    def rounded(x: Tensor) -> Tensor:
        return x if rounding is None else x.to(rounding).to(x.dtype)

    q_c, k_c, v_c, decay_c = (layout.pack(x) for x in (q, k, v, log_decay))
    beta_c = layout.pack(beta.unsqueeze(-1))
    cumulative = decay_c.cumsum(-2)
    last = cumulative[..., -1:, :]

    score_kk, score_qk = _scores(q_c, k_c, cumulative, tile_size=tile_size, rounded=rounded)
    score_kk = beta_c * score_kk.tril(-1)
    score_qk = rounded(scale * score_qk.tril())
    grow = cumulative.exp()
    k_grown, q_grown = rounded(k_c * grow), rounded(scale * q_c * grow)
    k_kept = rounded(k_c * (last - cumulative).exp())
    u, w = _solve(score_kk, beta_c, v_c, k_grown, rounded=rounded)
    v_new, chunk_states, final = _scan(u, w, k_kept, last.exp().transpose(-1, -2), layout, initial_state, rounded)
    o = q_grown @ rounded(chunk_states) + score_qk @ v_new
    return layout.unpack(o), final


def _scores(q: Tensor, k: Tensor, cumulative: Tensor, *, tile_size: int, rounded: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """sum_d x_id k_jd exp(G_id - G_jd) for x = k and x = q, [.., C, C]; entries above the diagonal are not defined.

    The anchor of a row tile is its first row plus half of what a tile can decay: causal, and balanced within the range.
    """
    chunk_size = q.shape[-2]
    offset = 0.5 * (tile_size - 1) * LOWEST_BOUND
    kk_rows: list[Tensor] = []
    qk_rows: list[Tensor] = []
    for start in range(0, chunk_size, tile_size):
        stop = min(start + tile_size, chunk_size)
        anchor = cumulative[..., start : start + 1, :] + offset
        fall = (cumulative[..., start:stop, :] - anchor).exp()
        columns = rounded(k[..., :stop, :] * (anchor - cumulative[..., :stop, :]).exp()).transpose(-1, -2)
        rest = (0, chunk_size - stop)
        kk_rows.append(torch.nn.functional.pad(rounded(k[..., start:stop, :] * fall) @ columns, rest))
        qk_rows.append(torch.nn.functional.pad(rounded(q[..., start:stop, :] * fall) @ columns, rest))
    return torch.cat(kk_rows, -2), torch.cat(qk_rows, -2)


def _solve(score_kk: Tensor, beta: Tensor, v: Tensor, k_grown: Tensor, *, rounded: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """U and W, the rows of a chunk after the delta rule has been applied within it."""
    identity = torch.eye(score_kk.shape[-1], dtype=score_kk.dtype, device=score_kk.device)
    rows = identity.expand_as(score_kk) * beta.transpose(-1, -2)
    inverse_beta = rounded(torch.linalg.solve_triangular(score_kk, rows, upper=False, unitriangular=True))
    return rounded(inverse_beta @ v), rounded(inverse_beta @ k_grown)


def _scan(
    u: Tensor,
    w: Tensor,
    k_kept: Tensor,
    keep: Tensor,
    layout: "ChunkLayout",
    initial_state: Tensor | None,
    rounded: Callable[[Tensor], Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    """Passes the state through the chunks of each document. Returns Vn, the state before each chunk, the last states."""
    num_heads, key_dim, value_dim = u.shape[1], w.shape[-1], u.shape[-1]
    shape = (len(layout.order), num_heads, key_dim, value_dim)
    state = u.new_zeros(shape) if initial_state is None else initial_state[layout.order_index]
    v_new: list[Tensor] = []
    before: list[Tensor] = []
    finished: list[Tensor] = []
    # Split once: a slice for each step would cost a full-sized zero tensor each in the backward pass.
    steps = zip(*(x.split(layout.active) for x in (u, w, k_kept, keep)), strict=True)
    for active, (u_step, w_step, k_step, keep_step) in zip(layout.active, steps, strict=True):
        finished.append(state[active:])
        state = state[:active]
        fresh = rounded(u_step - w_step @ rounded(state))
        before.append(state)
        v_new.append(fresh)
        state = keep_step * state + k_step.transpose(-1, -2) @ fresh
    finished.append(state)
    final = torch.cat(finished[::-1])[layout.rank_index]
    return torch.cat(v_new), torch.cat(before), final


class ChunkLayout:
    """Chunks of all documents, ordered by position in their document, long documents first: a step of the scan is a slice."""

    def __init__(self, documents: Documents, chunk_size: int, device: torch.device) -> None:
        self.chunk_size = chunk_size
        num_chunks = documents.num_chunks(chunk_size)
        self.order = sorted(range(documents.count), key=lambda document: -num_chunks[document])
        steps = max(num_chunks, default=0)
        self.active = [sum(n > step for n in num_chunks) for step in range(steps)]
        self.num_chunks = sum(num_chunks)
        self.order_index = torch.tensor(self.order, device=device)
        self.rank_index = torch.argsort(self.order_index)
        self._num_tokens = documents.num_tokens
        first_tokens = [
            (documents.offsets[document] + step * chunk_size, documents.offsets[document + 1])
            for step, active in enumerate(self.active)
            for document in self.order[:active]
        ]
        first, end = torch.tensor(first_tokens, dtype=torch.long, device=device).view(-1, 2, 1).unbind(1)
        tokens = first + torch.arange(chunk_size, device=device)
        self._token_of_slot = tokens.masked_fill(tokens >= end, self._num_tokens)
        self._rows: dict[int, tuple[Tensor, Tensor]] = {}

    def pack(self, x: Tensor) -> Tensor:
        """[N, H, D] tokens to [chunks, H, C, D], contiguous; empty slots are zero, which neither decays nor writes."""
        num_heads = x.shape[1]
        packed: Tensor = _Gather.apply(x.reshape(-1, x.shape[-1]), *self._rows_of(num_heads))
        return packed.view(self.num_chunks, num_heads, self.chunk_size, x.shape[-1])

    def unpack(self, x: Tensor) -> Tensor:
        """[chunks, H, C, D] back to [N, H, D]."""
        rows, places = self._rows_of(x.shape[1])
        tokens: Tensor = _Gather.apply(x.reshape(-1, x.shape[-1]), places, rows)
        return tokens.view(self._num_tokens, *x.shape[1::2])

    def _rows_of(self, num_heads: int) -> tuple[Tensor, Tensor]:
        """For [N * H] rows: the row of each packed place, N * H where it is empty, and the packed place of each row."""
        if num_heads not in self._rows:
            heads = torch.arange(num_heads, device=self._token_of_slot.device)
            rows = self._token_of_slot.unsqueeze(1) * num_heads + heads.view(-1, 1)
            rows = rows.clamp(max=self._num_tokens * num_heads).flatten()
            places = torch.empty(self._num_tokens * num_heads + 1, dtype=torch.long, device=rows.device)
            places[rows] = torch.arange(rows.numel(), device=rows.device)
            self._rows[num_heads] = rows, places[:-1]
        return self._rows[num_heads]


class _Gather(torch.autograd.Function):
    """Rows by index, zero where the index is past the end. Its own gradient is a gather too: fast and deterministic."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(index, inverse)
        return torch.cat([x, x.new_zeros(1, *x.shape[1:])]).index_select(0, index)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        index, inverse = ctx.saved_tensors
        gradient: Tensor = _Gather.apply(gradients[0], inverse, index)
        return gradient, None, None
