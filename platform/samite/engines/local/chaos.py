"""Breaking a local run on purpose: signals to its processes, faults to its trainer. Called by `samite chaos` through the engine.

Every blow is announced in the run's events before it falls.
"""

import json
import os
import signal
from dataclasses import asdict
from pathlib import Path

from samite.engines.base import Blow, who
from samite.engines.local.folder import RunFolder
from samite.engines.local.processes import processes_of_run
from samite.engines.local.ray_nodes import RayNodes
from samite.errors import NotFoundError
from samite.spec.attempt import Heartbeat, write_atomically
from samite.telemetry.events import EventLog


def strike(folder: RunFolder, blow: Blow) -> str:
    """Let the blow fall; returns what was done. NotFoundError if there is nothing to hit."""
    if blow.kind in {"kill-node", "kill-head"}:
        return _kill_node(folder, blow)
    if blow.kind == "kill-rank":
        return _signal_rank(folder, blow, signal.SIGKILL, "killed")
    if blow.kind == "stop-rank":
        return _signal_rank(folder, blow, signal.SIGSTOP, "stopped")
    if blow.kind == "kill-driver":
        return _kill_driver(folder)
    if blow.kind == "kill-supervisor":
        return _kill_supervisor(folder)
    return _fault(folder, blow)


def _kill_node(folder: RunFolder, blow: Blow) -> str:
    """A power cut: SIGKILL to the node's whole process group."""
    nodes = RayNodes(folder, run_uid=_uid(folder))
    head = blow.kind == "kill-head"
    alive = [found for found in nodes.nodes() if (found.name == "head") is head and nodes.is_alive(found.name)]
    chosen = next((found for found in alive if found.name == blow.node), None) if blow.node else (alive[-1] if alive else None)
    if chosen is None:
        raise _nothing("no living head" if head else f"no living node {blow.node}".strip(), ", ".join(found.name for found in alive))
    _announce(folder, blow.kind, chosen.name)
    os.killpg(chosen.process.pid, signal.SIGKILL)
    return f"killed the head of {folder.name}" if head else f"killed {chosen.name} of {folder.name}"


def _signal_rank(folder: RunFolder, blow: Blow, number: signal.Signals, done: str) -> str:
    file = folder.heartbeats / f"rank-{blow.rank}.json"
    beat = Heartbeat.read(file) if file.exists() else None
    if beat is None or beat.pid not in processes_of_run(_uid(folder)):
        raise _nothing(f"no living rank {blow.rank}", "")
    _announce(folder, blow.kind, f"rank {blow.rank}")
    os.kill(beat.pid, number)
    return f"{done} rank {blow.rank} (process {beat.pid} on {beat.node}) of {folder.name}"


def _kill_driver(folder: RunFolder) -> str:
    for pid in processes_of_run(_uid(folder)):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if b"samite_workloads.entrypoint" in words and b"--ray" in words:
            _announce(folder, "kill-driver", str(pid))
            os.kill(pid, signal.SIGKILL)
            return f"killed the driver (process {pid}) of {folder.name}"
    raise _nothing("no living driver", "")


def _kill_supervisor(folder: RunFolder) -> str:
    if not folder.is_supervised():
        raise _nothing("no living supervisor", "")
    pid = int(folder.lock_file.read_text(encoding="utf-8"))
    _announce(folder, "kill-supervisor", str(pid))
    os.kill(pid, signal.SIGKILL)
    return f"killed supervisor {pid} of {folder.name}"


def _fault(folder: RunFolder, blow: Blow) -> str:
    _announce(folder, blow.kind, f"rank {blow.rank}")
    file = folder.control / "faults.json"
    faults = json.loads(file.read_text(encoding="utf-8"))["faults"] if file.exists() else []
    fault = {key: value for key, value in asdict(blow).items() if key != "node"}
    write_atomically(file, json.dumps({"faults": [*faults, {"id": f"chaos-{len(faults)}", **fault}]}) + "\n")
    return f"asked rank {blow.rank} of {folder.name} for: {blow.kind}"


def _uid(folder: RunFolder) -> str:
    return str((folder.read_json(folder.spec_file) or {}).get("uid", ""))


def _announce(folder: RunFolder, kind: str, what: str) -> None:
    EventLog(folder.events_file).emit("samite.chaos.injected", chaos_kind=f"{kind} {what}", actor=who())


def _nothing(what: str, there: str) -> NotFoundError:
    return NotFoundError(f"{what} in this run right now" + (f"; there are: {there}" if there else "") + ". See: samite status")
