"""Memory of this rank: resident host memory, and the allocator's numbers on CUDA. No device sync."""

import os
from collections.abc import Iterable
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
    points.append(Point("samite.device.memory.retries", _new_retries(device, stats.get("num_alloc_retries", 0))))
    torch.cuda.reset_peak_memory_stats(device)
    return points


def pressure(points: Iterable[Point], *, limit_share: float = 0.96) -> tuple[int, int] | None:
    """(peak, limit) in bytes if the allocator's peak came within 4 % of the device's memory: the next longer document may end the run."""
    by_name = {(point.name, point.attributes.get("samite.memory.kind")): point.value for point in points}
    peak, limit = by_name.get(("samite.device.memory.peak", "reserved"), 0.0), by_name.get(("samite.device.memory.limit", None), 0.0)
    return (int(peak), int(limit)) if limit and peak > limit_share * limit else None


_told_retries: dict[torch.device, int] = {}


def _new_retries(device: torch.device, total: int) -> int:
    """Allocator retries since the last sample: a counter wants increments."""
    before, _told_retries[device] = _told_retries.get(device, 0), total
    return max(0, total - before)


def host_bytes() -> int:
    """Resident set of this process in bytes; 0 where /proc does not exist."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * _PAGE_BYTES
    except OSError:
        return 0
