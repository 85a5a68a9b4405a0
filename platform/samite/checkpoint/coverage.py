"""Do the ranks' indexes describe every byte of every tensor exactly once, and do replicas agree? Pure; the coordinator asks before it commits."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import prod

from samite.checkpoint.index import Box, RankIndex, TensorMeta, box_bytes


def coverage_problems(indexes: Sequence[RankIndex]) -> list[str]:
    """What is missing, doubled or contradictory over all ranks; empty if every tensor is complete."""
    problems = []
    metas: dict[str, TensorMeta] = {}
    pieces: dict[str, dict[Box, list[tuple[int, int, int]]]] = defaultdict(lambda: defaultdict(list))
    aliased: dict[str, set[str]] = defaultdict(set)
    for index in indexes:
        for tensor in index.tensors:
            known = metas.setdefault(tensor.name, tensor)
            if known != tensor:
                problems.append(
                    f"{tensor.name}: rank {index.rank} has {tensor.dtype} {list(tensor.shape)}, an earlier rank {known.dtype} {list(known.shape)}"
                )
        for chunk in index.chunks:
            pieces[index.tensors[chunk.tensor].name][chunk.box].append((chunk.start, chunk.num_bytes, index.rank))
        for name, target in index.aliases.items():
            aliased[name].add(target)
    for name, meta in metas.items():
        if name in aliased and name not in pieces:
            continue  # stored under the other name, which is checked
        problems += [f"{name}: {problem}" for problem in _tensor_problems(meta, pieces.get(name, {}))]
    return problems


def replica_problems(indexes: Sequence[RankIndex]) -> list[str]:
    """Tensors that are meant to be copies of each other and are not."""
    seen: dict[tuple[str, Box], tuple[int, int]] = {}
    problems = []
    for index in indexes:
        for witness in index.witnesses:
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
