"""All ranks' indexes in one object: what a rank that restores reads instead of a thousand of them. A copy: without it the indexes still say all.

    SAMITE-DIRECTORY 1 crc64=... bytes=...\\n
    u32 length of the head | head: JSON {id, tensors, ranks, aliases, columns} (zlib) | columns, as in an index, rank after rank (each zlib)

`ranks` holds [rank, chunks, objects] in order. Columns keep each rank's own deltas, so a directory is made by laying columns behind each other. Written
by the coordinator before the manifest, which names its length and checksum; not written where ranks differ in their tensors or aliases.
"""

import json
import struct
import zlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from samite.checkpoint.envelope import seal, unseal
from samite.checkpoint.index import DataObject, IndexColumns, TensorMeta, column, little_endian, parsing

COLUMNS = {"tensor": "q", "box": "q", "start": "q", "num_bytes": "q", "object": "q", "offset": "q", "crc64": "Q", "blocks": "Q"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Directory:
    """The chunks of a whole checkpoint, in columns."""

    checkpoint_id: str
    tensors: tuple[TensorMeta, ...]
    ranks: tuple[tuple[int, int, tuple[DataObject, ...]], ...]
    """(rank, number of chunks, its objects), in the order of the columns."""
    aliases: Mapping[str, str]
    columns: Mapping[str, "array[int]"]

    @classmethod
    def of(cls, indexes: Sequence[IndexColumns]) -> "Directory | None":
        """Of all ranks' indexes; None where they differ in tensors or aliases, as with pipeline stages."""
        first = indexes[0]
        if any(one.tensors != first.tensors or one.aliases != first.aliases for one in indexes):
            return None
        columns = {}
        for name, kind in COLUMNS.items():
            together = array(kind)
            for one in indexes:
                together.extend(one.columns[name])
            columns[name] = together
        return cls(
            checkpoint_id=first.checkpoint_id,
            tensors=first.tensors,
            ranks=tuple((one.rank, one.num_chunks, one.objects) for one in indexes),
            aliases=first.aliases,
            columns=columns,
        )

    def to_bytes(self) -> bytes:
        """The sealed document."""
        packed = {name: zlib.compress(little_endian(values), 1) for name, values in self.columns.items()}
        head = {
            "id": self.checkpoint_id,
            "tensors": [[tensor.name, tensor.dtype, list(tensor.shape)] for tensor in self.tensors],
            "ranks": [
                [rank, chunks, [[item.name, item.num_bytes, f"{item.crc64:016x}"] for item in objects]]
                for rank, chunks, objects in self.ranks
            ],
            "aliases": dict(self.aliases),
            "columns": [[name, COLUMNS[name], len(values), len(packed[name])] for name, values in self.columns.items()],
        }
        document = zlib.compress(json.dumps(head, separators=(",", ":")).encode(), 1)
        return seal("DIRECTORY", struct.pack("<I", len(document)) + document + b"".join(packed.values()))

    @classmethod
    def from_bytes(cls, document: bytes, *, name: str) -> "Directory":
        """Parse a sealed document; raises CheckpointDamagedError naming `name`."""
        body = unseal("DIRECTORY", document, name=name)
        with parsing(name):
            (length,) = struct.unpack_from("<I", body)
            head = json.loads(zlib.decompress(body[4 : 4 + length]))
            columns, position = {}, 4 + length
            for label, kind, count, packed in head["columns"]:
                columns[label] = column(kind, count, body[position : position + packed], name=label)
                position += packed
            return cls(
                checkpoint_id=head["id"],
                tensors=tuple(TensorMeta(label, dtype, tuple(shape)) for label, dtype, shape in head["tensors"]),
                ranks=tuple(
                    (rank, chunks, tuple(DataObject(label, size, int(checksum, 16)) for label, size, checksum in objects))
                    for rank, chunks, objects in head["ranks"]
                ),
                aliases=head["aliases"],
                columns=columns,
            )
