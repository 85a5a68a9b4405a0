"""Do the ranks' indexes describe every byte of every tensor exactly once, and do replicas agree? Pure; the coordinator asks before it commits."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from math import prod

from samite.checkpoint.index import Box, IndexColumns, RankIndex, TensorMeta, box_bytes
from samite.checkpoint.layout import ITEM_BYTES

FlatBox = tuple[int, ...]
_Window = tuple[int, int, int]
"""start, num_bytes, rank."""


def coverage_problems(indexes: Sequence[RankIndex | IndexColumns]) -> list[str]:
    """What is missing, doubled or contradictory over all ranks; empty if every tensor is complete.

    Tensors cut into whole boxes along one dimension, nearly all there are, are seen to be complete by sorting; only others are looked at one by one.
    """
    problems = []
    metas: dict[str, TensorMeta] = {}
    names: tuple[TensorMeta, ...] = ()
    pieces: list[dict[FlatBox, list[_Window]]] = []
    by_name: dict[str, dict[FlatBox, list[_Window]]] = {}
    aliased: set[str] = set()
    for index in indexes:
        if index.tensors is not names:  # ranks mostly share one tuple of tensors
            names, pieces = index.tensors, []
            for tensor in names:
                known = metas.setdefault(tensor.name, tensor)
                if known != tensor:
                    problems.append(
                        f"{tensor.name}: rank {index.rank} has {tensor.dtype} {list(tensor.shape)}, "
                        f"an earlier rank {known.dtype} {list(known.shape)}"
                    )
                pieces.append(by_name.setdefault(tensor.name, {}))
        rank = index.rank
        for number, box, start, num_bytes in _pieces(index):
            boxes = pieces[number]
            windows = boxes.get(box)
            if windows is None:
                boxes[box] = [(start, num_bytes, rank)]
            else:
                windows.append((start, num_bytes, rank))
        aliased.update(index.aliases)
    for name, meta in metas.items():
        boxes = by_name[name]
        if name in aliased and not boxes:
            continue  # stored under the other name, which is checked
        if not _complete(meta, boxes):
            problems += [f"{name}: {problem}" for problem in _tensor_problems(meta, {_paired(box): found for box, found in boxes.items()})]
    return problems


def _pieces(index: RankIndex | IndexColumns) -> Iterator[tuple[int, FlatBox, int, int]]:
    if isinstance(index, IndexColumns):
        return index.pieces()
    return ((chunk.tensor, tuple(chain.from_iterable(chunk.box)), chunk.start, chunk.num_bytes) for chunk in index.chunks)


def _complete(meta: TensorMeta, boxes: dict[FlatBox, list[_Window]]) -> bool:
    """Whether the boxes are, each written whole and once, a cut of the tensor along one dimension. False says nothing yet."""
    if not boxes or not meta.shape:
        return False
    full = tuple(chain.from_iterable((0, size) for size in meta.shape))
    first = next(iter(boxes))
    cut = next((dim for dim in range(len(meta.shape)) if first[2 * dim : 2 * dim + 2] != full[2 * dim : 2 * dim + 2]), 0)
    low, high = 2 * cut, 2 * cut + 2
    row_bytes = ITEM_BYTES[meta.dtype] * prod(size for dim, size in enumerate(meta.shape) if dim != cut)
    before, behind = full[:low], full[high:]
    spans = []
    for box, windows in boxes.items():
        if len(windows) != 1 or len(box) != len(full) or box[:low] != before or box[high:] != behind:
            return False
        start, num_bytes, _ = windows[0]
        if start != 0 or num_bytes != box[low + 1] * row_bytes:
            return False
        spans.append((box[low], box[low + 1]))
    spans.sort()
    end = 0
    for offset, size in spans:
        if offset != end:
            return False
        end += size
    return end == meta.shape[cut]


def _paired(box: FlatBox) -> Box:
    return tuple(zip(box[::2], box[1::2], strict=True))


def replica_problems(indexes: Sequence[RankIndex | IndexColumns]) -> list[str]:
    """Tensors that are meant to be copies of each other and are not."""
    seen: dict[tuple[str, Box], tuple[int, int]] = {}
    problems = []
    for index in indexes:
        witnesses = index.witnesses() if isinstance(index, IndexColumns) else index.witnesses
        for witness in witnesses:
            name = index.tensors[witness.tensor].name
            rank, checksum = seen.setdefault((name, witness.box), (index.rank, witness.crc64))
            if checksum != witness.crc64:
                problems.append(
                    f"{name}: ranks {rank} and {index.rank} hold different values of a replicated tensor; "
                    "state that differs between ranks needs a name for each rank"
                )
    return problems


def _tensor_problems(meta: TensorMeta, boxes: dict[Box, list[tuple[int, int, int]]]) -> Iterable[str]:
    for box, windows in boxes.items():
        end = 0
        for start, num_bytes, rank in sorted(windows):
            if start != end:
                yield f"bytes {min(start, end)} to {max(start, end)} of box {_shown(box)} are {'missing' if start > end else f'written twice (rank {rank})'}"
                break
            end = start + num_bytes
        else:
            if end != box_bytes(box, meta.dtype):
                yield f"bytes {end} to {box_bytes(box, meta.dtype)} of box {_shown(box)} are missing"
        if len(box) != len(meta.shape) or any(
            offset < 0 or offset + size > extent for (offset, size), extent in zip(box, meta.shape, strict=False)
        ):
            yield f"box {_shown(box)} lies outside of shape {list(meta.shape)}"
    volume = sum(prod(size for _, size in box) for box in boxes)
    if volume < prod(meta.shape):
        yield f"{prod(meta.shape) - volume} of {prod(meta.shape)} elements are in no rank's part"
    overlap = _overlap(list(boxes))
    if overlap:
        yield f"boxes {_shown(overlap[0])} and {_shown(overlap[1])} overlap"


def _overlap(boxes: list[Box]) -> tuple[Box, Box] | None:
    """Two boxes that share an element, found by sweeping along the dimension with the most cuts."""
    if len(boxes) < 2:
        return None
    if not boxes[0]:
        return boxes[0], boxes[1]
    dim = max(range(len(boxes[0])), key=lambda d: len({box[d][0] for box in boxes}))
    active: list[Box] = []
    for box in sorted(boxes, key=lambda one: one[dim][0]):
        active = [other for other in active if other[dim][0] + other[dim][1] > box[dim][0]]
        for other in active:
            if all(a < c + d and c < a + b for (a, b), (c, d) in zip(box, other, strict=True)):
                return other, box
        active.append(box)
    return None


def _shown(box: Box) -> str:
    return "[" + ", ".join(f"{offset}:{offset + size}" for offset, size in box) + "]"
