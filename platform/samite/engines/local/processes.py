"""Processes of a run, from /proc: start in an own group, tell whether alive, measure activity, kill, sweep orphans.

A process is never known by its number alone: numbers are reused, so each is remembered with its start time, and every process of a run
carries `SAMITE_RUN_UID` in its environment and the name of its node in `SAMITE_NODE`: Ray starts drivers in
sessions of their own, so a process group alone is not the whole node.
"""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

RUN_UID_VARIABLE = "SAMITE_RUN_UID"
NODE_VARIABLE = "SAMITE_NODE"
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessId:
    """A process for sure: its number and when it started (clock ticks since boot)."""

    pid: int
    started: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Activity:
    """What a process did so far. `stopped` is true after SIGSTOP."""

    cpu_s: float
    """Seconds of processor time that it used."""
    stopped: bool
    wanted_s: Mapping[int, float] = field(default_factory=dict)
    """Seconds that each of its threads ran, or was ready to run and had no processor, by thread; empty where the kernel does not say."""


def start_group(command: Sequence[str], *, environment: Mapping[str, str], log: Path, folder: Path) -> ProcessId:
    """Start `command` as the leader of its own session and process group; stdout and stderr are appended to `log`."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, env=dict(environment), stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True, cwd=folder
        )
    _children[process.pid] = process
    return ProcessId(pid=process.pid, started=_start_time(process.pid) or 0)


_children: dict[int, subprocess.Popen[bytes]] = {}
"""Own children, kept so that they are reaped: a zombie would look alive."""


def is_alive(process: ProcessId) -> bool:
    """True if that very process runs (a zombie does not)."""
    child = _children.get(process.pid)
    if child is not None and child.poll() is not None:
        return False
    stat = _stat(process.pid)
    return stat is not None and stat.state not in "ZX" and (not process.started or stat.started == process.started)


def exit_status(process: ProcessId) -> int | None:
    """Exit status of an own child that has ended (negative: signal), None if unknown or still running."""
    child = _children.get(process.pid)
    return None if child is None else child.poll()


def activity(pid: int) -> Activity | None:
    """Processor time that `pid` used and its threads wanted so far, and whether it is stopped; None if it does not run."""
    stat = _stat(pid)
    if stat is None or stat.state in "ZX":
        return None
    return Activity(cpu_s=stat.cpu_ticks / _TICKS_PER_S, stopped=stat.state in "Tt", wanted_s=_wanted_s(pid))


def _wanted_s(pid: int) -> dict[int, float]:
    wanted: dict[int, float] = {}
    for file in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with suppress(OSError, ValueError, IndexError):  # a thread that ends meanwhile
            ran_ns, waited_ns = file.read_text(encoding="ascii").split()[:2]
            wanted[int(file.parent.name)] = (int(ran_ns) + int(waited_ns)) / 1e9
    return wanted


def kill_node(leader: ProcessId, *, run_uid: str, node: str) -> None:
    """SIGKILL the whole group of `leader`, and what left that group but carries the node's mark: a power cut. Gone already is no error."""
    if is_alive(leader) or group_members(leader.pid):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(leader.pid, signal.SIGKILL)
    child = _children.pop(leader.pid, None)
    if child is not None:
        with suppress(subprocess.TimeoutExpired):
            child.wait(timeout=5)
    sweep(run_uid, node=node)


def group_members(group: int) -> list[int]:
    """Living processes of a process group."""
    return [pid for pid, stat in _all_stats() if stat.group == group and stat.state not in "ZX"]


def processes_of_run(run_uid: str) -> dict[int, str]:
    """Living processes that carry this run's uid in their environment, this one excepted: number -> name of the node they belong to."""
    mark = f"{RUN_UID_VARIABLE}={run_uid}".encode()
    node_key = f"{NODE_VARIABLE}=".encode()
    found = {}
    for pid, stat in _all_stats():
        if pid == os.getpid() or stat.state in "ZX":
            continue
        with suppress(OSError):
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if mark in variables:
                node = next((variable for variable in variables if variable.startswith(node_key)), node_key)
                found[pid] = node[len(node_key) :].decode(errors="replace")
    return found


def sweep(run_uid: str, *, node: str | None = None, spare_nodes: Sequence[str] = (), patience_s: float = 5.0) -> int:
    """SIGKILL every process of the run (of `node` only, if given) but those of `spare_nodes`; returns how many there were.

    Repeats until none is left or `patience_s` is over, because a dying process may still fork.
    """
    deadline = time.monotonic() + patience_s
    killed: set[int] = set()
    while True:
        rest = [pid for pid, name in processes_of_run(run_uid).items() if name not in spare_nodes and node in {None, name}]
        for pid in rest:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        killed.update(rest)
        if not rest or time.monotonic() > deadline:
            return len(killed)
        time.sleep(0.05)


@dataclass(frozen=True, slots=True)
class _Stat:
    state: str
    group: int
    cpu_ticks: int
    started: int


def _stat(pid: int) -> _Stat | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The command name is in parentheses and may hold anything: fields are counted from the last one.
    fields = text[text.rfind(")") + 2 :].split()
    return _Stat(state=fields[0], group=int(fields[2]), cpu_ticks=int(fields[11]) + int(fields[12]), started=int(fields[19]))


def _start_time(pid: int) -> int | None:
    stat = _stat(pid)
    return None if stat is None else stat.started


def identify(pid: int) -> ProcessId | None:
    """The process that now has this number, or None."""
    started = _start_time(pid)
    return None if started is None else ProcessId(pid=pid, started=started)


def _all_stats() -> list[tuple[int, _Stat]]:
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            stat = _stat(int(entry.name))
            if stat is not None:
                found.append((int(entry.name), stat))
    return found
