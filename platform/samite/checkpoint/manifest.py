"""The commit record: small JSON, sealed, created once. A checkpoint exists exactly when its manifest does.

It names every rank's index with length and checksum (two levels: a reader fetches only indexes), carries the run's own state (`extra`: data cursor,
stage, schedule, token counts), and the writer session that committed it, which fences use to tell a late zombie's commit from a real one.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from samite.checkpoint.envelope import seal, unseal
from samite.checkpoint.layout import SessionId
from samite.errors import CheckpointDamagedError


@dataclass(frozen=True, kw_only=True, slots=True)
class RankRecord:
    """One rank's part, as the coordinator saw it when it committed."""

    rank: int
    index_bytes: int
    index_crc64: int
    data_bytes: int
    num_objects: int
    num_chunks: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """One committed checkpoint."""

    checkpoint_id: str
    step: int
    session: SessionId
    run_uid: str
    ranks: tuple[RankRecord, ...]
    num_tensors: int
    created_unix_s: float
    extra: Mapping[str, Any] = field(default_factory=dict)
    final: bool = False
    """The last checkpoint of a stage; `keep.stageFinal` keeps it."""
    writer: str = ""
    directory: tuple[int, int] | None = None
    """Length and CRC64 of the directory object; None where there is none."""

    @property
    def world_size(self) -> int:
        """Ranks that wrote it."""
        return len(self.ranks)

    @property
    def data_bytes(self) -> int:
        """Bytes of all data objects."""
        return sum(record.data_bytes for record in self.ranks)

    @property
    def num_objects(self) -> int:
        """Data objects of all ranks."""
        return sum(record.num_objects for record in self.ranks)

    @property
    def stage(self) -> str:
        """Name of the stage it belongs to, if `extra` says so."""
        state = self.extra.get("state", {})
        return str(self.extra.get("stage") or (state.get("stage_name", "") if isinstance(state, Mapping) else ""))

    def to_bytes(self) -> bytes:
        """The sealed document. Raises ValueError if `extra` is not plain JSON."""
        body = {
            "id": self.checkpoint_id,
            "step": self.step,
            "epoch": self.session.epoch,
            "seq": self.session.seq,
            "run_uid": self.run_uid,
            "created_unix_s": self.created_unix_s,
            "writer": self.writer,
            "final": self.final,
            "num_tensors": self.num_tensors,
            "ranks": [[r.rank, r.index_bytes, f"{r.index_crc64:016x}", r.data_bytes, r.num_objects, r.num_chunks] for r in self.ranks],
            "extra": dict(self.extra),
        }
        if self.directory is not None:
            body["directory"] = [self.directory[0], f"{self.directory[1]:016x}"]
        return seal("MANIFEST", json.dumps(body, separators=(",", ":"), allow_nan=False).encode())

    @classmethod
    def from_bytes(cls, document: bytes, *, name: str) -> "Manifest":
        """Parse a sealed document; raises CheckpointDamagedError naming `name`."""
        body = unseal("MANIFEST", document, name=name)
        try:
            found = json.loads(body)
            return cls(
                checkpoint_id=found["id"],
                step=found["step"],
                session=SessionId(found["epoch"], found["seq"]),
                run_uid=found["run_uid"],
                ranks=tuple(
                    RankRecord(
                        rank=rank,
                        index_bytes=index_bytes,
                        index_crc64=int(checksum, 16),
                        data_bytes=data_bytes,
                        num_objects=num_objects,
                        num_chunks=num_chunks,
                    )
                    for rank, index_bytes, checksum, data_bytes, num_objects, num_chunks in found["ranks"]
                ),
                num_tensors=found["num_tensors"],
                created_unix_s=found["created_unix_s"],
                extra=found["extra"],
                final=found["final"],
                writer=found["writer"],
                directory=(found["directory"][0], int(found["directory"][1], 16)) if "directory" in found else None,
            )
        except (KeyError, ValueError, TypeError) as error:
            raise CheckpointDamagedError(f"{name}: its checksum holds but its content does not parse ({error!r})") from error

    def digest(self) -> str:
        """SHA-256 of the sealed document: what a hand-over refers to."""
        return hashlib.sha256(self.to_bytes()).hexdigest()
