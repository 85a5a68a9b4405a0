"""Where the bytes of a stored tensor are: asked of all ranks' indexes, or of the directory that holds them together.

Two sides of one seam. Indexes are small for few ranks and always there; a directory is one read for half a million chunks, looked through with numpy,
so that only the chunks a rank needs become objects.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from samite.checkpoint.checksum import BLOCK_BYTES, crc64
from samite.checkpoint.directory import Directory
from samite.checkpoint.index import Box, Chunk, RankIndex, TensorMeta
from samite.checkpoint.layout import DIRECTORY, checkpoint_key
from samite.checkpoint.manifest import Manifest
from samite.checkpoint.store import MissingKeyError, Store
from samite.errors import CheckpointDamagedError


@dataclass(frozen=True, slots=True)
class Source:
    """A chunk and the object that holds it."""

    chunk: Chunk
    key: str


class ChunkTable(Protocol):
    """All chunks of one checkpoint."""

    tensors: dict[str, TensorMeta]

    def sources(self, name: str, wanted: Box) -> list[Source]:
        """Chunks of `name` that may share elements with `wanted`."""
        ...

    def boxes(self, name: str) -> list[Box]:
        """The boxes that `name` was cut into, none for an empty tensor."""
        ...


class IndexTable:
    """From every rank's index."""

    def __init__(self, indexes: Iterable[RankIndex]) -> None:
        self.tensors: dict[str, TensorMeta] = {}
        self._sources: dict[str, list[Source]] = defaultdict(list)
        for index in indexes:
            self._add(index)

    def sources(self, name: str, wanted: Box) -> list[Source]:
        """All chunks of it: who asks sorts out."""
        del wanted
        return self._sources[name]

    def boxes(self, name: str) -> list[Box]:
        """In the order of ranks."""
        return list(dict.fromkeys(source.chunk.box for source in self._sources[name]))

    def _add(self, index: RankIndex) -> None:
        own: dict[str, list[Source]] = defaultdict(list)
        for chunk in index.chunks:
            key = checkpoint_key(index.checkpoint_id, index.objects[chunk.data_object].name)
            own[index.tensors[chunk.tensor].name].append(Source(chunk, key))
        for meta in index.tensors:
            self.tensors.setdefault(meta.name, meta)
            self._sources[meta.name] += own.get(index.aliases.get(meta.name, meta.name), [])


class DirectoryTable:
    """From a directory. Raises CheckpointDamagedError if its columns do not fit each other."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self.tensors = {tensor.name: tensor for tensor in directory.tensors}
        self._numbers = {tensor.name: number for number, tensor in enumerate(directory.tensors)}
        columns = {name: np.asarray(values) for name, values in directory.columns.items()}
        counts = np.array([chunks for _, chunks, _ in directory.ranks], dtype=np.int64)
        self._tensor = _sums(columns["tensor"], counts)
        self._object, self._offset = _sums(columns["object"], counts), _sums(columns["offset"], counts)
        self._start, self._num_bytes, self._crc64 = columns["start"], columns["num_bytes"], columns["crc64"]
        self._box, self._blocks = columns["box"], columns["blocks"]
        self._rank = np.repeat(np.arange(len(counts)), counts)
        if len({int(counts.sum()), *(len(columns[name]) for name in ("tensor", "start", "num_bytes", "object", "offset", "crc64"))}) != 1:
            raise CheckpointDamagedError(f"{directory.checkpoint_id}: the columns of its directory have different lengths")
        widths = np.array([2 * len(tensor.shape) for tensor in directory.tensors], dtype=np.int64)[self._tensor]
        self._box_at = np.cumsum(widths) - widths
        blocks = -(-self._num_bytes // BLOCK_BYTES)
        blocks[blocks <= 1] = 0
        self._block_at = np.cumsum(blocks) - blocks
        self._num_blocks = blocks
        self._order = np.argsort(self._tensor, kind="stable")
        self._first = np.searchsorted(self._tensor[self._order], np.arange(len(directory.tensors) + 1))
        if (int(widths.sum()), int(blocks.sum())) != (len(self._box), len(self._blocks)):
            raise CheckpointDamagedError(f"{directory.checkpoint_id}: the columns of its directory do not fit its tensors")

    def sources(self, name: str, wanted: Box) -> list[Source]:
        """Only those that share an element with `wanted`."""
        rows, boxes = self._rows(name)
        shares = np.ones(len(rows), dtype=bool)
        for dim, (offset, size) in enumerate(wanted):
            begins, sizes = boxes[:, 2 * dim], boxes[:, 2 * dim + 1]
            shares &= (begins < offset + size) & (begins + sizes > offset)
        return [self._source(int(row), box) for row, box in zip(rows[shares], boxes[shares].tolist(), strict=True)]

    def boxes(self, name: str) -> list[Box]:
        """In the order of ranks."""
        _, boxes = self._rows(name)
        return list(dict.fromkeys(_paired(box) for box in boxes.tolist()))

    def _rows(self, name: str) -> tuple[Any, Any]:
        number = self._numbers[self._directory.aliases.get(name, name)]
        rows = self._order[self._first[number] : self._first[number + 1]]
        width = 2 * len(self._directory.tensors[number].shape)
        return rows, self._box[self._box_at[rows][:, None] + np.arange(width)]

    def _source(self, row: int, box: Sequence[int]) -> Source:
        checksum, first, count = int(self._crc64[row]), int(self._block_at[row]), int(self._num_blocks[row])
        data_object = int(self._object[row])
        chunk = Chunk(
            int(self._tensor[row]),
            _paired(box),
            int(self._start[row]),
            int(self._num_bytes[row]),
            data_object,
            int(self._offset[row]),
            checksum,
            tuple(self._blocks[first : first + count].tolist()) if count else (checksum,),
        )
        _, _, objects = self._directory.ranks[int(self._rank[row])]
        return Source(chunk, checkpoint_key(self._directory.checkpoint_id, objects[data_object].name))


def directory_table(store: Store, manifest: Manifest) -> DirectoryTable | None:
    """The directory of a checkpoint; None if it has none, or if what is stored is not what the manifest promises: the indexes still say all."""
    if manifest.directory is None:
        return None
    key = checkpoint_key(manifest.checkpoint_id, DIRECTORY)
    try:
        document = store.get(key)
        if (len(document), crc64(document)) != manifest.directory:
            return None
        found = Directory.from_bytes(document, name=f"{store.uri}/{key}")
        return DirectoryTable(found) if found.checkpoint_id == manifest.checkpoint_id else None
    except (MissingKeyError, CheckpointDamagedError, IndexError):
        return None


def _sums(values: Any, counts: Any) -> Any:
    """Running sums that begin anew with each rank."""
    totals = np.cumsum(values)
    counts = counts[counts > 0]
    firsts = np.cumsum(counts) - counts
    return totals - np.repeat(totals[firsts] - values[firsts], counts) if len(counts) else totals


def _paired(box: Sequence[int]) -> Box:
    return tuple(zip(box[::2], box[1::2], strict=True))
