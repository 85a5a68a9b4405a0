"""A restore in which every stored byte is read once by the group: a block that several ranks need is read by one of them, which sends each what it needs.

    stored rows          rank 0 wants columns   rank 1 wants columns
    [ block | block ]    who reads which block follows from its checksum, the same on every rank without a word;
    [ block | block ]    what it sends is cut to the receiver's box, so that nothing travels that is not wanted

Blocks that one rank alone needs go straight into its tensors, as in a restore without sharing. Batches are agreed, so that memory stays bounded.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch

from samite.checkpoint.checksum import BLOCK_BYTES
from samite.checkpoint.index import Box, box_bytes
from samite.checkpoint.layout import ITEM_BYTES
from samite.errors import SamiteError
from samite_workloads.checkpoint.meeting import Meeting
from samite_workloads.checkpoint.reader import Piece, StoredState
from samite_workloads.checkpoint.regions import Need, Part, Region, cut, need_of, overlapping, parts
from samite_workloads.checkpoint.reshard import BlockRead
from samite_workloads.checkpoint.shards import LocalShard, as_bytes, raw

BATCH_BYTES = 128 * 1024 * 1024
"""Of the largest rank's targets; the blocks it reads, sends and receives take up to as much each."""
_RUN_BLOCKS = 4
"""Neighbours that one rank reads, so that requests stay large."""

Boxes = Mapping[str, Box]
"""What one rank wants: name -> box; no empty ones."""


@dataclass(frozen=True, slots=True)
class _Parcel:
    """One block: where its bytes are, and who needs what of it."""

    read: BlockRead
    key: str
    sizes: tuple[int, ...]
    """Of the stored box, and behind them the bytes of an element."""
    low: int
    """Where the block begins in the stored box."""
    owner: int
    needs: Mapping[int, Need]
    """By rank."""

    def parts(self, region: Region) -> Iterator[tuple[Region, Part]]:
        """What `region` of the stored box has in this block."""
        return parts(self.sizes, self.low, self.read.num_bytes, region)


@dataclass(frozen=True, slots=True)
class _Place:
    """One target as bytes, its dimensions followed by the bytes of an element."""

    shard: LocalShard
    view: Any
    direct: bool

    @classmethod
    def of(cls, shard: LocalShard) -> "_Place":
        """The tensor's own memory where that is possible, else a copy of its size."""
        shape = (*(size for _, size in shard.box), ITEM_BYTES[shard.meta.dtype])
        if shard.data.device.type == "cpu" and shard.data.is_contiguous():
            return cls(shard, np.frombuffer(as_bytes(shard.data), dtype=np.uint8).reshape(shape), True)
        return cls(shard, np.empty(shape, dtype=np.uint8), False)

    def settle(self) -> None:
        """Bring a copy to the tensor."""
        if not self.direct:
            target = raw(self.shard.data)
            target.copy_(torch.from_numpy(self.view.reshape(-1)).view(target.dtype).reshape(target.shape))


def boxes_of(shards: Sequence[LocalShard]) -> dict[str, Box]:
    """What this rank wants, for the others."""
    return {shard.meta.name: shard.box for shard in shards if shard.num_bytes}


def load_together(
    state: StoredState, shards: Sequence[LocalShard], wanted: Sequence[Boxes], meeting: Meeting
) -> tuple[int, list[SamiteError]]:
    """Fill the targets in place on every rank; `wanted` has what each rank wants. Collective. Returns the bytes read here and what failed on any rank.

    Raises PeerLostError. After a failure the targets of all ranks are partly overwritten.
    """
    own = {shard.meta.name: shard for shard in shards if shard.num_bytes and shard.meta.name in state.tensors}
    read = 0
    for names in _batches(state, wanted):
        load = _Batch(state, [own[name] for name in names if name in own], wanted, meeting)
        answers = meeting.together(load.fetch)
        failures = [answer for answer in answers if isinstance(answer, SamiteError)]
        if failures:
            return read, failures
        read += load.read_bytes
        if any(answers):
            load.exchange()
        load.settle()
    return read, []


def load_apart(state: StoredState, shards: Sequence[LocalShard], meeting: Meeting) -> tuple[int, list[SamiteError]]:
    """Like `load_together`, with every rank reading all that it needs: for ranks whose network is slower than their storage."""
    answers = meeting.together(_Batch(state, shards, [], meeting).fetch_apart)
    own = answers[meeting.rank]
    return own if isinstance(own, int) else 0, [answer for answer in answers if isinstance(answer, SamiteError)]


class _Batch:
    """Some tensors of this rank."""

    def __init__(self, state: StoredState, shards: Sequence[LocalShard], wanted: Sequence[Boxes], meeting: Meeting) -> None:
        self._state, self._shards, self._wanted, self._meeting = state, shards, wanted, meeting
        self._parcels: list[tuple[_Place, list[_Parcel]]] = []
        self._content: dict[int, Any] = {}
        self.read_bytes = 0

    def fetch(self) -> int | SamiteError:
        """Read what this rank reads for the group. Returns how many blocks it needs from others or has for them, or what went wrong."""
        return self._told(self._fetch)

    def fetch_apart(self) -> int | SamiteError:
        """Read everything here. Returns the bytes read, or what went wrong."""
        return self._told(lambda: self._state.load(self._shards))

    def _fetch(self) -> int:
        alone: list[LocalShard] = []
        pieces: list[tuple[str, Piece]] = []
        for shard in self._shards:
            parcels = list(_parcels(self._state, shard, self._wanted, self._meeting.rank))
            if all(len(parcel.needs) == 1 for parcel in parcels):
                alone.append(shard)
                continue
            self._parcels.append((_Place.of(shard), parcels))
            for parcel in parcels:
                if parcel.owner == self._meeting.rank:
                    content = self._content[id(parcel)] = np.empty(parcel.read.num_bytes, dtype=np.uint8)
                    pieces.append((parcel.key, Piece(parcel.read, content.data)))
        self.read_bytes = self._state.load(alone) + self._state.fetch(pieces)
        return sum(len(parcel.needs) > 1 for _, parcels in self._parcels for parcel in parcels)

    def _told(self, work: Callable[[], int]) -> int | SamiteError:
        try:
            return work()
        except SamiteError as error:
            return error
        except Exception as error:  # noqa: BLE001  the others wait for this rank: all are told
            return SamiteError(f"rank {self._meeting.rank}: {type(error).__name__} while reading: {error}")

    def exchange(self) -> None:
        """Send and receive; what comes goes to its place."""
        rank, size = self._meeting.rank, self._meeting.size
        outgoing: list[list[bytes]] = [[] for _ in range(size)]
        incoming: list[list[tuple[_Place, _Parcel]]] = [[] for _ in range(size)]
        for place, parcels in self._parcels:
            for parcel in parcels:
                if parcel.owner != rank:
                    incoming[parcel.owner].append((place, parcel))
                    continue
                content = self._content.pop(id(parcel))
                for other, need in parcel.needs.items():
                    if other == rank:
                        for where, part in parcel.parts(need.region):
                            place.view[need.in_target(where)] = cut(content, part)
                    else:
                        outgoing[other] += [cut(content, part).tobytes() for _, part in parcel.parts(need.region)]
        sizes = [sum(_num_bytes(parcel, rank) for _, parcel in parcels) for parcels in incoming]
        received = self._meeting.swap([b"".join(contents) for contents in outgoing], sizes)
        for view, came in zip(received, incoming, strict=True):
            _place(np.frombuffer(view, dtype=np.uint8), came, rank)

    def settle(self) -> None:
        """Copies to their tensors."""
        for place, _ in self._parcels:
            place.settle()


def _num_bytes(parcel: _Parcel, rank: int) -> int:
    return sum(prod(one.stop - one.start for one in where) for where, _ in parcel.parts(parcel.needs[rank].region))


def _place(content: Any, parcels: Iterable[tuple[_Place, _Parcel]], rank: int) -> None:
    position = 0
    for place, parcel in parcels:
        need = parcel.needs[rank]
        for where, _ in parcel.parts(need.region):
            shape = tuple(one.stop - one.start for one in where)
            end = position + prod(shape)
            place.view[need.in_target(where)] = content[position:end].reshape(shape)
            position = end


def _parcels(state: StoredState, shard: LocalShard, wanted: Sequence[Boxes], rank: int) -> Iterator[_Parcel]:
    """The blocks that `shard` needs, in an order that all ranks share."""
    name, item_bytes = shard.meta.name, ITEM_BYTES[shard.meta.dtype]
    ranks = [other for other, boxes in enumerate(wanted) if name in boxes]
    boxes = np.array([wanted[other][name] for other in ranks], dtype=np.int64).reshape(len(ranks), len(shard.box), 2)
    by_box: dict[Box, dict[int, Need]] = {}
    for source in sorted(state.sources(name, shard.box), key=lambda one: (one.chunk.box, one.chunk.start)):
        chunk = source.chunk
        if chunk.box not in by_box:
            by_box[chunk.box] = {ranks[row]: need_of(chunk.box, boxes[row].tolist(), item_bytes) for row in overlapping(chunk.box, boxes)}
        needs = by_box[chunk.box]
        if rank not in needs:
            continue
        low, high = max(needs[rank].span[0], chunk.start), min(needs[rank].span[1], chunk.start + chunk.num_bytes)
        if low >= high:
            continue
        for number in range((low - chunk.start) // BLOCK_BYTES, -(-(high - chunk.start) // BLOCK_BYTES)):
            begin, end = number * BLOCK_BYTES, min((number + 1) * BLOCK_BYTES, chunk.num_bytes)
            here = {other: need for other, need in needs.items() if need.span[0] < chunk.start + end and chunk.start + begin < need.span[1]}
            yield _Parcel(
                read=BlockRead(
                    offset=chunk.offset + begin,
                    num_bytes=end - begin,
                    blocks=chunk.blocks[number : number + 1],
                    keep=(0, end - begin),
                    place=0,
                ),
                key=source.key,
                sizes=(*(size for _, size in chunk.box), item_bytes),
                low=chunk.start + begin,
                owner=list(here)[(chunk.crc64 + number // _RUN_BLOCKS) % len(here)],
                needs=here,
            )


def _batches(state: StoredState, wanted: Sequence[Boxes]) -> Iterator[list[str]]:
    """Names in groups that are the same on every rank and small enough for each."""
    names: list[str] = []
    filled = 0
    for name in sorted({name for boxes in wanted for name in boxes if name in state.tensors}):
        largest = max(box_bytes(boxes[name], state.tensors[name].dtype) for boxes in wanted if name in boxes)
        if names and filled + largest > BATCH_BYTES:
            yield names
            names, filled = [], 0
        names.append(name)
        filled += largest
    yield names
