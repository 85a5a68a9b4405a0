"""The box as a whole: up, down, and everything a test may do to a cluster in between.

One box at a time on a machine. `Cluster.up` sweeps what a crash left behind; a guard process takes the box down when its owner dies, however it dies.
"""

import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from . import cgroups, evidence, network
from .addresses import HUB, HUB_NAMESPACE, MAX_NODES
from .binaries import Binaries
from .certificates import write_all
from .control_plane import ControlPlane, forward
from .dockerfiles import build_image
from .folders import Folders
from .images import own_images
from .kubectl import Kubectl
from .node import Node
from .node_settings import write_settings
from .processes import Started, end, marked, start
from .state import State
from .waiting import until

Say = Callable[[str], None]
MANIFESTS = Path(__file__).with_name("manifests")


class BoxBusyError(RuntimeError):
    """Another box is up on this machine."""


class Cluster:
    """A running box. Made by `up` or `attach`."""

    def __init__(self, binaries: Binaries, state: State) -> None:
        self.binaries, self.state, self.folders = binaries, state, binaries.folders
        self.control_plane = ControlPlane(binaries, state)
        self.api = self.control_plane.api
        self.kubeconfig = self.folders.certificates / "admin.kubeconfig"
        self.kubectl = Kubectl(binaries.path("kubectl"), self.kubeconfig)
        self.nodes = [Node(binaries, state, number) for number in range(1, state.nodes + 1)]

    @classmethod
    def up(cls, *, nodes: int = 3, fast: bool = True, owner: Started | None, say: Say, patience_s: float = 0) -> "Cluster":
        """Bring a box up, in about half a minute. With an `owner` it goes down when that process ends; with None it stays until `down`.

        MissingToolError when tools are not built; BoxBusyError when for `patience_s` a box is up that somebody may be using.
        """
        if not 1 <= nodes <= MAX_NODES:
            raise ValueError(f"{nodes} nodes: wanted 1 to {MAX_NODES}")
        binaries = Binaries(Folders.of_user())
        folders, begun_s = binaries.folders, time.monotonic()
        archives = own_images(binaries, say)
        with _lock(folders, patience_s=patience_s, unused=True):
            sweep(folders)
            guardian = owner or Started.of(os.getpid())
            assert guardian is not None
            listener = socket.create_server(("127.0.0.1", 0))
            state = State(folders.state, nodes, fast, listener.getsockname()[1], guardian, archives=[str(one) for one in archives])
            state.save()
            guard = start(
                [sys.executable, "-I", str(Path(__file__).parent), "guard", str(guardian.pid), str(guardian.ticks)],
                log=folders.logs / "guard.log",
            )
            try:
                write_all(folders.certificates, nodes=nodes, api_port=state.api_port)
                cluster = cls(binaries, state)
                cluster.control_plane.start(listener)
                say(f"{time.monotonic() - begun_s:4.0f} s  control plane answers")
                for node in cluster.nodes:
                    node.start(archives, keep_stock=node.number == 1)
                cluster.kubectl.apply(MANIFESTS / "coredns.yaml")
                for node in cluster.nodes:
                    cluster.wait_ready(node.number, limit_s=120)
                say(f"{time.monotonic() - begun_s:4.0f} s  {nodes} nodes Ready")
                cluster.kubectl("-n", "kube-system", "rollout", "status", "deployment/coredns", "--timeout=90s", limit_s=100)
                say(f"{time.monotonic() - begun_s:4.0f} s  DNS answers")
            except BaseException:
                keep = Path(folders.cache) / "failed-up"
                shutil.rmtree(keep, ignore_errors=True)
                evidence.collect_box(folders.logs, keep)
                say(f"bringing the box up failed; its logs are in {keep}")
                sweep(folders)
                raise
            if owner is None:
                end([guard], patience_s=0)
            state.owner = owner
            state.save()
        return cluster

    @classmethod
    def attach(cls) -> "Cluster":
        """The box that is up. RuntimeError when none is."""
        binaries = Binaries(Folders.of_user())
        state = State.load(binaries.folders.state)
        if state is None:
            raise RuntimeError("no box is up; start one with `python tests/cluster/box up`")
        return cls(binaries, state)

    def down(self) -> None:
        """Take everything down and leave nothing."""
        with _lock(self.folders, patience_s=60):
            sweep(self.folders)

    # Nodes

    def node(self, number: int) -> Node:
        """A node, counted from 1."""
        return self.nodes[number - 1]

    def start_node(self, number: int, *, clock_off_s: float = 0, limit_s: float = 60) -> float:
        """Power a node on and wait until it is Ready; the seconds it took."""
        begun_s = time.monotonic()
        self.node(number).start([Path(one) for one in self.state.archives], clock_off_s=clock_off_s)
        self.wait_ready(number, limit_s=limit_s)
        for image, name in self.state.tags:
            self.node(number).ctr("images", "tag", "--force", image, name)
        return time.monotonic() - begun_s

    def set_clock(self, number: int, *, off_s: float) -> None:
        """Put the wall clock of containers that start on the node from now on wrong by `off_s` seconds (clock.c, preloaded).

        Monotonic clocks stay right. Static Go programs, and so kubelet itself, keep the true time: Linux has no namespace for the wall clock.
        """
        node = self.node(number)
        write_settings(self.binaries, self.state, number, clock_off_s=off_s)
        old = node.processes("containerd")
        end(old, patience_s=5)  # its first process starts it again; containers run on
        until(lambda: node.processes("containerd") and node.ctr("version", limit_s=5), f"containerd of {node.name}", limit_s=30)

    def is_ready(self, number: int) -> bool:
        """Whether the API server calls the node Ready."""
        found = self.api.request("GET", f"/api/v1/nodes/{self.node(number).name}")
        conditions: dict[str, str] = {one["type"]: one["status"] for one in found["status"].get("conditions", [])}
        return conditions.get("Ready") == "True"

    def wait_ready(self, number: int, *, limit_s: float = 60) -> float:
        """Wait for the node to be Ready; the seconds it took."""
        return until(lambda: self.is_ready(number), f"node{number} to be Ready (see {self.folders.logs})", limit_s=limit_s)

    def wait_not_ready(self, number: int, *, limit_s: float = 60) -> float:
        """Wait until the node is no longer Ready; the seconds it took."""
        return until(lambda: not self.is_ready(number), f"node{number} to be NotReady", limit_s=limit_s)

    # Control plane

    def restart_api_server(self, *, down_for_s: float = 0) -> float:
        """End the API server, leave it off for a while, start it; the seconds from its start until it is ready."""
        self.control_plane.stop_api_server()
        time.sleep(down_for_s)
        self.control_plane.start_api_server(wait=False)
        took_s = self.control_plane.wait_until_ready(limit_s=60)
        self.control_plane.start_controllers()
        return took_s

    def audit(self) -> list[dict[str, Any]]:
        """Requests of service accounts so far, oldest first, as audit events (user.username, verb, requestURI, responseStatus.code, ...)."""
        text = (self.folders.logs / "audit.jsonl").read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines() if line.endswith("}")]

    # Images

    def load_image(self, archive: Path, *names: str) -> None:
        """Import an image archive on every node, and give the image in it further names if wanted; the first name must be its own."""
        self.state.archives.append(str(archive))
        self.state.save()
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda node: node.import_image(archive), self._running()))
        for name in names[1:]:
            self.tag_image(names[0], name)

    def tag_image(self, image: str, name: str) -> None:
        """Give an image that the nodes have a further name, as manifests use it."""
        self.state.tags.append((image, name))
        self.state.save()
        for node in self._running():
            node.ctr("images", "tag", "--force", image, name)

    def build_image(self, name: str, dockerfile: Path, context: Path, *, say: Say = print, **options: Any) -> None:
        """Build an image from its Dockerfile and load it on every node under its name. Options as `dockerfiles.build_image`."""
        self.load_image(build_image(self.folders, name, dockerfile, context, say=say, **options))

    # The hub

    def start_in_hub(self, name: str, command: Sequence[str | Path]) -> Started:
        """Run a server beside the control plane. Pods and nodes reach it at `hub_address`; it ends with the box."""
        process = start([*network.inside(HUB_NAMESPACE), *command], log=self.folders.logs / f"{name}.log")
        self.state.record(name, process)
        return process

    def stop_in_hub(self, name: str) -> None:
        """End what `start_in_hub` or `forward` started."""
        if process := self.state.forget(name):
            end([process], patience_s=2)

    hub_address = HUB

    def forward(self, host: str, port: int) -> int:
        """A loopback port of the host that leads to an address of the hub, a node or a pod. Services have no address there: forward to a pod."""
        listener = socket.create_server(("127.0.0.1", 0))
        local: int = listener.getsockname()[1]
        forward(self.binaries, self.state, f"forward-{local}", listener, host, port)
        return local

    def collect(self, folder: Path) -> None:
        """Write everything that tells what happened into a folder."""
        evidence.collect_objects(self.kubectl, folder)
        evidence.collect_box(self.folders.logs, folder / "box")

    def _running(self) -> list[Node]:
        return [node for node in self.nodes if node.init]


def sweep(folders: Folders) -> None:
    """Remove every trace of a box: processes, network namespaces, cgroups, state. Only what carries our marks is touched."""
    for number in range(1, MAX_NODES + 1):
        cgroups.freeze(number, frozen=False)
    state = State.load(folders.state)
    known = list(state.processes.values()) if state else []
    end([*known, *marked()], patience_s=0)
    left = [process for pid in cgroups.processes() if (process := Started.of(pid))]
    end(left, patience_s=0)
    for namespace in network.ours():
        network.remove(namespace)
    cgroups.remove()
    _free_disk(folders)


def _free_disk(folders: Folders) -> None:
    """Remove the state of a box that is gone. Some disks take a minute for a gigabyte: after 10 s the rest is left to `rm`, which ends by itself."""
    if folders.run.exists():
        folders.run.rename(folders.cache / f"trash-{time.time_ns()}")
    if trash := [str(folder) for folder in folders.cache.glob("trash-*")]:
        child = subprocess.Popen(["rm", "-rf", "--one-file-system", *trash], stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.returncode = 0  # or Python would warn of a process left running


def remains(folders: Folders) -> list[str]:
    """What of a box is still there, in words; empty after `down`."""
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()]
    return [
        *(f"process {one.pid}" for one in marked()),
        *(f"network namespace {name}" for name in network.ours()),
        *(f"cgroup {path}" for path in cgroups.remains()),
        *(f"mount {path}" for path in mounts if path.startswith(str(folders.run))),
        *([f"folder {folders.run}"] if folders.run.exists() else []),
    ]


def guard(owner: Started, folders: Folders) -> None:
    """Wait until `owner` has ended, then sweep, unless the box has another owner by then."""
    while owner.alive():
        time.sleep(0.3)
    with _lock(folders, patience_s=600):
        state = State.load(folders.state)
        if state is None or state.owner == owner:
            sweep(folders)


@contextmanager
def _lock(folders: Folders, *, patience_s: float, unused: bool = False) -> Iterator[None]:
    """Only one process changes the box as a whole; with `unused`, only when no box is up. BoxBusyError when that is not so within `patience_s`."""
    folders.cache.mkdir(parents=True, exist_ok=True)
    give_up_s = time.monotonic() + patience_s
    with folders.lock.open("w") as file:
        while True:
            problem = _lock_problem(file, folders, unused=unused)
            if problem is None:
                break
            if time.monotonic() >= give_up_s:
                raise BoxBusyError(f"{problem}; wait for it, or end it with `python tests/cluster/box down`")
            time.sleep(0.5)
        yield


def _lock_problem(file: IO[str], folders: Folders, *, unused: bool) -> str | None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return "another process is bringing a box up or down on this machine"
    running = State.load(folders.state) if unused else None
    if running and (running.owner is None or running.owner.alive()) and any(one.alive() for one in running.processes.values()):
        fcntl.flock(file, fcntl.LOCK_UN)
        return f"a box of {f'process {running.owner.pid}' if running.owner else '`box up`'} is up"
    return None
