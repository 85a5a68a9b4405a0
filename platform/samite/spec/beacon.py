"""A rank's heartbeat as one datagram to the agent of its node, where the two share no folder (Kubernetes).

    {"run": "demo", "uid": "...", "namespace": "team-a", "rank": 3, "step": 120, "computeS": 0.4, "residentBytes": 1234567}

Sent by ranks, taken by `samite.engines.node_agent.ranks`. Nothing waits for it and nothing depends on it: what is decided rests on the heartbeat's
way through driver and Lease (docs/heartbeat.md).
"""

import json
import os
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path

AGENT_VARIABLE = "SAMITE_AGENT"
"""`host:port` of the node's agent; unset: there is none."""
_PERIOD_S = 1.0
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Beacon:
    """One rank's. At most one datagram a second; an address that is not known yet, or a full buffer, loses it."""

    def __init__(self, *, run: str, uid: str, rank: int, address: str, namespace: str = "") -> None:
        self._identity = {"run": run, "uid": uid, "namespace": namespace, "rank": rank}
        self._sent_s = -_PERIOD_S
        self._target: tuple[str, int] | None = None
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        # A name server that does not answer must not hold the training thread.
        threading.Thread(target=self._find, args=(address,), name="beacon", daemon=True).start()

    @classmethod
    def from_environment(cls, *, run: str, uid: str, rank: int, environment: Mapping[str, str] = os.environ) -> "Beacon | None":
        """The beacon that AGENT_VARIABLE asks for; None without one."""
        address = environment.get(AGENT_VARIABLE, "")
        if not address:
            return None
        return cls(run=run, uid=uid, rank=rank, address=address, namespace=environment.get("SAMITE_NAMESPACE", ""))

    def send(self, *, step: int, compute_s: float) -> None:
        """Tell where the rank is."""
        now_s = time.monotonic()
        if self._target is None or now_s - self._sent_s < _PERIOD_S:
            return
        self._sent_s = now_s
        document = {**self._identity, "step": step, "computeS": round(compute_s, 6), "residentBytes": _resident_bytes()}
        try:
            self._socket.sendto(json.dumps(document).encode(), self._target)
        except OSError:
            return  # nobody listens, or the buffer is full: the next one comes in a second

    def close(self) -> None:
        """Let go of the socket."""
        self._socket.close()

    def _find(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        try:
            found = socket.getaddrinfo(host, int(port), socket.AF_INET, socket.SOCK_DGRAM)
        except (OSError, ValueError):
            return
        self._target = (str(found[0][4][0]), int(found[0][4][1]))


def _resident_bytes() -> int | None:
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return None
