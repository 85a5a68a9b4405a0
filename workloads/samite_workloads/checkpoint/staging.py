"""Staging buffers: preallocated host memory that holds a snapshot while it is uploaded and training goes on.

Two of them by default: one uploads while the other takes the next snapshot. They are touched once when made, because page faults are what makes a
fresh buffer four times slower, and pinned where a GPU copies into them. Nothing is allocated during a save once the layout is known.
"""

import threading
import time
from collections.abc import Sequence

import torch

from samite_workloads.checkpoint.plan import WritePlan
from samite_workloads.checkpoint.shards import LocalShard, as_bytes, raw


class Buffer:
    """One staging buffer; `view` is its memory as bytes."""

    def __init__(self) -> None:
        self._tensor = torch.empty(0, dtype=torch.uint8)
        self.view = memoryview(b"")

    def fill(self, plan: WritePlan, shards: Sequence[LocalShard]) -> None:
        """Copy this rank's chunks in, bit for bit, laid out as `plan` says. On return the caller may change its tensors."""
        self._reserve(plan.staging_bytes, pinned=any(shard.data.is_cuda for shard in shards))
        starts = plan.object_starts
        on_gpu = False
        with torch.no_grad():
            for chunk in plan.chunks:
                shard = shards[chunk.shard]
                begin = starts[chunk.data_object] + chunk.offset
                target = self._tensor[begin : begin + chunk.num_bytes]
                on_gpu = on_gpu or shard.data.is_cuda
                if chunk.num_bytes == shard.num_bytes:
                    raw(target.view(shard.data.dtype)).view(shard.data.shape).copy_(raw(shard.data), non_blocking=True)
                else:
                    flat = raw(shard.data).contiguous().reshape(-1).view(torch.uint8)
                    target.copy_(flat[chunk.start : chunk.start + chunk.num_bytes], non_blocking=True)
        if on_gpu:
            torch.cuda.current_stream().synchronize()

    def _reserve(self, num_bytes: int, *, pinned: bool) -> None:
        if self._tensor.numel() < num_bytes or (pinned and not self._tensor.is_pinned()):
            self.view = memoryview(b"")
            self._tensor = torch.zeros(num_bytes, dtype=torch.uint8, pin_memory=pinned)
            self.view = as_bytes(self._tensor)


class BufferPool:
    """The buffers of one manager. `take` waits, `give_back` frees."""

    def __init__(self, count: int) -> None:
        self._free = [Buffer() for _ in range(count)]
        self._condition = threading.Condition()

    def take(self, timeout_s: float) -> Buffer | None:
        """A free buffer, or None if all stay busy for `timeout_s`: storage is slower than the interval between saves."""
        deadline_s = time.monotonic() + timeout_s
        with self._condition:
            while not self._free:
                rest_s = deadline_s - time.monotonic()
                if rest_s <= 0:
                    return None
                self._condition.wait(rest_s)
            return self._free.pop()

    def give_back(self, buffer: Buffer) -> None:
        """Make `buffer` free again."""
        with self._condition:
            self._free.append(buffer)
            self._condition.notify()


def witness_bytes(shard: LocalShard) -> memoryview:
    """The whole box's bytes in host memory, for its checksum; a copy only if it is on a GPU or not contiguous."""
    data = raw(shard.data)
    return as_bytes(data.contiguous().cpu())
