"""The few small messages between ranks: opening, agreeing whether to save, agreeing what to restore. Never in the path of a commit.

A seam with two sides, one process or a process group, because the same manager serves both.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist

from samite.errors import TemporaryError, UsageError


class Peers(Protocol):
    """All ranks that save and restore together."""

    def broadcast(self, value: Any) -> Any:
        """Rank 0's value, on every rank."""
        ...

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, on every rank, in order of rank."""
        ...

    def begin_gather(self, record: bytes) -> Callable[[float], list[bytes]]:
        """Begin to gather a record that has the same length on every rank; what is returned waits for all, so many seconds at most, in any thread."""
        ...


class Alone:
    """One process."""

    def broadcast(self, value: Any) -> Any:
        """The value itself."""
        return value

    def gather(self, value: Any) -> list[Any]:
        """A list of it."""
        return [value]

    def begin_gather(self, record: bytes) -> Callable[[float], list[bytes]]:
        """A list of it."""
        return lambda _: [record]


class Group:
    """Ranks of a gloo process group of its own, so that nothing interleaves with the trainer's collectives."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self._size = dist.get_world_size(group)

    @property
    def process_group(self) -> dist.ProcessGroup:
        """Of all ranks."""
        return self._group

    def broadcast(self, value: Any) -> Any:
        """Rank 0's value."""
        box = [value]
        dist.broadcast_object_list(box, group=self._group, group_src=0)
        return box[0]

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value."""
        values: list[Any] = [None] * self._size
        dist.all_gather_object(values, value, group=self._group)
        return values

    def begin_gather(self, record: bytes) -> Callable[[float], list[bytes]]:
        """One collective of fixed size, carried out by gloo's own threads. Waiting raises TemporaryError if a rank is gone or late."""
        mine = torch.frombuffer(bytearray(record), dtype=torch.uint8)
        found = [torch.empty_like(mine) for _ in range(self._size)]
        work = dist.all_gather(found, mine, group=self._group, async_op=True)
        assert work is not None

        def finish(timeout_s: float) -> list[bytes]:
            try:
                work.wait(timedelta(seconds=max(0.001, timeout_s)))
            except RuntimeError as error:
                raise TemporaryError(f"the ranks could not agree on a save, one of them is gone or late: {error}") from error
            return [one.numpy().tobytes() for one in found]

        return finish


def peers(group: dist.ProcessGroup | None, rank: int, world_size: int) -> Peers:
    """The peers of `rank`. With a group that is not gloo, or none, a gloo group over all ranks is made (a collective call)."""
    if world_size == 1:
        return Alone()
    if not dist.is_initialized():
        raise UsageError(f"world_size is {world_size}, but torch.distributed is not initialised; call init_process_group first")
    if group is None or dist.get_backend(group) != "gloo":
        ranks = None if group is None else dist.get_process_group_ranks(group)
        made = dist.new_group(ranks=ranks, backend="gloo")
        assert isinstance(made, dist.ProcessGroup)
        group = made
    if (dist.get_rank(group), dist.get_world_size(group)) != (rank, world_size):
        raise UsageError(
            f"this process is rank {dist.get_rank(group)} of {dist.get_world_size(group)} in the group, but was said to be {rank} of {world_size}"
        )
    return Group(group)
