"""Starting and ending the box's own processes, never another: each is known by its pid and its start time.

A pid alone may have been given to somebody else; the kernel's start time of the process (ticks since boot) tells them apart.
"""

import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .addresses import CLUSTER

_children: list[subprocess.Popen[bytes]] = []
"""Kept so that ended children are reaped, whoever ended them."""


@dataclass(frozen=True, slots=True)
class Started:
    """One process: `ticks` is its start time as /proc/PID/stat has it."""

    pid: int
    ticks: int

    @classmethod
    def of(cls, pid: int) -> "Started | None":
        """The process that has this pid now, or None."""
        fields = _stat(pid)
        return None if fields is None else cls(pid, int(fields[19]))

    def alive(self) -> bool:
        """Whether the same process still runs; a zombie does not."""
        for child in _children:
            child.poll()
        fields = _stat(self.pid)
        return fields is not None and int(fields[19]) == self.ticks and fields[0] not in {"Z", "X"}

    def send(self, number: signal.Signals) -> None:
        """Send a signal, unless the process is gone."""
        if self.alive():
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                return


def start(
    command: Sequence[str | Path], *, log: Path, environment: Mapping[str, str] | None = None, pass_fds: Sequence[int] = ()
) -> Started:
    """Start `command` in a session of its own with its output in `log`. Every process so started carries the box's mark in its environment."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        child = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
            pass_fds=tuple(pass_fds),
            env={**os.environ, **(environment or {}), "SAMITE_BOX": CLUSTER},
        )
    _children.append(child)
    started = Started.of(child.pid)
    if started is None:
        raise RuntimeError(f"{command[0]} ended at once, see {log}")
    return started


def only_child(parent: Started, *, limit_s: float = 5) -> Started:
    """The first child of `parent`, waited for. RuntimeError when none appears: the parent has ended, or hangs."""
    deadline_s = time.monotonic() + limit_s
    while time.monotonic() < deadline_s and parent.alive():
        try:
            pids = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text(encoding="ascii").split()
        except OSError:
            break
        if pids and (child := Started.of(int(pids[0]))):
            return child
        time.sleep(0.01)
    raise RuntimeError(f"process {parent.pid} started no child within {limit_s:.0f} s")


def end(processes: Iterable[Started], *, patience_s: float) -> None:
    """SIGTERM, then after `patience_s` SIGKILL, then wait until all are gone (at most 10 s, else RuntimeError names them)."""
    left = [one for one in processes if one.alive()]
    for number, limit_s in ((signal.SIGTERM, patience_s), (signal.SIGKILL, 10.0)):
        if limit_s <= 0:
            continue
        for one in left:
            one.send(number)
        deadline_s = time.monotonic() + limit_s
        while left and time.monotonic() < deadline_s:
            time.sleep(0.02)
            left = [one for one in left if one.alive()]
    if left:
        raise RuntimeError(f"processes {[one.pid for one in left]} cannot be killed; look at /proc/PID/stack")


def marked() -> list[Started]:
    """Every process of this machine that carries the box's mark, outside containers too: what a crash may have left."""
    mark = f"SAMITE_BOX={CLUSTER}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            environment = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if mark in environment and (process := Started.of(int(folder.name))):
            found.append(process)
    return found


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the third (state) on; the second may hold spaces and brackets."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()
