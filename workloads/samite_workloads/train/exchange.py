"""Each matrix to its owner and back: two all-to-alls for a bucket of matrices, instead of an all-gather per matrix and rank.

Matrices are sharded along dimension 0 in FSDP2's chunks. Owners are chosen greedily by the cost of an orthogonalisation, so every rank computes
about the same; the choice depends on shapes alone and is the same on all ranks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

_BUCKET_ELEMENTS = 1 << 26


@dataclass(frozen=True, slots=True)
class Slot:
    """Global shape of one exchanged matrix."""

    shape: tuple[int, ...]

    def shard_elements(self, rank: int, world: int) -> int:
        """Elements of `rank`'s chunk along dimension 0."""
        chunk = -(-self.shape[0] // world)
        rows = max(0, min(chunk, self.shape[0] - rank * chunk))
        return rows * self.width

    @property
    def width(self) -> int:
        """Elements of one row of dimension 0."""
        return _product(self.shape[1:])

    @property
    def cost(self) -> int:
        """Multiply-adds of one orthogonalisation, up to a factor."""
        n, m = self.shape[-2:]
        return _product(self.shape) * min(n, m)


def owners(slots: Sequence[Slot], world: int) -> list[int]:
    """Owner of each slot: the dearest first, each to the least loaded rank."""
    load = [0] * world
    chosen = [0] * len(slots)
    for index in sorted(range(len(slots)), key=lambda i: (-slots[i].cost, i)):
        rank = min(range(world), key=lambda r: (load[r], r))
        chosen[index] = rank
        load[rank] += slots[index].cost
    return chosen


class OwnerExchange:
    """Gathers shards to owners and scatters results back. Both are collectives: every rank calls them once a step, in this order."""

    def __init__(self, slots: Sequence[Slot], group: "dist.ProcessGroup | None") -> None:
        assert group is not None, "an exchange needs a process group"
        self._slots = tuple(slots)
        self._group = group
        self._rank = group.rank()
        self._world = group.size()
        self._owners = owners(slots, self._world)
        self._buckets = _buckets(self._slots)

    def gather(self, shards: Sequence[Tensor]) -> dict[int, Tensor]:
        """`shards[i]` is this rank's chunk of slot i; returns the whole matrices that this rank owns, by slot."""
        whole: dict[int, Tensor] = {}
        for bucket in self._buckets:
            by_owner = [[i for i in bucket if self._owners[i] == rank] for rank in range(self._world)]
            mine = by_owner[self._rank]
            outgoing = torch.cat([shards[i].reshape(-1) for ids in by_owner for i in ids])
            send = [sum(self._slots[i].shard_elements(self._rank, self._world) for i in ids) for ids in by_owner]
            receive = [sum(self._slots[i].shard_elements(rank, self._world) for i in mine) for rank in range(self._world)]
            incoming = outgoing.new_empty(sum(receive))
            dist.all_to_all_single(incoming, outgoing, receive, send, group=self._group)
            pieces: dict[int, list[Tensor]] = {i: [] for i in mine}
            for rank, block in enumerate(incoming.split(receive)):
                sizes = [self._slots[i].shard_elements(rank, self._world) for i in mine]
                for i, piece in zip(mine, block.split(sizes), strict=True):
                    pieces[i].append(piece)
            whole |= {i: torch.cat(pieces[i]).view(self._slots[i].shape) for i in mine}
        return whole

    def scatter(self, whole: Mapping[int, Tensor], dtype: torch.dtype) -> list[Tensor]:
        """The way back: `whole` holds the owned results; returns this rank's chunk of every slot."""
        chunks: dict[int, Tensor] = {}
        for bucket in self._buckets:
            by_owner = [[i for i in bucket if self._owners[i] == rank] for rank in range(self._world)]
            mine = by_owner[self._rank]
            flat = {
                i: whole[i].reshape(-1).split([self._slots[i].shard_elements(rank, self._world) for rank in range(self._world)])
                for i in mine
            }
            send = [sum(flat[i][rank].numel() for i in mine) for rank in range(self._world)]
            receive = [sum(self._slots[i].shard_elements(self._rank, self._world) for i in ids) for ids in by_owner]
            device = next(iter(whole.values())).device if whole else _device_of(self._group)
            outgoing = (
                torch.cat([flat[i][rank] for rank in range(self._world) for i in mine])
                if mine
                else torch.empty(0, dtype=dtype, device=device)
            )
            incoming = outgoing.new_empty(sum(receive))
            dist.all_to_all_single(incoming, outgoing, receive, send, group=self._group)
            order = [i for ids in by_owner for i in ids]
            sizes = [self._slots[i].shard_elements(self._rank, self._world) for i in order]
            chunks |= {i: part.view(-1, *self._slots[i].shape[1:]) for i, part in zip(order, incoming.split(sizes), strict=True)}
        return [chunks[i] for i in range(len(self._slots))]


def _buckets(slots: Sequence[Slot]) -> list[list[int]]:
    """Runs of slots of at most `_BUCKET_ELEMENTS` together (a larger slot stands alone): they bound the exchange buffers."""
    buckets: list[list[int]] = []
    filled = _BUCKET_ELEMENTS
    for index, slot in enumerate(slots):
        elements = _product(slot.shape)
        if filled + elements > _BUCKET_ELEMENTS and (filled or not buckets):
            buckets.append([])
            filled = 0
        buckets[-1].append(index)
        filled += elements
    return buckets


def _device_of(group: dist.ProcessGroup) -> torch.device:
    return torch.device("cuda", torch.cuda.current_device()) if dist.get_backend(group) == "nccl" else torch.device("cpu")


def _product(values: Sequence[int]) -> int:
    total = 1
    for value in values:
        total *= value
    return total
