"""The index of one rank: which bytes of which tensors lie where, in columns.

A tensor is cut into boxes (what one rank holds of it), a box into chunks (byte ranges of the box's row-major bytes), so that replicas of one box
can share its writing. Every chunk has its CRC64-NVME, and one for each 4 MiB block, so that a slice can be read and still be verified.

    SAMITE-INDEX 1 crc64=... bytes=...\\n
    u32 length of the head | head: JSON {id, rank, tensors, objects, aliases, columns} | columns, each int64 or uint64 little-endian, zlib

Columns are delta-coded where that helps; 512k chunks come to well under 32 bytes each. Nothing in it is executable.
"""

import contextlib
import json
import struct
import sys
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from math import prod

from samite.checkpoint.checksum import BLOCK_BYTES
from samite.checkpoint.envelope import seal, unseal
from samite.checkpoint.layout import ITEM_BYTES
from samite.errors import CheckpointDamagedError

Box = tuple[tuple[int, int], ...]
"""(offset, size) in each dimension; () for a 0-d tensor."""


@dataclass(frozen=True, slots=True)
class TensorMeta:
    """A tensor as a whole: its name, the dtype's PyTorch name, and its global shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of all its elements."""
        return prod(self.shape) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class DataObject:
    """One object of raw bytes. `name` is relative to the checkpoint."""

    name: str
    num_bytes: int
    crc64: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """Bytes [start, start + num_bytes) of the row-major bytes of `box` of tensor number `tensor`, at `offset` in object number `data_object`."""

    tensor: int
    box: Box
    start: int
    num_bytes: int
    data_object: int
    offset: int
    crc64: int
    blocks: tuple[int, ...]
    """One checksum for each 4 MiB block."""


@dataclass(frozen=True, slots=True)
class Witness:
    """This rank holds a copy of `box` with this checksum; replicas that disagree make the save fail instead of being mixed."""

    tensor: int
    box: Box
    crc64: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RankIndex:
    """Everything one rank wrote."""

    checkpoint_id: str
    rank: int
    tensors: tuple[TensorMeta, ...]
    objects: tuple[DataObject, ...]
    chunks: tuple[Chunk, ...]
    witnesses: tuple[Witness, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    """name -> name: on this rank both are one piece of memory (tied weights), stored once under the second name."""

    @property
    def data_bytes(self) -> int:
        """Bytes of its data objects, padding included."""
        return sum(item.num_bytes for item in self.objects)

    def to_bytes(self) -> bytes:
        """The sealed document."""
        columns = {
            "tensor": ("q", _deltas(chunk.tensor for chunk in self.chunks)),
            "box": ("q", array("q", (number for chunk in self.chunks for side in chunk.box for number in side))),
            "start": ("q", array("q", (chunk.start for chunk in self.chunks))),
            "num_bytes": ("q", array("q", (chunk.num_bytes for chunk in self.chunks))),
            "object": ("q", _deltas(chunk.data_object for chunk in self.chunks)),
            "offset": ("q", _deltas(chunk.offset for chunk in self.chunks)),
            "crc64": ("Q", array("Q", (chunk.crc64 for chunk in self.chunks))),
            # a chunk of one block has the block's checksum as its own
            "blocks": ("Q", array("Q", (block for chunk in self.chunks if len(chunk.blocks) > 1 for block in chunk.blocks))),
            "witness_tensor": ("q", _deltas(witness.tensor for witness in self.witnesses)),
            "witness_box": ("q", array("q", (number for witness in self.witnesses for side in witness.box for number in side))),
            "witness_crc64": ("Q", array("Q", (witness.crc64 for witness in self.witnesses))),
        }
        packed = {name: zlib.compress(little_endian(values), 1) for name, (_, values) in columns.items()}
        head = json.dumps(
            {
                "id": self.checkpoint_id,
                "rank": self.rank,
                "tensors": [[tensor.name, tensor.dtype, list(tensor.shape)] for tensor in self.tensors],
                "objects": [[item.name, item.num_bytes, f"{item.crc64:016x}"] for item in self.objects],
                "aliases": dict(self.aliases),
                "columns": [[name, kind, len(values), len(packed[name])] for name, (kind, values) in columns.items()],
            },
            separators=(",", ":"),
        ).encode()
        head = zlib.compress(head, 1)
        return seal("INDEX", struct.pack("<I", len(head)) + head + b"".join(packed.values()))

    @classmethod
    def from_bytes(cls, document: bytes, *, name: str) -> "RankIndex":
        """Parse a sealed document; raises CheckpointDamagedError naming `name`."""
        return IndexColumns.from_bytes(document, name=name).index(name=name)


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexColumns:
    """An index as it is stored: what half a million chunks are looked at through, without an object for each."""

    checkpoint_id: str
    rank: int
    tensors: tuple[TensorMeta, ...]
    objects: tuple[DataObject, ...]
    aliases: Mapping[str, str]
    columns: Mapping[str, "array[int]"]

    @property
    def num_chunks(self) -> int:
        """Chunks of this rank."""
        return len(self.columns["start"])

    @property
    def data_bytes(self) -> int:
        """Bytes of its data objects, padding included."""
        return sum(item.num_bytes for item in self.objects)

    @classmethod
    def from_bytes(cls, document: bytes, *, name: str, known: "IndexColumns | None" = None) -> "IndexColumns":
        """Parse a sealed document; raises CheckpointDamagedError naming `name`. Tensors equal to those of `known` are shared with it."""
        body = unseal("INDEX", document, name=name)
        with parsing(name):
            return _parse(body, known)

    def index(self, *, name: str) -> RankIndex:
        """With an object for each chunk."""
        with parsing(name):
            return RankIndex(
                checkpoint_id=self.checkpoint_id,
                rank=self.rank,
                tensors=self.tensors,
                objects=self.objects,
                chunks=tuple(_chunks(self.columns, self.tensors)),
                witnesses=self.witnesses(),
                aliases=self.aliases,
            )

    def witnesses(self) -> tuple[Witness, ...]:
        """What this rank's copies of replicated boxes are."""
        return tuple(_witnesses(self.columns, self.tensors))

    def pieces(self) -> Iterator[tuple[int, tuple[int, ...], int, int]]:
        """(tensor, flat box, start, num_bytes) of every chunk; a flat box is offset, size, offset, size, ..."""
        boxes, position = self.columns["box"], 0
        widths = [2 * len(tensor.shape) for tensor in self.tensors]
        for tensor, start, num_bytes in zip(
            accumulate(self.columns["tensor"]), self.columns["start"], self.columns["num_bytes"], strict=True
        ):
            end = position + widths[tensor]
            yield tensor, tuple(boxes[position:end]), start, num_bytes
            position = end


@contextlib.contextmanager
def parsing(name: str) -> Iterator[None]:
    """What goes wrong inside is damage of `name`."""
    try:
        yield
    except (KeyError, ValueError, IndexError, TypeError, struct.error, zlib.error, StopIteration) as error:
        raise CheckpointDamagedError(f"{name}: its checksum holds but its content does not parse ({error!r})") from error


def box_bytes(box: Box, dtype: str) -> int:
    """Bytes of a box of elements of `dtype`."""
    return prod(size for _, size in box) * ITEM_BYTES[dtype]


def _parse(body: bytes, known: IndexColumns | None) -> IndexColumns:
    (head_length,) = struct.unpack_from("<I", body)
    head = json.loads(zlib.decompress(body[4 : 4 + head_length]))
    columns: dict[str, array[int]] = {}
    position = 4 + head_length
    for name, kind, count, length in head["columns"]:
        columns[name] = column(kind, count, body[position : position + length], name=name)
        position += length
    tensors = tuple(TensorMeta(name, dtype, tuple(shape)) for name, dtype, shape in head["tensors"])
    return IndexColumns(
        checkpoint_id=head["id"],
        rank=head["rank"],
        tensors=known.tensors if known is not None and known.tensors == tensors else tensors,
        objects=tuple(DataObject(name, length, int(checksum, 16)) for name, length, checksum in head["objects"]),
        aliases=head["aliases"],
        columns=columns,
    )


def column(kind: str, count: int, packed: bytes, *, name: str) -> "array[int]":
    """One column from its stored bytes. Raises ValueError if it has another length."""
    values = array(kind, zlib.decompress(packed))
    if sys.byteorder == "big":
        values.byteswap()
    if len(values) != count:
        raise ValueError(f"column {name} has {len(values)} values, wanted {count}")
    return values


def _chunks(columns: Mapping[str, "array[int]"], tensors: tuple[TensorMeta, ...]) -> Iterable[Chunk]:
    numbers = iter(columns["box"])
    blocks = iter(columns["blocks"])
    fields = zip(
        accumulate(columns["tensor"]),
        columns["start"],
        columns["num_bytes"],
        accumulate(columns["object"]),
        accumulate(columns["offset"]),
        columns["crc64"],
        strict=True,
    )
    for tensor, start, num_bytes, data_object, offset, checksum in fields:
        num_blocks = -(-num_bytes // BLOCK_BYTES)
        own = tuple(next(blocks) for _ in range(num_blocks)) if num_blocks > 1 else (checksum,)
        yield Chunk(tensor, _next_box(numbers, tensors[tensor]), start, num_bytes, data_object, offset, checksum, own)


def _witnesses(columns: Mapping[str, "array[int]"], tensors: tuple[TensorMeta, ...]) -> Iterable[Witness]:
    numbers = iter(columns["witness_box"])
    for tensor, checksum in zip(accumulate(columns["witness_tensor"]), columns["witness_crc64"], strict=True):
        yield Witness(tensor, _next_box(numbers, tensors[tensor]), checksum)


def _next_box(numbers: Iterable[int], tensor: TensorMeta) -> Box:
    stream = iter(numbers)
    return tuple((next(stream), next(stream)) for _ in tensor.shape)


def _deltas(values: Iterable[int]) -> "array[int]":
    result = array("q")
    previous = 0
    for value in values:
        result.append(value - previous)
        previous = value
    return result


def little_endian(values: "array[int]") -> bytes:
    """Bytes of a column as they are stored."""
    if sys.byteorder == "big":
        values = array(values.typecode, values)
        values.byteswap()
    return values.tobytes()
