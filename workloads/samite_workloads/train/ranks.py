"""The seam between the loop and whatever started it: which rank am I, where do we meet, should I stop.

Three ways in, one loop: Ray Train (`ray_run.py`), `torchrun -m samite_workloads.entrypoint` for several ranks, and plain `python -m` for one.
The Protocol exists because only the first of them may import Ray.
"""

import os
import platform
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

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


class Starter(Protocol):
    """What started the rank. Only what Ray Train does differently from torchrun stands here."""

    @property
    def facts(self) -> RankFacts:
        """Rank, world and meeting point."""
        ...

    def asked_to_stop(self) -> bool:
        """Whether the platform announced that this rank's node goes away: save and stop."""
        ...


@dataclass(frozen=True, slots=True)
class PlainStarter:
    """Ranks started by hand or by torchrun; nobody announces anything to them."""

    facts: RankFacts

    def asked_to_stop(self) -> bool:
        """Never: such a rank is stopped through the control folder or a signal."""
        return False


def plain_starter(environment: Mapping[str, str] = os.environ, *, device_type: str) -> PlainStarter:
    """From torchrun's variables if they are set, else one rank alone. RANK without a meeting point raises ValueError."""
    node = environment.get("SAMITE_NODE") or platform.node() or "localhost"
    if "RANK" not in environment:
        meeting = Rendezvous(rank=0, world_size=1, local_rank=0, host="127.0.0.1", port=free_port(), node_address="127.0.0.1")
        return PlainStarter(RankFacts(node=node, meeting=meeting, device_type=device_type))
    missing = [name for name in ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if not environment.get(name)]
    if missing:
        raise ValueError(
            f"RANK is set, so this is one of several ranks, but {', '.join(missing)} is not; start with `torchrun -m samite_workloads.entrypoint ...`"
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
    )
    return PlainStarter(RankFacts(node=node, meeting=meeting, device_type=device_type))


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
