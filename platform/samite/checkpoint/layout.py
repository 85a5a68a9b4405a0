"""Names of everything below a checkpoint URI, and the element types the format knows.

    LATEST                                        hint: id of the newest commit (may lag, may be missing)
    fence/<epoch>-<seq>                           one for each writer session: which older commits it accepts
    ckpt/<id>/data/<rank>-<n>.bin                 raw tensor bytes of one rank
    ckpt/<id>/rank/<rank>.idx                     what those bytes are, and their checksums
    ckpt/<id>/rank/<rank>.failed                  that rank could not write; advice to the coordinator
    ckpt/<id>/DIRECTORY                           a copy of all indexes in one object, where there are many ranks
    ckpt/<id>/MANIFEST                            the commit: without it nothing above exists
    ckpt/<id>/{ABORTED,VERIFIED,QUARANTINED,PINNED,TOMBSTONE}   markers, each with a reason
    handover/<stage>.json                         which checkpoint the next stage starts from

An id is `<step>-<epoch>-<attempt>`: step with at least 8 digits, the fencing epoch, 8 hexadecimal digits unique to this attempt at writing.
Keys are never written twice, except LATEST.
"""

import json
import re
import time
from dataclasses import dataclass
from typing import Self

LATEST = "LATEST"
CHECKPOINTS = "ckpt/"
FENCES = "fence/"
HANDOVERS = "handover/"

MANIFEST = "MANIFEST"
DIRECTORY = "DIRECTORY"
ABORTED = "ABORTED"
VERIFIED = "VERIFIED"
QUARANTINED = "QUARANTINED"
PINNED = "PINNED"
TOMBSTONE = "TOMBSTONE"

RESERVED = ".dcp/"
"""Tensor names that begin so are what PyTorch's distributed checkpoint keeps beside tensors, as bytes; no model may use them."""

CHUNK_ALIGNMENT = 4096
"""Chunks of at least `SMALL_CHUNK_BYTES` begin at a multiple of this in their object."""
SMALL_CHUNK_BYTES = 65536
SMALL_ALIGNMENT = 64
"""Smaller chunks are packed at multiples of this, so that a thousand scalars do not cost a thousand pages."""

ITEM_BYTES = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "uint16": 2,
    "int16": 2,
    "uint32": 4,
    "int32": 4,
    "uint64": 8,
    "int64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "complex32": 4,
    "complex64": 8,
    "complex128": 16,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "float4_e2m1fn_x2": 1,
}
"""Bytes per element, by the name PyTorch gives the type."""

_ID = re.compile(r"(\d{8,})-(\d+)-([0-9a-f]{8})")
_FENCE = re.compile(r"(\d{8,})-(\d{4,})")


@dataclass(frozen=True, slots=True, order=True)
class CheckpointId:
    """The parts of a checkpoint id."""

    epoch: int
    step: int
    attempt: str

    def __str__(self) -> str:
        return f"{self.step:08d}-{self.epoch}-{self.attempt}"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Parts of `text`, or None if it is no checkpoint id."""
        match = _ID.fullmatch(text)
        return cls(step=int(match[1]), epoch=int(match[2]), attempt=match[3]) if match else None


@dataclass(frozen=True, slots=True, order=True)
class SessionId:
    """One writer session: `epoch` is the fencing token given from outside, `seq` counts the sessions that used it."""

    epoch: int
    seq: int

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Parts of a fence's name, or None if it is none."""
        match = _FENCE.fullmatch(text)
        return cls(int(match[1]), int(match[2])) if match else None

    def key(self) -> str:
        """Key of the fence."""
        return f"{FENCES}{self.epoch:08d}-{self.seq:04d}"


def checkpoint_prefix(checkpoint_id: str) -> str:
    """Prefix of all keys of one checkpoint, with the closing slash."""
    return f"{CHECKPOINTS}{checkpoint_id}/"


def checkpoint_key(checkpoint_id: str, name: str) -> str:
    """Key of a marker, of the manifest, or of any name an index gives relative to its checkpoint."""
    return f"{CHECKPOINTS}{checkpoint_id}/{name}"


def data_name(rank: int, number: int) -> str:
    """Name of a data object, relative to its checkpoint."""
    return f"data/{rank:05d}-{number}.bin"


def index_name(rank: int) -> str:
    """Name of a rank's index, relative to its checkpoint."""
    return f"rank/{rank:05d}.idx"


def failure_name(rank: int) -> str:
    """Name of a rank's notice that it could not write, relative to its checkpoint."""
    return f"rank/{rank:05d}.failed"


def align(offset: int, num_bytes: int) -> int:
    """First offset at or after `offset` where a chunk of `num_bytes` may begin."""
    alignment = CHUNK_ALIGNMENT if num_bytes >= SMALL_CHUNK_BYTES else SMALL_ALIGNMENT
    return -(-offset // alignment) * alignment


def marker(**fields: str) -> bytes:
    """Content of a marker: why or how, and when."""
    return json.dumps({**fields, "at_unix_s": round(time.time(), 3)}).encode() + b"\n"
