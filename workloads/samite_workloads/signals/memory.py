"""Memory of this rank: resident host memory, and the allocator's numbers on CUDA. No device sync."""

import os
from pathlib import Path

import torch

from samite.telemetry.records import Point

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def memory_points(device: torch.device) -> list[Point]:
    """The memory metrics of this process; resets the allocator's peak, so that each sample shows its own."""
    points = [Point("process.memory.usage", host_bytes())]
    if device.type != "cuda":
        return points
    free, total = torch.cuda.mem_get_info(device)
    stats = torch.cuda.memory_stats(device)
    for kind in ("allocated", "reserved"):
        attributes = {"samite.memory.kind": kind}
        points.append(Point("samite.device.memory.peak", stats.get(f"{kind}_bytes.all.peak", 0), attributes))
        points.append(Point("samite.device.memory.usage", stats.get(f"{kind}_bytes.all.current", 0), attributes))
    outside = max(0, total - free - stats.get("reserved_bytes.all.current", 0))
    points.append(Point("samite.device.memory.usage", outside, {"samite.memory.kind": "communication"}))
    points.append(Point("samite.device.memory.limit", total))
    torch.cuda.reset_peak_memory_stats(device)
    return points


def host_bytes() -> int:
    """Resident set of this process in bytes; 0 where /proc does not exist."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * _PAGE_BYTES
    except OSError:
        return 0
