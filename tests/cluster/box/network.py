"""Network namespaces, cables and partitions. Everything here is inside namespaces of ours: the host's network stays as it is."""

import contextlib
import ctypes
import os
import socket
import subprocess
import threading
from pathlib import Path

from .addresses import API_PORT, HUB, HUB_NAMESPACE, node_address, node_link, node_namespace, pod_range

CLONE_NEWNET = 0x40000000
NAMED = Path("/run/netns")


def ip(*words: str, namespace: str | None = None) -> str:
    """Run iproute2's `ip`, in a namespace if given. CalledProcessError carries its words."""
    command = ["ip", *(("-n", namespace) if namespace else ()), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def inside(namespace: str) -> list[str]:
    """Words that run what follows in a network namespace. Not `ip netns exec`: that mounts a new /sys and hides the cgroups."""
    return ["nsenter", f"--net={NAMED / namespace}"]


def ours() -> list[str]:
    """Names of our namespaces that exist."""
    return sorted(path.name for path in NAMED.glob("samite[0-9]")) if NAMED.exists() else []


def make_hub() -> None:
    """The hub's namespace with its bridge."""
    ip("netns", "add", HUB_NAMESPACE)
    ip("link", "set", "lo", "up", namespace=HUB_NAMESPACE)
    ip("link", "add", "bridge", "type", "bridge", namespace=HUB_NAMESPACE)
    ip("addr", "add", f"{HUB}/24", "dev", "bridge", namespace=HUB_NAMESPACE)
    ip("link", "set", "bridge", "up", namespace=HUB_NAMESPACE)
    _sysctl(HUB_NAMESPACE, "net.ipv4.ip_forward=1")


def add_node(number: int) -> None:
    """The node's namespace, its cable to the bridge, and the route to its pods."""
    name, cable = node_namespace(number), node_link(number)
    ip("netns", "add", name)
    ip("link", "add", cable, "netns", HUB_NAMESPACE, "type", "veth", "peer", "name", "eth0", "netns", name)
    ip("link", "set", cable, "master", "bridge", namespace=HUB_NAMESPACE)
    ip("link", "set", cable, "up", namespace=HUB_NAMESPACE)
    ip("link", "set", "lo", "up", namespace=name)
    ip("addr", "add", f"{node_address(number)}/24", "dev", "eth0", namespace=name)
    ip("link", "set", "eth0", "up", namespace=name)
    ip("route", "add", "default", "via", HUB, namespace=name)
    _sysctl(name, "net.ipv4.ip_forward=1", "net.bridge.bridge-nf-call-iptables=1")
    ip("route", "replace", pod_range(number), "via", node_address(number), namespace=HUB_NAMESPACE)


def remove(namespace: str) -> None:
    """Delete a namespace's name; the kernel drops the rest with its last process. No error when it is gone."""
    with contextlib.suppress(RuntimeError):
        ip("netns", "del", namespace)


def remove_node(number: int) -> None:
    """The node's namespace and cable."""
    remove(node_namespace(number))
    with contextlib.suppress(RuntimeError):
        ip("link", "del", node_link(number), namespace=HUB_NAMESPACE)


def set_cable(number: int, *, up: bool) -> None:
    """Pull the node's cable, or put it back."""
    ip("link", "set", node_link(number), "up" if up else "down", namespace=HUB_NAMESPACE)


def drop_api_packets(number: int, *, drop: bool) -> None:
    """Silently drop what the node itself sends to the API server; pods and their traffic go on."""
    rule = ["INPUT", "-s", node_address(number), "-p", "tcp", "--dport", str(API_PORT), "-j", "DROP"]
    for action in ("-D", "-A") if drop else ("-D",):
        subprocess.run([*inside(HUB_NAMESPACE), "iptables", action, *rule], capture_output=True, timeout=20, check=action == "-A")


def connect(namespace: str, host: str, port: int, *, timeout_s: float = 10) -> socket.socket:
    """A TCP connection made inside a namespace; OSError as from socket.create_connection.

    A socket belongs to the namespace of the thread that made it, so a thread of its own goes in and hands the socket out.
    """
    result: list[socket.socket | OSError] = []

    def dial() -> None:
        try:
            enter(namespace)
            result.append(socket.create_connection((host, port), timeout=timeout_s))
        except OSError as error:
            result.append(error)

    thread = threading.Thread(target=dial, daemon=True)
    thread.start()
    thread.join()
    if isinstance(result[0], OSError):
        raise result[0]
    return result[0]


def enter(namespace: str) -> None:
    """Move the calling thread into a network namespace. OSError when it is not there or not allowed."""
    handle = os.open(NAMED / namespace, os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(handle, CLONE_NEWNET):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), namespace)
    finally:
        os.close(handle)


def _sysctl(namespace: str, *settings: str) -> None:
    subprocess.run([*inside(namespace), "sysctl", "-qw", *settings], check=True, timeout=20)
