"""The part of a save that training waits for: look at the tensors, agree with the other ranks, copy into a staging buffer."""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from samite.checkpoint.checksum import crc64
from samite.checkpoint.index import Witness
from samite.errors import SamiteError
from samite_workloads.checkpoint.plan import WritePlan
from samite_workloads.checkpoint.plan_cache import PlanCache
from samite_workloads.checkpoint.results import CheckpointOptions, SaveFailure, SaveSkippedError
from samite_workloads.checkpoint.shards import LocalShard
from samite_workloads.checkpoint.staging import Buffer, witness_bytes
from samite_workloads.checkpoint.writer import Description, describe

_RECORD = struct.Struct("<qBI16sH481s")
"""What each rank tells the others before a save: step, buffer free, number of tensors, digest of their names, and a problem with its length."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """What this rank would write, before anything is copied. `problem` says why it cannot."""

    step: int
    shards: Sequence[LocalShard] = ()
    plan: WritePlan = field(default_factory=lambda: WritePlan(chunks=(), object_bytes=(), aliases=()))
    extra: Mapping[str, Any] = field(default_factory=dict)
    num_tensors: int = 0
    digest: bytes = b""
    problem: str = ""
    unchanged: bool = False
    """The structure is that of the save before, on which all ranks agreed: training need not wait until they agree again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Readiness:
    """What each rank tells the others before a save; 512 bytes."""

    step: int
    problem: str
    buffer_free: bool
    num_tensors: int
    digest: bytes

    def to_bytes(self) -> bytes:
        """Always of one length; a long problem is cut (this rank tells all of it)."""
        text = self.problem.encode()
        if len(text) > _PROBLEM_BYTES:
            text = text[: _PROBLEM_BYTES - 4].decode(errors="ignore").encode() + b" ..."
        return _RECORD.pack(self.step, self.buffer_free, self.num_tensors, self.digest, len(text), text)

    @classmethod
    def from_bytes(cls, record: bytes) -> "Readiness":
        """Inverse."""
        step, buffer_free, num_tensors, digest, length, text = _RECORD.unpack(record)
        return cls(step=step, problem=text[:length].decode(), buffer_free=bool(buffer_free), num_tensors=num_tensors, digest=digest)


_PROBLEM_BYTES = 481


def prepare(step: int, tensors: Mapping[str, Tensor], extra: Mapping[str, Any] | None, *, rank: int, cache: PlanCache) -> Prepared:
    """Look at everything that can be wrong with what is to be saved; never raises, so that no rank leaves the others waiting."""
    try:
        planned = cache.look(tensors)
        return Prepared(
            step=step,
            shards=planned.shards,
            plan=planned.plan,
            extra=json.loads(json.dumps(dict(extra or {}), allow_nan=False)),
            num_tensors=planned.num_tensors,
            digest=planned.digest,
            unchanged=planned.unchanged,
        )
    except (SamiteError, ValueError, TypeError) as error:
        return Prepared(step=step, problem=f"rank {rank}: {error}")


def readiness(prepared: Prepared, *, buffer_free: bool) -> Readiness:
    """What to tell the others."""
    return Readiness(
        step=prepared.step, problem=prepared.problem, buffer_free=buffer_free, num_tensors=prepared.num_tensors, digest=prepared.digest
    )


def agreement(records: Sequence[bytes], options: CheckpointOptions, last_error: str) -> SaveFailure | None:
    """None if all ranks save now; the same skip on every rank if one has no free buffer. Raises if the ranks cannot mean the same save."""
    answers = [Readiness.from_bytes(record) for record in records]
    problems = [answer.problem for answer in answers if answer.problem]
    if problems:
        raise SamiteError("nothing was saved: " + "; ".join(problems))
    if len({answer.step for answer in answers}) > 1:
        raise SamiteError(f"nothing was saved: ranks save different steps {[answer.step for answer in answers]}")
    if len({(answer.num_tensors, answer.digest) for answer in answers}) > 1:
        raise SamiteError("nothing was saved: ranks save different sets of tensors")
    busy = [str(rank) for rank, answer in enumerate(answers) if not answer.buffer_free]
    if not busy:
        return None
    error = SaveSkippedError(
        f"step {answers[0].step} was not saved: all {options.buffers} staging buffers of rank {', '.join(busy[:8])} stayed busy for "
        f"{options.stall_s:.0f} s. {last_error or 'Storage is slower than the interval between saves'}"
    )
    return SaveFailure(step=answers[0].step, checkpoint_id="", error=error)


def take_snapshot(prepared: Prepared, buffer: Buffer, *, check_replicas: bool) -> Description:
    """Copy this rank's part into `buffer`; on return the caller may change its tensors."""
    buffer.fill(prepared.plan, prepared.shards)
    witnesses = [
        Witness(number, shard.box, crc64(witness_bytes(shard)))
        for number, shard in enumerate(prepared.shards)
        if check_replicas and shard.num_replicas > 1 and shard.num_bytes
    ]
    return describe(prepared.shards, prepared.plan, witnesses)
