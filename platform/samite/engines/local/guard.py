"""The guard of one Ray node: starts it, and ends the whole node when the run's supervisor is gone for good.

Runs as the leader of the node's process group: `python -m samite.engines.local.guard --folder RUN --grace 60 -- ray start ...`.
A supervisor may crash and be revived, so a node outlives it for `--grace` seconds. It is gone for good if its lock is free *and* its beat
file has not changed for that long by this process's own monotonic clock: a stopped supervisor still holds its lock, and a clock that jumps
does not matter.
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from samite.engines.local import processes
from samite.engines.local.folder import lock_is_held

PERIOD_S = 1.0


def main(arguments: list[str] | None = None) -> int:
    """Run the command after `--` until it ends or the supervisor is gone."""
    parser = argparse.ArgumentParser(description="Guard of one Ray node (started by Samite's local engine).")
    parser.add_argument("--folder", type=Path, required=True, help="run folder")
    parser.add_argument("--grace", type=float, default=60.0, help="seconds that a node outlives its supervisor")
    parser.add_argument("--wait-port", type=int, default=0, help="start only when this port of 127.0.0.1 accepts connections")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(arguments)
    watch = SupervisorWatch(options.folder, grace_s=options.grace)
    while options.wait_port and not port_accepts(options.wait_port):
        if watch.supervisor_is_gone(time.monotonic()):
            return 1
        time.sleep(0.2)
    node = subprocess.Popen(options.command)
    while node.poll() is None:
        if watch.supervisor_is_gone(time.monotonic()):
            end_node(f"no supervisor for {options.grace:.0f} s; this node ends")
        time.sleep(PERIOD_S)
    # Ray leaves helpers behind when its main process dies alone; a node is whole or gone.
    end_node(f"the node ended with {node.returncode}; ending the rest of it")
    return 1


def end_node(reason: str) -> None:
    """Kill everything of this node, this process last."""
    sys.stderr.write(f"guard: {reason}\n")
    sys.stderr.flush()
    processes.sweep(os.environ.get(processes.RUN_UID_VARIABLE, ""), node=os.environ.get(processes.NODE_VARIABLE, ""))
    os.killpg(os.getpgrp(), signal.SIGKILL)


def port_accepts(port: int) -> bool:
    """True if something listens on this port of 127.0.0.1."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1.0):
            return True
    except OSError:
        return False


class SupervisorWatch:
    """Tells from the lock and the beat file whether the supervisor of `folder` is gone for good."""

    def __init__(self, folder: Path, *, grace_s: float) -> None:
        self._lock = folder / "supervisor.lock"
        self._beat = folder / "supervisor.beat"
        self._grace_s = grace_s
        self._seen: tuple[int, int] | None = None
        self._seen_at = time.monotonic()

    def supervisor_is_gone(self, now_s: float) -> bool:
        """True if the beat has not changed for the grace period and nobody holds the lock. `now_s` is monotonic."""
        beat = self._read_beat()
        if beat is not None and beat != self._seen:
            self._seen, self._seen_at = beat, now_s
        return now_s - self._seen_at > self._grace_s and not lock_is_held(self._lock)

    def _read_beat(self) -> tuple[int, int] | None:
        try:
            status = self._beat.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_ino


if __name__ == "__main__":
    sys.exit(main())
