"""One node: a bundle of namespaces with containerd, kubelet and kube-proxy, that can lose its power, its network, its kubelet or its mind."""

import hashlib
import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from . import cgroups, network
from .addresses import MAX_NODES, node_address, node_name, node_namespace
from .binaries import Binaries
from .node_init import copy_linked, import_mark
from .node_settings import write_settings
from .processes import Started, end, only_child, start
from .state import State


class Node:
    """Node `number` of the box, counted from 1."""

    def __init__(self, binaries: Binaries, state: State, number: int) -> None:
        if not 1 <= number <= MAX_NODES:
            raise ValueError(f"node {number}: nodes are numbered from 1 to {MAX_NODES}")
        self.binaries, self.state, self.number, self.name = binaries, state, number, node_name(number)
        self.logs = binaries.folders.logs

    @property
    def init(self) -> Started | None:
        """The node's first process, when it lives."""
        process = self.state.processes.get(self.name)
        return process if process and process.alive() else None

    def start(self, archives: Sequence[Path], *, clock_off_s: float = 0, keep_stock: bool = False) -> None:
        """Power on: its disk (images, logs) is as it was left. Returns before it is Ready. RuntimeError when it runs already.

        A new disk starts from the stock, if an earlier box left one of these archives; with `keep_stock` this node leaves it.
        """
        if self.init:
            raise RuntimeError(f"{self.name} runs already")
        folder = write_settings(self.binaries, self.state, self.number, clock_off_s=clock_off_s)
        stock = self._stock(archives)
        if stock.exists() and not (folder / "containerd").exists():
            copy_linked(stock, folder / "containerd")
            for archive in archives:
                import_mark(folder, str(archive)).touch()
        cgroups.make(self.number)
        network.add_node(self.number)
        keys, path = self.binaries.folders.certificates, self.binaries.path
        daemons = {
            "containerd": [path("containerd"), "-c", folder / "containerd.toml"],
            "kubelet": [
                path("kubelet"), f"--config={folder}/kubelet.yaml", f"--kubeconfig={keys}/{self.name}.kubeconfig",
                f"--hostname-override={self.name}", f"--node-ip={node_address(self.number)}", "--root-dir=/var/lib/kubelet",
                "--cert-dir=/var/lib/kubelet/pki", "--v=2",
            ],
            "kube-proxy": [path("kube-proxy"), f"--config={folder}/kube-proxy.yaml", f"--hostname-override={self.name}"],
        }  # fmt: skip
        settings = {
            "name": self.name,
            "folder": str(folder),
            "path": [str(self.binaries.of("containerd")), str(self.binaries.of("runc"))],
            "ctr": str(path("ctr")),
            "archives": [str(one) for one in archives],
            "stock": str(stock) if keep_stock else None,
            "daemons": {name: [str(word) for word in command] for name, command in daemons.items()},
            "logs": {name: str(self.logs / f"{self.name}-{name}.log") for name in daemons},
        }
        (folder / "init.json").write_text(json.dumps(settings, indent=1), encoding="utf-8")
        program = Path(__file__).with_name("node_init.py")
        namespaces = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--uts", "--ipc", "--kill-child"]
        command = [
            *network.inside(node_namespace(self.number)),
            *namespaces,
            sys.executable,
            "-I",
            "-S",
            str(program),
            str(folder / "init.json"),
        ]
        outer = start(command, log=self.logs / f"{self.name}-init.log")
        first = only_child(outer)
        cgroups.join(self.number, first.pid)
        self.state.record(self.name, first)

    def _stock(self, archives: Sequence[Path]) -> Path:
        names = [self.binaries.of("containerd").name, *sorted(one.name for one in archives)]
        return self.binaries.folders.cache / "stocks" / hashlib.sha256(" ".join(names).encode()).hexdigest()[:16]

    def kill(self) -> None:
        """Power cut: the kernel kills every process of the node at once; nobody is told."""
        first = self.state.forget(self.name)
        if first and first.alive():
            cgroups.freeze(self.number, frozen=False)  # a frozen process cannot die
            end([first], patience_s=0)
        network.remove_node(self.number)
        cgroups.remove(self.number)

    def partition(self) -> None:
        """Pull the network cable: no packet in or out, processes run on."""
        network.set_cable(self.number, up=False)

    def heal(self) -> None:
        """Undo `partition` and `cut_api`."""
        network.drop_api_packets(self.number, drop=False)
        network.set_cable(self.number, up=True)

    def cut_api(self) -> None:
        """The node itself no longer reaches the API server; its pods run and talk to each other. Kubernetes takes the node for lost."""
        network.drop_api_packets(self.number, drop=True)

    def hang(self) -> None:
        """Freeze every process of the node, pods included: connections stay open, nothing answers."""
        cgroups.freeze(self.number, frozen=True)

    def unhang(self) -> None:
        """Let a hung node go on where it stood."""
        cgroups.freeze(self.number, frozen=False)

    def pause_kubelet(self, *, paused: bool) -> None:
        """Stop the kubelet alone: the node becomes NotReady while its containers run on."""
        for process in self.processes("kubelet"):
            process.send(signal.SIGSTOP if paused else signal.SIGCONT)

    def processes(self, command: str) -> list[Started]:
        """Processes of the node with that command name (first 15 letters)."""
        if self.init is None:
            return []
        space = Path(f"/proc/{self.init.pid}/ns/pid").stat().st_ino
        found = []
        for folder in Path("/proc").iterdir():
            try:
                same = folder.name.isdigit() and (folder / "ns/pid").stat().st_ino == space
                if same and (folder / "comm").read_text(encoding="utf-8").strip() == command[:15]:
                    found.append(Started.of(int(folder.name)))
            except OSError:
                continue
        return [one for one in found if one]

    def run(self, *command: str, limit_s: float = 60, check: bool = True) -> str:
        """Run a command inside the node's namespaces; its standard output. RuntimeError with its words when it fails."""
        done = subprocess.run([*self.inside(), *command], capture_output=True, text=True, timeout=limit_s, check=False)
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(command)} on {self.name} ended with {done.returncode}: {(done.stdout + done.stderr)[-2000:]}")
        return done.stdout

    def inside(self) -> list[str]:
        """Words that run what follows inside the node. RuntimeError when it is off."""
        if self.init is None:
            raise RuntimeError(f"{self.name} is off")
        return ["nsenter", "-t", str(self.init.pid), "-m", "-p", "-u", "-i", "-n", "--"]

    def ctr(self, *words: str, limit_s: float = 180) -> str:
        """containerd's `ctr` in Kubernetes' namespace."""
        return self.run(str(self.binaries.path("ctr")), "-a", "/run/containerd/containerd.sock", "-n", "k8s.io", *words, limit_s=limit_s)

    def import_image(self, archive: Path) -> None:
        """Import an image archive now."""
        self.ctr("images", "import", "--digests=false", "--local", str(archive), limit_s=600)
        import_mark(self.binaries.folders.run / self.name, str(archive)).touch()
