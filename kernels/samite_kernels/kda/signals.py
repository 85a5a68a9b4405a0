"""Decay-underflow signals: integer counts that say whether the gate still works and whether a product was lost.

Called by the trainer on sampled layers and steps. Counts add up over shards and micro-batches (maxima take the maximum).
Only `lossy_flush_events > 0`, `tile_margin < 0` or a sustained trend deserve an alarm: a coefficient that is truly below
1e-38 and flushes to zero is correct arithmetic.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from samite_kernels.kda.chunkwise import ChunkLayout
from samite_kernels.kda.documents import find_documents
from samite_kernels.kda.gate import bounded_log_decay, l2_normalize

LN_MAX_FLOAT32 = 88.7228
LN_MIN_NORMAL = -87.3365
FORGET_THRESHOLDS = {"normal": -87.34, "bfloat16_subnormal": -92.19, "float32_subnormal": -103.28}
"""Chunk decay in nats below which a channel carries nothing across a chunk, by number format."""
_NEGLIGIBLE = -16.6
MEMORYLESS = -6.907755
Anchor = Literal["first", "start", "middle", "balanced"]


@dataclass(frozen=True, kw_only=True, slots=True)
class DecayCounts:
    """0-dim tensors on the device of the gate: int64 counts, float32 maxima. Divide `x_count` by its `_total` for a share."""

    gate_total: Tensor
    gate_sat_count: Tensor
    """g <= lower_bound + 0.05: the gate's gradient is nearly dead."""
    gate_open_count: Tensor
    """g >= -1e-4: the channel never forgets."""
    tile_span_max: Tensor
    """Largest fall within a tile from its anchor to its last row, in nats."""
    tile_margin: Tensor
    """What is left to the largest float32: below 0 a tile has overflowed."""
    lossy_flush_events: Tensor
    """Causal (i, j, channel) whose true coefficient matters (above 2^-24) while one of its two factors left the normal range."""
    benign_flush_count: Tensor
    """Operands of the state products (q, k grown; k kept) that scaling took below the normal range; their value is truly that small."""
    benign_total: Tensor
    chunk_total: Tensor
    chunk_forget_counts: dict[str, Tensor]
    """(chunk, head, channel) whose decay over the chunk is below each of FORGET_THRESHOLDS."""
    chunk_decay_min: Tensor
    """Lowest summed log decay of a chunk over all heads and channels, in nats; 0 without tokens."""
    memoryless_head_count: Tensor
    """Heads in which every channel keeps less than 1e-3 over a chunk on average."""
    head_total: Tensor
    beta_sat_count: Tensor
    beta_total: Tensor
    nonfinite_operands: Tensor


def decay_counts(
    q: Tensor,
    k: Tensor,
    g: Tensor,
    beta: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    *,
    lower_bound: float = -5.0,
    cu_seqlens: Tensor | None = None,
    chunk_size: int = 64,
    tile_size: int = 16,
    anchor: Anchor = "first",
    scale: float = 1.0,
) -> DecayCounts:
    """Counts for one call of `chunk_kda` with the same raw inputs. No gradient; no synchronisation beyond `cu_seqlens`.

    `scale` is that of q, for the operands that flush.
    """
    with torch.no_grad():
        return log_decay_counts(
            bounded_log_decay(g.float(), A_log.float(), dt_bias.float(), lower_bound=lower_bound),
            beta.float().sigmoid(),
            q=l2_normalize(q.float()) * scale,
            k=l2_normalize(k.float()),
            lower_bound=lower_bound,
            cu_seqlens=cu_seqlens,
            chunk_size=chunk_size,
            tile_size=tile_size,
            anchor=anchor,
        )


@torch.no_grad()
def log_decay_counts(
    log_decay: Tensor,
    beta: Tensor,
    *,
    q: Tensor | None = None,
    k: Tensor | None = None,
    lower_bound: float = -5.0,
    cu_seqlens: Tensor | None = None,
    chunk_size: int = 64,
    tile_size: int = 16,
    anchor: Anchor = "first",
) -> DecayCounts:
    """The same from prepared inputs: log_decay [B, T, H, K] of any size, so that a broken bound can be seen, beta in [0, 1]."""
    documents = find_documents(cu_seqlens, batch=log_decay.shape[0], num_tokens=log_decay.shape[1])
    layout = ChunkLayout(documents, chunk_size, log_decay.device)
    decay = layout.pack(log_decay.flatten(0, 1))
    filled = layout.pack(torch.ones_like(log_decay[..., :1]).flatten(0, 1)).bool()
    cumulative = decay.cumsum(-2)
    total = cumulative[..., -1, :]
    span, lossy = _tile_counts(decay, filled, tile_size=tile_size, anchor=anchor, lower_bound=lower_bound)
    flushed = operands = torch.zeros((), dtype=torch.int64, device=log_decay.device)
    for x, exponent in ((q, cumulative), (k, total.unsqueeze(-2) - cumulative)):
        if x is not None:
            before = layout.pack(x.flatten(0, 1))
            flushed = flushed + ((before != 0) & ((before.double() * exponent.double().exp()).abs() < 2.0**-126)).sum()
            operands = operands + (before != 0).sum()
    checked = [x for x in (q, k, log_decay, beta) if x is not None]
    memoryless = (total.mean(0) < MEMORYLESS).all(-1) if layout.num_chunks else torch.zeros_like(total[..., 0]).bool()

    def number(value: int) -> Tensor:
        return torch.full((), value, dtype=torch.int64, device=log_decay.device)

    return DecayCounts(
        gate_total=number(log_decay.numel()),
        gate_sat_count=(log_decay <= lower_bound + 0.05).sum(),
        gate_open_count=(log_decay >= -1e-4).sum(),
        tile_span_max=span,
        tile_margin=LN_MAX_FLOAT32 - span,
        lossy_flush_events=lossy,
        benign_flush_count=flushed,
        benign_total=operands,
        chunk_total=number(total.numel()),
        chunk_forget_counts={name: (total < bound).sum() for name, bound in FORGET_THRESHOLDS.items()},
        chunk_decay_min=total.amin().float() if total.numel() else torch.zeros((), device=log_decay.device),
        memoryless_head_count=memoryless.sum(),
        head_total=number(log_decay.shape[2]),
        beta_sat_count=((beta < 1e-3) | (beta > 0.999)).sum(),
        beta_total=number(beta.numel()),
        nonfinite_operands=torch.stack([(~torch.isfinite(x)).sum() for x in checked]).sum(),
    )


def _tile_counts(decay: Tensor, filled: Tensor, *, tile_size: int, anchor: Anchor, lower_bound: float) -> tuple[Tensor, Tensor]:
    """Largest distance from the anchor of a tile, and the lossy flushes, over decay [chunks, H, C, K]."""
    tiles = decay.unflatten(2, (-1, tile_size)).cumsum(-2)
    filled = filled.unflatten(2, (-1, tile_size))
    reference = {
        "first": tiles[..., :1, :],
        "start": torch.zeros_like(tiles[..., :1, :]),
        "middle": tiles[..., tile_size // 2 : tile_size // 2 + 1, :],
        "balanced": tiles[..., :1, :] + 0.5 * (tile_size - 1) * lower_bound,
    }[anchor]
    row, column = tiles - reference, reference - tiles
    ends = torch.stack([row[..., 0, :].abs(), row[..., -1, :].abs()])
    span = ends.amax().float() if ends.numel() else torch.zeros((), device=decay.device)
    row_lost, column_lost = (((x < LN_MIN_NORMAL) | (x > LN_MAX_FLOAT32)) & filled for x in (row, column))
    lossy = torch.zeros((), dtype=torch.int64, device=decay.device)
    for i in range(tile_size):
        matters = (tiles[..., i : i + 1, :] - tiles[..., : i + 1, :] > _NEGLIGIBLE) & filled[..., i : i + 1, :]
        lossy += (matters & (row_lost[..., i : i + 1, :] | column_lost[..., : i + 1, :])).sum()
    return span, lossy
