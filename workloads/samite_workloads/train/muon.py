"""Muon: momentum, orthogonalised matrix by matrix; per head for queries, keys and values, per expert for expert stacks.

    M <- mu M + G;  U = G + mu M (Nesterov);  O = NS5(U) * 0.2 sqrt(max(n, m));  W <- W - eta (O + lambda W)

Sources: Moonlight and K2 papers for the scale (the update has the RMS of AdamW's, so one learning rate serves both), K3 report for the per-head
split. Sharding never changes a bit of the result: a matrix is always orthogonalised whole, by one rank, with the same shapes. Momentum is sharded as
the parameter is; a matrix whose blocks lie whole inside the shards needs no communication, any other is gathered by its owner (`exchange.py`).
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from samite_workloads.parallel.sharding import local
from samite_workloads.train.exchange import OwnerExchange, Slot

_NS_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_NS_STEPS = 5
_UPDATE_RMS = 0.2
_BATCH_ELEMENTS = 1 << 25


@dataclass(frozen=True, kw_only=True, slots=True)
class Matrix:
    """A parameter that Muon updates. It is read as blocks of `block_rows` rows of the last dimension's width; each block is cut into `parts` rows again.

    A plain matrix is one block of one part; heads are blocks; `kv_b_proj` has blocks of a key part and a value part; an expert stack [E, n, m] has
    E blocks of n rows.
    """

    name: str
    parameter: nn.Parameter
    block_rows: int
    parts: tuple[int, ...]
    decay: bool = True

    def __post_init__(self) -> None:
        rows = self.parameter.numel() // self.parameter.shape[-1]
        if rows % self.block_rows or sum(self.parts) != self.block_rows:
            raise ValueError(
                f"{self.name} of shape {tuple(self.parameter.shape)} does not split into blocks of {self.block_rows} rows with parts {self.parts}"
            )


def orthogonalise(blocks_BNM: Tensor) -> Tensor:
    """NS5 of each [n, m] block of [B, n, m], in the input's dtype: singular values go to about 1 (0.65 to 1.25 for condition numbers below 100)."""
    a, b, c = _NS_COEFFICIENTS
    x = blocks_BNM.mT if blocks_BNM.shape[-2] > blocks_BNM.shape[-1] else blocks_BNM
    norm = torch.linalg.matrix_norm(x.float(), keepdim=True)
    x = x / (norm + 1e-7).to(x.dtype)
    for _ in range(_NS_STEPS):
        gram = torch.bmm(x, x.mT)
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)
    return x.mT if blocks_BNM.shape[-2] > blocks_BNM.shape[-1] else x


def muon_direction(update: Tensor, block_rows: int, parts: Sequence[int]) -> Tensor:
    """Orthogonalised and scaled `update`, same shape: each part of each block alone, with RMS 0.2."""
    return muon_directions([(update, block_rows, parts)])[0]


def muon_directions(updates: Sequence[tuple[Tensor, int, Sequence[int]]]) -> list[Tensor]:
    """`muon_direction` of each (update, block_rows, parts). Pieces of one size are orthogonalised in one batch: a tenth of the kernel launches."""
    pieces: list[list[Tensor]] = []
    by_size: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for index, (update, block_rows, parts) in enumerate(updates):
        pieces.append(list(update.reshape(-1, block_rows, update.shape[-1]).split(list(parts), dim=1)) if update.numel() else [])
        for number, piece in enumerate(pieces[-1]):
            by_size[piece.shape[-2], piece.shape[-1]].append((index, number))
    for (rows, columns), places in by_size.items():
        for batch in _batches(places, pieces, rows * columns):
            together = torch.cat([pieces[i][n] for i, n in batch]) if len(batch) > 1 else pieces[batch[0][0]][batch[0][1]]
            scaled = orthogonalise(together) * (_UPDATE_RMS * math.sqrt(max(rows, columns)))
            for (i, n), piece in zip(batch, scaled.split([pieces[i][n].shape[0] for i, n in batch]), strict=True):
                pieces[i][n] = piece
    return [
        (torch.cat(found, dim=1) if len(found) > 1 else found[0]).reshape(update.shape) if found else update
        for found, (update, _, _) in zip(pieces, updates, strict=True)
    ]


def _batches(places: list[tuple[int, int]], pieces: list[list[Tensor]], block_elements: int) -> list[list[tuple[int, int]]]:
    """`places` in runs of at most `_BATCH_ELEMENTS` together (one that is larger stands alone): they bound the memory of a batch."""
    runs: list[list[tuple[int, int]]] = []
    filled = 0
    for i, n in places:
        elements = pieces[i][n].shape[0] * block_elements
        if not runs or filled + elements > _BATCH_ELEMENTS:
            runs.append([])
            filled = 0
        runs[-1].append((i, n))
        filled += elements
    return runs


class Muon:
    """The Muon half of the optimizer. State: one momentum per matrix, sharded like it."""

    def __init__(self, matrices: Sequence[Matrix], *, momentum: float, weight_decay: float, compute_dtype: torch.dtype) -> None:
        self._matrices = tuple(matrices)
        self._mu = momentum
        self._weight_decay = weight_decay
        self._dtype = compute_dtype
        self._momentum = [torch.zeros_like(m.parameter.detach()) for m in self._matrices]
        group = _group_of(self._matrices)
        self._whole = [_blocks_are_whole(m) for m in self._matrices]
        slots = [Slot(tuple(m.parameter.shape)) for m, whole in zip(self._matrices, self._whole, strict=True) if not whole]
        self._exchange = OwnerExchange(slots, group) if slots else None

    def tensors(self) -> dict[str, Tensor]:
        """State by name, for checkpoints: restore writes into these very tensors."""
        return {f"muon/{m.name}": state for m, state in zip(self._matrices, self._momentum, strict=True)}

    @torch.no_grad()
    def step(self, *, learning_rate: Tensor, accepted: Tensor) -> None:
        """One update. Gradients are clipped and finite (zero in a refused step); `accepted` is 1.0 or 0.0 on the device, `learning_rate` is 0 when refused."""
        if not self._matrices:
            return
        gradients = [local(m.parameter.grad).to(torch.float32) for m in self._matrices if m.parameter.grad is not None]
        momentum = [local(state) for state in self._momentum]
        torch._foreach_mul_(momentum, 1.0 - (1.0 - self._mu) * accepted)
        torch._foreach_add_(momentum, gradients)
        updates = torch._foreach_mul(momentum, self._mu)  # noqa: SLF001
        torch._foreach_add_(updates, gradients)
        directions = self._directions([u.to(self._dtype) for u in updates])
        weights = [local(m.parameter.detach()) for m in self._matrices]
        decayed = [w for w, m in zip(weights, self._matrices, strict=True) if m.decay]
        torch._foreach_mul_(decayed, 1.0 - learning_rate * self._weight_decay)
        torch._foreach_mul_(directions, -learning_rate)
        torch._foreach_add_(weights, directions)

    def _directions(self, updates: list[Tensor]) -> list[Tensor]:
        """This rank's shard of each matrix's direction, fp32."""
        scattered = [i for i, matrix in enumerate(self._matrices) if not self._whole[i]]
        owned = self._exchange.gather([updates[i] for i in scattered]) if self._exchange is not None else {}
        work = [(updates[i], m.block_rows, m.parts) for i, m in enumerate(self._matrices) if self._whole[i]]
        for slot, full in owned.items():
            matrix = self._matrices[scattered[slot]]
            work.append((full, matrix.block_rows, matrix.parts))
        done = iter(muon_directions(work))
        directions = {i: next(done) for i in range(len(updates)) if self._whole[i]}
        if self._exchange is not None:
            shards = self._exchange.scatter({slot: next(done) for slot in owned}, self._dtype)
            directions |= dict(zip(scattered, shards, strict=True))
        return [directions[i].float() for i in range(len(updates))]


def _group_of(matrices: Sequence[Matrix]) -> "torch.distributed.ProcessGroup | None":
    for matrix in matrices:
        if isinstance(matrix.parameter, DTensor):
            return matrix.parameter.device_mesh.get_group()
    return None


def _blocks_are_whole(matrix: Matrix) -> bool:
    """Whether no rank's shard cuts through a block. Decided from global shapes alone, so all ranks decide alike."""
    parameter = matrix.parameter
    if not isinstance(parameter, DTensor) or parameter.device_mesh.size() == 1:
        return True
    rows_of_one = parameter.numel() // parameter.shape[-1] // parameter.shape[0]
    chunk = -(-parameter.shape[0] // parameter.device_mesh.size())
    return chunk * rows_of_one % matrix.block_rows == 0
