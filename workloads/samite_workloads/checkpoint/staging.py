"""Staging buffers: preallocated host memory that holds a snapshot while it is uploaded and training goes on.

Two of them by default: one uploads while the other takes the next snapshot. Fresh memory is what makes a first copy many times slower than the next, so
it is asked for in huge pages and touched before it is needed: in a thread once sizes are known (`BufferPool.prepare`), at the latest when a save needs it.
Pinned where a GPU copies into it. Nothing is allocated during a save once the layout is known.
"""

import contextlib
import mmap
import threading
import time
from collections.abc import Sequence

import torch

from samite_workloads.checkpoint.plan import WritePlan
from samite_workloads.checkpoint.shards import LocalShard, as_bytes, raw

_HUGE_PAGE_BYTES = 2 * 1024 * 1024
_TOUCHED_BYTES = 32 * 1024 * 1024


class Buffer:
    """One staging buffer; `view` is its memory as bytes."""

    def __init__(self) -> None:
        self._tensor = torch.empty(0, dtype=torch.uint8)
        self.view = memoryview(b"")

    def fill(self, plan: WritePlan, shards: Sequence[LocalShard]) -> None:
        """Copy this rank's chunks in, bit for bit, laid out as `plan` says. On return the caller may change its tensors."""
        self.reserve(plan.staging_bytes, pinned=any(shard.data.is_cuda for shard in shards))
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

    def reserve(self, num_bytes: int, *, pinned: bool) -> None:
        """Have at least `num_bytes` of memory that is there, not only promised."""
        if self._tensor.numel() >= num_bytes and (not pinned or self._tensor.is_pinned()):
            return
        self.view = memoryview(b"")
        self._tensor = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True) if pinned else _mapped(num_bytes)
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

    def prepare(self, num_bytes: int, *, pinned: bool) -> threading.Thread:
        """Have memory of `num_bytes` in every free buffer, in a thread. A save that comes meanwhile takes a buffer that is not being prepared, or waits."""

        def work() -> None:
            with self._condition:
                waiting = list(self._free)
            for buffer in waiting:
                with self._condition:
                    if buffer not in self._free:
                        continue  # a save has it, and reserves what it needs
                    self._free.remove(buffer)
                try:
                    buffer.reserve(num_bytes, pinned=pinned)
                finally:
                    self.give_back(buffer)

        thread = threading.Thread(target=work, name="samite-staging", daemon=True)
        thread.start()
        return thread

    def give_back(self, buffer: Buffer | None) -> None:
        """Make `buffer` free again, if there is one."""
        if buffer is None:
            return
        with self._condition:
            self._free.append(buffer)
            self._condition.notify()


def _mapped(num_bytes: int) -> torch.Tensor:
    """Private memory in huge pages where the kernel has them, every page of it touched: with the interpreter free, as torch writes the zeros."""
    memory = mmap.mmap(-1, max(1, -(-num_bytes // _HUGE_PAGE_BYTES)) * _HUGE_PAGE_BYTES)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    for start in range(0, num_bytes, _TOUCHED_BYTES):
        whole[start : start + _TOUCHED_BYTES].zero_()
    return whole[:num_bytes]


def witness_bytes(shard: LocalShard) -> memoryview:
    """The whole box's bytes in host memory, for its checksum; a copy only if it is on a GPU or not contiguous."""
    data = raw(shard.data)
    return as_bytes(data.contiguous().cpu())
