"""Where the ranks of a Ray worker group meet: a Train backend that tells them an address and leaves the process group to them.

Ray's own torch backend would make the process group itself, on whatever interface the hostname resolves to; ours is made by `parallel/group.py` on the
interface of the node's address, exactly as without Ray. Light on purpose: the controller loads this module, and torch would cost it 2 s of each start.
"""

import os
import socket
from dataclasses import dataclass
from typing import Any

from ray.train.backend import Backend, BackendConfig

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
    """Rank 0's node gives the address and a free port; every rank finds them in its environment."""

    share_cuda_visible_devices = True

    def on_start(self, worker_group: Any, backend_config: Any) -> None:  # noqa: ARG002
        """Before the train function starts, on the controller."""
        host, port = worker_group.execute_single(0, _meeting_point)
        worker_group.execute(_remember_meeting_point, host, port)


def _meeting_point() -> tuple[str, int]:
    from ray.util import get_node_ip_address

    address = get_node_ip_address()
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((address, 0))
        return address, int(probe.getsockname()[1])


def _remember_meeting_point(host: str, port: int) -> None:
    os.environ[MEETING_HOST] = host
    os.environ[MEETING_PORT] = str(port)
