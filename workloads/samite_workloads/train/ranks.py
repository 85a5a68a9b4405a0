"""The seam between the loop and whatever started it: which rank am I, and where do we meet. Everything else goes through files of the run folder.

Three ways in, one loop: Ray Train (`ray_worker.py`), `torchrun -m samite_workloads.entrypoint` for several ranks, and plain `python -m` for one.
"""

import os
import platform
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from samite_workloads.parallel.group import Rendezvous, free_port


@dataclass(frozen=True, kw_only=True, slots=True)
class RankFacts:
    """Who this rank is. `node` is the name that events and failure reports use."""

    node: str
    meeting: Rendezvous
    device_type: str

    @property
    def rank(self) -> int:
        """Global rank, from 0."""
        return self.meeting.rank

    @property
    def world_size(self) -> int:
        """Ranks of this worker group."""
        return self.meeting.world_size


def plain_facts(environment: Mapping[str, str] = os.environ, *, device_type: str) -> RankFacts:
    """From torchrun's variables if they are set, else one rank alone. RANK without a meeting point raises ValueError."""
    node = environment.get("SAMITE_NODE") or platform.node() or "localhost"
    if "RANK" not in environment:
        meeting = Rendezvous(rank=0, world_size=1, local_rank=0, host="127.0.0.1", port=free_port(), node_address="127.0.0.1")
        return RankFacts(node=node, meeting=meeting, device_type=device_type)
    missing = [name for name in ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if environment.get(name, "0") in ("", "0")]
    if missing:
        raise ValueError(
            f"RANK is set, so this is one of several ranks, but {', '.join(missing)} is not; start with `torchrun --standalone -m samite_workloads.entrypoint ...`"
        )
    host = environment["MASTER_ADDR"]
    port = int(environment["MASTER_PORT"])
    meeting = Rendezvous(
        rank=int(environment["RANK"]),
        world_size=int(environment["WORLD_SIZE"]),
        local_rank=int(environment.get("LOCAL_RANK", "0")),
        host=host,
        port=port,
        node_address=environment.get("SAMITE_NODE_ADDRESS") or address_towards(host, port),
        store_is_hosted=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
    )
    return RankFacts(node=node, meeting=meeting, device_type=device_type)


def address_towards(host: str, port: int) -> str:
    """This machine's own address on the way to `host`: the one peers can reach, whatever the hostname resolves to. No packet is sent."""
    family, _, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(target)
        return str(probe.getsockname()[0])


def usable_device(wanted: str) -> str:
    """`cpu` or `cuda`; `auto` takes CUDA where it is."""
    if wanted != "auto":
        return wanted
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"
