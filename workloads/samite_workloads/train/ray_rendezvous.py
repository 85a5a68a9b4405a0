"""Where the ranks of a Ray worker group meet: a Train backend that tells them an address and leaves the process group to them.

Ray's own torch backend would make the process group itself, on whatever interface the hostname resolves to; ours is made by `parallel/group.py` on the
interface of the node's address, exactly as without Ray. Light on purpose: the controller loads this module, and torch would cost it 2 s of each start.
"""

import os
import socket
from dataclasses import dataclass
from typing import Any

from ray.train.backend import Backend, BackendConfig

from samite_workloads.train.outcome import WORKER_GROUP

MEETING_HOST = "SAMITE_MEETING_HOST"
MEETING_PORT = "SAMITE_MEETING_PORT"


@dataclass
class RendezvousConfig(BackendConfig):
    """In the place of a TorchConfig. `backend` is what the ranks will use: gloo or nccl."""

    backend: str = "gloo"

    @property
    def backend_cls(self) -> type[Backend]:
        """The backend below."""
        return RendezvousBackend


class RendezvousBackend(Backend):
    """Rank 0 gives the address of its node and a port that it keeps bound; every rank finds them in its environment."""

    share_cuda_visible_devices = True

    def on_start(self, worker_group: Any, backend_config: Any) -> None:  # noqa: ARG002
        """Before the train function starts, on the controller."""
        global _groups_started
        host, port = worker_group.execute_single(0, _meeting_point)
        worker_group.execute(_remember_meeting_point, host, port, _groups_started)
        _groups_started += 1


def groups_started() -> int:
    """In the controller's process: how many worker groups it has started, those included that failed before their ranks met."""
    return _groups_started


_groups_started = 0


def take_meeting_socket(port: int) -> int | None:
    """On rank 0: the descriptor of the socket that `port` belongs to, which is the caller's from now on. None on the other ranks."""
    held = _held.pop(port, None)
    return None if held is None else held.detach()


_held: dict[int, socket.socket] = {}
"""In the process of rank 0, from the moment the port was chosen until the store listens on it. Seconds pass between: torch is loaded."""


def _meeting_point() -> tuple[str, int]:
    from ray.util import get_node_ip_address

    address = get_node_ip_address()
    bound = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    bound.bind((address, 0))
    port = int(bound.getsockname()[1])
    _held[port] = bound
    return address, port


def _remember_meeting_point(host: str, port: int, group: int) -> None:
    os.environ[MEETING_HOST] = host
    os.environ[MEETING_PORT] = str(port)
    os.environ[WORKER_GROUP] = str(group)
