"""The host from /proc: its memory, what a process of it does, and whether the machine was given notice. Missing files are missing readings."""

from pathlib import Path

from samite.engines.node_agent.readings import Reading

PROC = Path("/proc")
RUNNING = frozenset("RSDIW")
"""States of /proc/PID/stat in which a process lives on: not stopped (T, t), not a zombie (Z), not dead (X)."""


def memory(proc: Path = PROC) -> list[Reading]:
    """Memory of the host (of the container's view of it), in bytes; nothing where the kernel does not say."""
    try:
        lines = (proc / "meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return []
    kibibytes = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines) if rest.split()[:1]}
    if "MemTotal" not in kibibytes or "MemAvailable" not in kibibytes:
        return []
    total, available = kibibytes["MemTotal"] << 10, kibibytes["MemAvailable"] << 10
    return [Reading(name="system.memory.usage", value=total - available), Reading(name="system.memory.limit", value=total)]


def process_state(pid: int, proc: Path = PROC) -> str:
    """The letter of /proc/PID/stat; "" if there is no such process here."""
    try:
        stat = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[0]


def process_bytes(pid: int, proc: Path = PROC) -> int | None:
    """Resident memory of a process; None if it is not here or not ours to see."""
    try:
        lines = (proc / str(pid) / "status").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    found = next((line for line in lines if line.startswith("VmRSS:")), None)
    return None if found is None else int(found.split()[1]) << 10


def drain(notice: Path | None) -> list[Reading]:
    """1 while the file exists that whoever takes machines away writes; nothing where no such file is watched."""
    return [] if notice is None else [Reading(name="samite.node.drain.count", value=float(notice.exists()))]
