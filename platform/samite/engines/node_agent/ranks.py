"""The ranks of this node, from the heartbeats in a run folder or from datagrams that ranks send to the agent of their node.

At most MAX_RANKS ranks are told, five series each, and one that has been silent for FORGET_S is forgotten: whoever sends datagrams without end
makes no series without end. What a rank does not say about its process is read from /proc where the process is in sight.
"""

import json
import re
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from samite.engines.node_agent import host
from samite.engines.node_agent.readings import Reading, Run
from samite.spec.attempt import Heartbeat

MAX_RANKS = 64
FORGET_S = 600.0
MAX_DATAGRAM_BYTES = 8192
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_UID = re.compile(r"[-A-Za-z0-9]{1,64}")


@dataclass(frozen=True, kw_only=True, slots=True)
class RankSeen:
    """The newest sign of one rank. `heard_s` is on this machine's monotonic clock."""

    run: Run
    rank: int
    step: int
    heard_s: float
    compute_s: float = 0.0
    """Median compute time of a step; 0 until known."""
    pid: int = 0
    """0: its process is not in sight."""
    resident_bytes: int | None = None


class RankSource(Protocol):
    """Where heartbeats come from. A seam: the ranks of one machine share a folder, those of pods share nothing."""

    def ranks(self) -> list[RankSeen]:
        """The newest sign of each rank of this node."""
        ...

    def close(self) -> None:
        """Let go."""
        ...


class FolderRanks:
    """All ranks of a local run: its nodes share the machine, its clock and its processes."""

    def __init__(self, folder: Path, run: Run) -> None:
        self._folder, self._run = folder / "heartbeats", run

    def ranks(self) -> list[RankSeen]:
        """From the files; a torn or foreign one is passed over."""
        found = []
        for file in sorted(self._folder.glob("rank-*.json")):
            try:
                beat = Heartbeat.read(file)
            except (OSError, ValueError):
                continue
            found.append(_seen(beat, self._run, heard_s=beat.monotonic_s, pid=beat.pid))
        return found

    def close(self) -> None:
        """Nothing is open."""


class SocketRanks:
    """Ranks that send their heartbeats as datagrams (`samite.spec.beacon`): one pod or many, nothing shared but the node's network."""

    def __init__(self, *, port: int, host_address: str = "0.0.0.0", clock: Callable[[], float] = time.monotonic) -> None:  # noqa: S104 - ranks are in other pods
        self._clock = clock
        self._lock = threading.Lock()
        self._ranks: dict[tuple[Run, int], RankSeen] = {}
        self.refused = 0
        """Datagrams that were none of ours, or of more ranks than a node has."""
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((host_address, port))
        self.port: int = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._listen, name="heartbeats", daemon=True)
        self._thread.start()

    def ranks(self) -> list[RankSeen]:
        """Those heard within FORGET_S."""
        now_s = self._clock()
        with self._lock:
            self._ranks = {key: seen for key, seen in self._ranks.items() if now_s - seen.heard_s < FORGET_S}
            return list(self._ranks.values())

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()

    def take(self, datagram: bytes) -> None:
        """One datagram, from anybody: what is not a heartbeat is counted and passed over."""
        try:
            seen = parse(datagram, heard_s=self._clock())
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            self.refused += 1
            return
        with self._lock:
            if (seen.run, seen.rank) in self._ranks or len(self._ranks) < MAX_RANKS:
                self._ranks[seen.run, seen.rank] = seen
            else:
                self.refused += 1

    def _listen(self) -> None:
        while True:
            try:
                datagram = self._socket.recv(MAX_DATAGRAM_BYTES + 1)
            except OSError:
                return
            self.take(datagram)


def parse(datagram: bytes, *, heard_s: float) -> RankSeen:
    """A heartbeat of `samite.spec.beacon`. ValueError, TypeError, KeyError or OverflowError for anything else."""
    if len(datagram) > MAX_DATAGRAM_BYTES:
        raise ValueError(f"wanted at most {MAX_DATAGRAM_BYTES} bytes")
    document = json.loads(datagram)
    run = Run(name=str(document["run"]), uid=str(document["uid"]), namespace=str(document["namespace"]))
    if not (_NAME.fullmatch(run.name) and _UID.fullmatch(run.uid) and (not run.namespace or _NAME.fullmatch(run.namespace))):
        raise ValueError("wanted the name, uid and namespace of a run")
    rank, step, resident = int(document["rank"]), int(document["step"]), document.get("residentBytes")
    if not (0 <= rank < 2**24 and 0 <= step < 2**53):
        raise ValueError("wanted a rank and a step")
    compute_s = float(document.get("computeS", 0.0))
    return RankSeen(
        run=run,
        rank=rank,
        step=step,
        heard_s=heard_s,
        compute_s=compute_s if 0.0 <= compute_s < 1e9 else 0.0,
        resident_bytes=None if resident is None else max(0, int(resident)),
    )


def readings_of(ranks: list[RankSeen], *, now_s: float, proc: Path = host.PROC) -> list[Reading]:
    """The series that exist once per rank, and nowhere else: at most five for each of MAX_RANKS."""
    found = []
    for seen in ranks[:MAX_RANKS]:
        which = {"samite.rank": str(seen.rank)}

        def tell(name: str, value: float, seen: RankSeen = seen, which: dict[str, str] = which) -> None:
            found.append(Reading(name=name, value=value, attributes=which, run=seen.run))

        tell("samite.rank.heartbeat.age", max(0.0, now_s - seen.heard_s))
        tell("samite.rank.step.number", seen.step)
        if seen.compute_s > 0.0:
            tell("samite.rank.compute.time", seen.compute_s)
        resident = seen.resident_bytes
        if seen.pid:
            state = host.process_state(seen.pid, proc)
            tell("samite.rank.process.count", float(state in host.RUNNING and bool(state)))
            resident = host.process_bytes(seen.pid, proc) if state else None
        if resident is not None:
            tell("samite.rank.memory.usage", resident)
    return found


def _seen(beat: Heartbeat, run: Run, *, heard_s: float, pid: int) -> RankSeen:
    return RankSeen(run=run, rank=beat.rank, step=max(0, beat.step), heard_s=heard_s, compute_s=beat.compute_s, pid=pid)
