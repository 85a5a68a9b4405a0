"""Ranks meet on the interface of their node's address (scenario S17), whatever the machine's own name resolves to and however many interfaces there are."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

NETWORK = """
set -e
ip link set lo up
for nic in 1 2 3; do ip link add nic$nic type bridge; ip address add 10.9.$nic.1/24 dev nic$nic; ip link set nic$nic up; done
ip -6 address add fd00:9::1/64 dev nic2 nodad
hostname "$1"; mount --bind "$2" /etc/hosts
shift 2; exec "$@"
"""
MEET = """
import os, sys
import torch
import torch.distributed as dist
from samite_workloads.parallel.group import Rendezvous, free_port, interface_of, start_groups

address, wanted = sys.argv[1:]
assert interface_of(address) == wanted, interface_of(address)
port = free_port(address)
children = []
for rank in range(2):
    child = os.fork()
    if not child:
        meeting = Rendezvous(rank=rank, world_size=2, local_rank=rank, host=address, port=port, node_address=address)
        start_groups(meeting, device_type="cpu", timeout_s=40.0)
        total = torch.tensor([rank + 1.0])
        dist.all_reduce(total)
        assert os.environ["GLOO_SOCKET_IFNAME"] == wanted
        os._exit(0 if total.item() == 3.0 else 9)
    children.append(child)
sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
"""
NAMES = {
    "a name that nobody knows": "",
    "a name of an address that leads nowhere": "192.0.2.1",
    "a name of the loopback": "127.0.0.1",
    "a name of another interface": "10.9.3.1",
}


def may_have_networks() -> bool:
    """Whether this test may have namespaces and interfaces of its own."""
    if os.geteuid() != 0 or not (shutil.which("unshare") and shutil.which("ip")):
        return False
    tried = ("unshare", "--net", "--uts", "--mount", "ip", "link", "add", "nic1", "type", "bridge")
    return subprocess.run(tried, capture_output=True, check=False).returncode == 0


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("name", "address", "interface"), [*((name, "10.9.2.1", "nic2") for name in NAMES), ("a name of the loopback", "fd00:9::1", "nic2")]
)
def test_two_ranks_meet_on_the_interface_of_the_node_address(name: str, address: str, interface: str, tmp_path: Path):
    if not may_have_networks():
        pytest.skip("needs root, unshare and bridge interfaces")
    hosts = tmp_path / "hosts"
    hosts.write_text(f"127.0.0.1 localhost\n{NAMES[name]} worker-7\n" if NAMES[name] else "127.0.0.1 localhost\n")
    program = (sys.executable, "-c", MEET, address, interface)
    done = subprocess.run(
        ["unshare", "--net", "--uts", "--mount", "sh", "-c", NETWORK, "sh", "worker-7", str(hosts), *program],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
