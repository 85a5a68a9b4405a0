"""Ranks that restore together: each works, all wait for all, bytes change hands, and a rank that is gone is noticed within seconds.

A seam with two sides, one process or a process group, because the same restore serves both. Waiting goes in short rounds, so that a rank whose storage is
slow takes part all the time, while one that is dead, stopped or cut off misses a round: then everybody else is told, and nobody waits for ever.
"""

import contextlib
import pickle
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from datetime import timedelta
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

from samite.errors import TemporaryError
from samite_workloads.checkpoint.agreement import Group, Peers

T = TypeVar("T")

SILENCE_S = 8.0
"""A rank that does not answer for so long is taken for gone."""
_FIRST_ROUND_S = 0.005
_LONGEST_ROUND_S = 0.5


class PeerLostError(TemporaryError):
    """A rank of the group died, stopped or was cut off while all were restoring."""


class Meeting(Protocol):
    """All ranks of a restore. Every rank calls the same methods in the same order."""

    @property
    def rank(self) -> int:
        """This one's number."""
        ...

    @property
    def size(self) -> int:
        """How many there are."""
        ...

    def together(self, work: Callable[[], T]) -> list[T]:
        """Do `work`, in a thread of its own, and return what it gave on every rank, in order of rank. Raises PeerLostError."""
        ...

    def swap(self, outgoing: Sequence[bytes], incoming: Sequence[int]) -> list[memoryview]:
        """Send `outgoing[r]` to each rank r and return what each sent here, which has `incoming[r]` bytes. Raises PeerLostError."""
        ...


class OneRank:
    """One process."""

    rank, size = 0, 1

    def together(self, work: Callable[[], T]) -> list[T]:
        """Its result."""
        return [work()]

    def swap(self, outgoing: Sequence[bytes], incoming: Sequence[int]) -> list[memoryview]:
        """What it sends itself."""
        del incoming
        return [memoryview(outgoing[0])]


class GlooMeeting:
    """Ranks of a gloo group of their own that is made for one restore, with `silence_s` as its time limit.

    It is made from the store where all ranks met, not by `new_group`, which counts groups and so wants the same calls from ranks that take no part here.
    """

    def __init__(self, rank: int, size: int, name: str, silence_s: float) -> None:
        self._silence_s = silence_s
        self._rank, self._size = rank, size
        store = PrefixStore(f"samite-restore/{name}", _get_default_store())
        with self._answered():
            self._group: Any = dist.ProcessGroupGloo(store, rank, size, timeout=timedelta(seconds=silence_s))

    @property
    def rank(self) -> int:
        """This one's number."""
        return self._rank

    @property
    def size(self) -> int:
        """How many there are."""
        return self._size

    def together(self, work: Callable[[], T]) -> list[T]:
        """Rounds until all are done."""
        future: Future[T] = Future()
        threading.Thread(target=_settle, args=(future, work), name="samite-restore", daemon=True).start()
        round_s, mine = _FIRST_ROUND_S, b""
        while True:
            wait([future], timeout=round_s)
            if future.done() and not mine:
                mine = pickle.dumps(future.result())
            lengths = self._lengths(len(mine))
            if all(lengths):
                return [pickle.loads(content) for content in self._contents(mine, lengths)]  # noqa: S301  from our own ranks
            round_s = min(2 * round_s, _LONGEST_ROUND_S)

    def swap(self, outgoing: Sequence[bytes], incoming: Sequence[int]) -> list[memoryview]:
        """One all-to-all."""
        sizes = [len(content) for content in outgoing]
        sent = np.frombuffer(bytearray().join(outgoing), dtype=np.uint8)
        received = np.empty(sum(incoming), dtype=np.uint8)
        with self._answered():
            self._group.alltoall_base(torch.from_numpy(received), torch.from_numpy(sent), list(incoming), sizes).wait()
        ends = np.cumsum(incoming).tolist()
        return [memoryview(received)[end - size : end] for end, size in zip(ends, incoming, strict=True)]  # type: ignore[arg-type]

    def _lengths(self, mine: int) -> list[int]:
        return [int(length) for length in self._gather(torch.tensor([mine]))]

    def _contents(self, mine: bytes, lengths: list[int]) -> list[bytes]:
        padded = torch.frombuffer(bytearray(mine.ljust(max(lengths), b"\0")), dtype=torch.uint8)
        return [found[:length].numpy().tobytes() for found, length in zip(self._gather(padded), lengths, strict=True)]

    def _gather(self, mine: torch.Tensor) -> list[torch.Tensor]:
        found = [torch.empty_like(mine) for _ in range(self._size)]
        with self._answered():
            self._group.allgather([found], [mine]).wait()
        return found

    @contextlib.contextmanager
    def _answered(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise PeerLostError(
                f"another rank has ended, or has not answered for {self._silence_s:.0f} s, while {self._size} ranks were restoring; nothing it was to read "
                f"can be loaded. Restore again with all ranks ({str(error).splitlines()[0][:200]})"
            ) from error


@contextlib.contextmanager
def meeting(peers: Peers, *, silence_s: float = SILENCE_S) -> Iterator[Meeting]:
    """The ranks of `peers` for one restore. Collective; waits for all ranks as `peers` does, and from then on no longer than `silence_s` for any."""
    if not isinstance(peers, Group):
        yield OneRank()
        return
    name = peers.broadcast(secrets.token_hex(8))
    yield GlooMeeting(dist.get_rank(peers.process_group), dist.get_world_size(peers.process_group), name, silence_s)


def _settle(future: "Future[T]", work: Callable[[], T]) -> None:
    try:
        future.set_result(work())
    except BaseException as error:  # noqa: BLE001  raised again by whoever waits
        future.set_exception(error)
