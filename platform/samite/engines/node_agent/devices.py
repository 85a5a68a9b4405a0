"""NVIDIA devices through NVML, called with ctypes: no package is needed, and without the library or a device there simply are no readings.

Per device only memory and utilization are told (two series each); health is counted over the node: `failed` for a device that does not answer or
failed to remap a row, `degraded` for one with uncorrected errors since the driver's start or a remap that waits for a reset.
"""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from samite.engines.node_agent.readings import Reading

LIBRARY = "libnvidia-ml.so.1"
_UNCORRECTED, _VOLATILE = 1, 0
MAX_DEVICES = 16


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """One device at this moment. None: the device or its driver does not say."""

    index: int
    used_bytes: int | None = None
    total_bytes: int | None = None
    busy: float | None = None
    """Share of the last sample period in which a kernel ran."""
    uncorrected: int | None = None
    """Uncorrected memory errors since the driver was loaded."""
    remap_pending: bool = False
    remap_failed: bool = False
    lost: bool = False
    """It does not answer at all."""

    @property
    def state(self) -> str:
        """ok | degraded | failed"""
        if self.lost or self.remap_failed:
            return "failed"
        return "degraded" if self.remap_pending or self.uncorrected else "ok"


def readings_of(devices: list[Device]) -> list[Reading]:
    """What is told of a node's devices; nothing for none."""
    if not devices:
        return []
    found = []
    for device in devices:
        which = {"hw.id": str(device.index)}
        if device.used_bytes is not None:
            found.append(Reading(name="hw.gpu.memory.usage", value=device.used_bytes, attributes=which))
        if device.busy is not None:
            found.append(Reading(name="hw.gpu.utilization", value=device.busy, attributes=which))
    sizes = [device.total_bytes for device in devices if device.total_bytes is not None]
    if sizes:
        found.append(Reading(name="hw.gpu.memory.limit", value=min(sizes)))
    for state in ("degraded", "failed"):
        count = sum(device.state == state for device in devices)
        found.append(Reading(name="samite.node.device.count", value=count, attributes={"samite.device.state": state}))
    errors = {"uncorrected": sum(device.uncorrected or 0 for device in devices), "remap": sum(device.remap_failed for device in devices)}
    found += [Reading(name="hw.errors", value=count, attributes={"error.type": kind}) for kind, count in errors.items()]
    return found


class Nvml:
    """The library, opened once. `problem` says in words why there are no devices; empty if all is well."""

    def __init__(self, load: Callable[[str], Any] = ctypes.CDLL) -> None:
        self.problem = ""
        self._library: Any = None
        try:
            library = load(LIBRARY)
        except OSError:
            self.problem = f"{LIBRARY} is not on this node: it has no NVIDIA driver, or the container is not given it"
            return
        status = library.nvmlInit_v2()
        if status:
            self.problem = f"{LIBRARY} does not start (NVML error {status}): is a device visible to this container?"
            return
        self._library = library

    def devices(self) -> list[Device]:
        """All devices that are visible here; none where the library is missing."""
        if self._library is None:
            return []
        count = ctypes.c_uint()
        if self._call("nvmlDeviceGetCount_v2", ctypes.byref(count)):
            self.problem = "NVML does not count devices any more"
            return []
        return [self._device(index) for index in range(min(count.value, MAX_DEVICES))]

    def close(self) -> None:
        """Let go of the library."""
        if self._library is not None:
            self._library.nvmlShutdown()
            self._library = None

    def _device(self, index: int) -> Device:
        handle = ctypes.c_void_p()
        memory, busy, errors = _Memory(), _Utilization(), ctypes.c_ulonglong()
        if self._call("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(handle)):
            return Device(index=index, lost=True)
        if self._call("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory)):
            return Device(index=index, lost=True)
        silent = self._call("nvmlDeviceGetUtilizationRates", handle, ctypes.byref(busy))
        unknown = self._call("nvmlDeviceGetTotalEccErrors", handle, _UNCORRECTED, _VOLATILE, ctypes.byref(errors))
        rows = [ctypes.c_uint() for _ in range(4)]  # corrected, uncorrected, pending, failed
        if self._call("nvmlDeviceGetRemappedRows", handle, *map(ctypes.byref, rows)):
            rows = [ctypes.c_uint() for _ in range(4)]
        return Device(
            index=index,
            used_bytes=memory.used,
            total_bytes=memory.total,
            busy=None if silent else busy.gpu / 100.0,
            uncorrected=None if unknown else errors.value,
            remap_pending=bool(rows[2].value),
            remap_failed=bool(rows[3].value),
        )

    def _call(self, name: str, *arguments: Any) -> int:
        """0 for success; 13 (function not found) for a driver that is older than the function."""
        function = getattr(self._library, name, None)
        return 13 if function is None else int(function(*arguments))
