"""Two checkpoints compared by what their indexes say: names, dtypes, shapes, and values by checksum. No data is read.

Checksums of pieces combine into the checksum of a whole tensor wherever it is cut by rows, so that checkpoints of different world sizes compare too.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain

from samite.checkpoint.checksum import combine_crc64
from samite.checkpoint.index import Box, RankIndex, TensorMeta


class Change(StrEnum):
    """How a tensor differs."""

    EQUAL = "equal"
    ONLY_FIRST = "only in the first"
    ONLY_SECOND = "only in the second"
    DTYPE = "dtype"
    SHAPE = "shape"
    VALUES = "values"
    UNKNOWN = "cut differently"
    """Cut along other dimensions than rows, and differently: checksums do not tell."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """One tensor of two checkpoints."""

    name: str
    change: Change
    first: TensorMeta | None
    second: TensorMeta | None


@dataclass(frozen=True, slots=True)
class _Stored:
    meta: TensorMeta
    whole: int | None
    """Checksum of all its bytes; None if it is not cut by rows."""
    pieces: frozenset[tuple[Box, int, int, int]]


def differences(first: Sequence[RankIndex], second: Sequence[RankIndex]) -> list[Difference]:
    """Every tensor of either, by name."""
    one, other = _stored(first), _stored(second)
    found = []
    for name in sorted(one.keys() | other.keys()):
        a, b = one.get(name), other.get(name)
        found.append(Difference(name=name, change=_change(a, b), first=a.meta if a else None, second=b.meta if b else None))
    return found


def _change(a: _Stored | None, b: _Stored | None) -> Change:
    if a is None or b is None:
        return Change.ONLY_SECOND if a is None else Change.ONLY_FIRST
    if a.meta.shape != b.meta.shape:
        return Change.SHAPE
    if a.meta.dtype != b.meta.dtype:
        return Change.DTYPE
    if a.whole is not None and b.whole is not None:
        return Change.EQUAL if a.whole == b.whole else Change.VALUES
    if a.pieces == b.pieces:
        return Change.EQUAL
    cuts_a, cuts_b = ({piece[:3] for piece in one.pieces} for one in (a, b))
    return Change.VALUES if cuts_a == cuts_b else Change.UNKNOWN


def _stored(indexes: Sequence[RankIndex]) -> dict[str, _Stored]:
    metas: dict[str, TensorMeta] = {}
    pieces: dict[str, set[tuple[Box, int, int, int]]] = defaultdict(set)
    for index in indexes:
        own: dict[str, list[tuple[Box, int, int, int]]] = defaultdict(list)
        for chunk in index.chunks:
            own[index.tensors[chunk.tensor].name].append((chunk.box, chunk.start, chunk.num_bytes, chunk.crc64))
        for meta in index.tensors:
            metas.setdefault(meta.name, meta)
            pieces[meta.name].update(own.get(index.aliases.get(meta.name, meta.name), ()))
    return {name: _Stored(meta, _whole(meta, pieces[name]), frozenset(pieces[name])) for name, meta in metas.items()}


def _whole(meta: TensorMeta, pieces: set[tuple[Box, int, int, int]]) -> int | None:
    rest = tuple(chain.from_iterable((0, size) for size in meta.shape[1:]))
    if any(tuple(chain.from_iterable(box[1:])) != rest for box, _, _, _ in pieces):
        return None
    total = 0
    for _, _, num_bytes, checksum in sorted(pieces):
        total = combine_crc64(total, checksum, num_bytes)
    return total
