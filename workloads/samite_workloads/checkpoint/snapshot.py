"""The part of a save that training waits for: look at the tensors, agree with the other ranks, copy into a staging buffer."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from samite.checkpoint.checksum import crc64
from samite.checkpoint.index import Witness
from samite.errors import SamiteError
from samite_workloads.checkpoint.plan import WritePlan, write_plan
from samite_workloads.checkpoint.results import CheckpointOptions, SaveFailure, SaveSkippedError
from samite_workloads.checkpoint.shards import LocalShard, local_shards
from samite_workloads.checkpoint.staging import Buffer, witness_bytes
from samite_workloads.checkpoint.writer import Description, describe

_NAMES_COMPARED = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """What this rank would write, before anything is copied. `problem` says why it cannot."""

    step: int
    shards: Sequence[LocalShard] = ()
    plan: WritePlan = field(default_factory=lambda: WritePlan(chunks=(), object_bytes=(), aliases=()))
    extra: Mapping[str, Any] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Readiness:
    """What each rank tells the others before a save; a few bytes."""

    step: int
    problem: str
    buffer_free: bool
    num_tensors: int
    names: tuple[str, ...]


def prepare(
    step: int, tensors: Mapping[str, Tensor], extra: Mapping[str, Any] | None, *, rank: int, world_size: int, object_bytes: int
) -> Prepared:
    """Look at everything that can be wrong with what is to be saved; never raises, so that no rank leaves the others waiting."""
    try:
        shards = local_shards(tensors, rank=rank, world_size=world_size)
        return Prepared(
            step=step,
            shards=shards,
            plan=write_plan(shards, object_bytes=object_bytes),
            extra=json.loads(json.dumps(dict(extra or {}), allow_nan=False)),
            names=tuple(sorted(tensors)),
        )
    except (SamiteError, ValueError, TypeError) as error:
        return Prepared(step=step, problem=f"rank {rank}: {error}")


def readiness(prepared: Prepared, *, buffer_free: bool) -> Readiness:
    """What to tell the others."""
    names = prepared.names if len(prepared.names) <= _NAMES_COMPARED else ()
    return Readiness(step=prepared.step, problem=prepared.problem, buffer_free=buffer_free, num_tensors=len(prepared.names), names=names)


def agreement(answers: Sequence[Readiness], options: CheckpointOptions, last_error: str) -> SaveFailure | None:
    """None if all ranks save now; the same skip on every rank if one has no free buffer. Raises if the ranks cannot mean the same save."""
    problems = [answer.problem for answer in answers if answer.problem]
    if problems:
        raise SamiteError("nothing was saved: " + "; ".join(problems))
    if len({answer.step for answer in answers}) > 1:
        raise SamiteError(f"nothing was saved: ranks save different steps {[answer.step for answer in answers]}")
    if len({(answer.num_tensors, answer.names) for answer in answers}) > 1:
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
