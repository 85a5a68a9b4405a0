"""Process groups: how ranks find each other, on the network interface of the node address.

gloo on CPU, NCCL on CUDA, and always a gloo group beside it for host-side agreement. gloo otherwise takes whatever address the hostname resolves to,
often 127.0.0.1, and blames somebody else when the ranks can't meet; so the interface is the one that owns the node's own address.
"""

import array
import fcntl
import os
import socket
import struct
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore

_SIOCGIFCONF = 0x8912
_IFREQ_BYTES = 40


@dataclass(frozen=True, kw_only=True, slots=True)
class Rendezvous:
    """Where the ranks meet. `node_address` is this node's own address, `host` the one of rank 0."""

    rank: int
    world_size: int
    local_rank: int
    host: str
    port: int
    node_address: str
    store_is_hosted: bool = False
    """Whether somebody else (torchrun's agent) already serves the store at `port`; otherwise rank 0 does."""
    listen_fd: int | None = None
    """On rank 0: a socket that is bound to `port` already, given up to the store. A port that is only known to have been free may be taken by the time
    that torch is loaded."""


@dataclass(frozen=True, slots=True)
class Groups:
    """The process groups of one worker group. `host` is gloo on every machine: it agrees on values that live on the CPU."""

    device: torch.device
    world: dist.ProcessGroup
    host: dist.ProcessGroup


def start_groups(meeting: Rendezvous, *, device_type: str, timeout_s: float = 1800.0) -> Groups:
    """Join the process group; returns when all `world_size` ranks have. Raises torch.distributed.DistError if they can't meet in time."""
    device = torch.device("cuda", meeting.local_rank) if device_type == "cuda" else torch.device("cpu")
    interface = interface_of(meeting.node_address)
    if interface:
        os.environ["GLOO_SOCKET_IFNAME"] = interface
        os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)
    timeout = timedelta(seconds=timeout_s)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    serves = meeting.rank == 0 and not meeting.store_is_hosted
    store = TCPStore(
        meeting.host,
        meeting.port,
        meeting.world_size,
        serves,
        timeout,
        wait_for_workers=False,
        multi_tenant=True,
        master_listen_fd=meeting.listen_fd if serves else None,
    )
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=PrefixStore(f"samite-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store),
        rank=meeting.rank,
        world_size=meeting.world_size,
        timeout=timeout,
        device_id=device if device.type == "cuda" else None,
    )
    world = dist.group.WORLD
    assert world is not None
    host = dist.new_group(backend="gloo", timeout=timeout) if device.type == "cuda" else world
    assert isinstance(host, dist.ProcessGroup)
    return Groups(device, world, host)


def stop_groups() -> None:
    """Leave the process group; safe to call when none is up."""
    if dist.is_initialized():
        dist.destroy_process_group()


def interface_of(address: str) -> str:
    """Name of the network interface that owns `address`, IPv4 or IPv6; loopback for all of 127.0.0.0/8; empty if none does (an address behind NAT)."""
    if address.startswith("127."):
        return _interfaces().get("127.0.0.1", "lo")
    if ":" in address:
        return _interfaces_of_ipv6().get(socket.inet_pton(socket.AF_INET6, address.partition("%")[0]), "")
    return _interfaces().get(address, "")


def free_port(address: str = "127.0.0.1") -> int:
    """A TCP port that was free on `address` a moment ago."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


def _interfaces() -> dict[str, str]:
    """IPv4 address -> interface name, from the kernel and not from name resolution."""
    room = array.array("B", bytes(_IFREQ_BYTES * 256))
    pointer, length = room.buffer_info()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        answer = fcntl.ioctl(probe.fileno(), _SIOCGIFCONF, struct.pack("iL", length, pointer))
    used = struct.unpack("iL", answer)[0]
    found: dict[str, str] = {}
    for start in range(0, used, _IFREQ_BYTES):
        entry = room[start : start + _IFREQ_BYTES].tobytes()
        found.setdefault(socket.inet_ntoa(entry[20:24]), entry[:16].split(b"\0", 1)[0].decode())
    return found


def _interfaces_of_ipv6() -> dict[bytes, str]:
    """IPv6 address -> interface name; empty where the kernel has no IPv6."""
    try:
        lines = Path("/proc/net/if_inet6").read_text(encoding="ascii").splitlines()
    except OSError:
        return {}
    return {bytes.fromhex(words[0]): words[-1] for words in map(str.split, lines)}
