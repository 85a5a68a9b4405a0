"""Ray's head and worker nodes of one local run, each a process group of its own, remembered in `cluster.json`.

Killing a group is a power cut: raylet, agents and training ranks of a node share it. A new supervisor adopts what the file names and
sweeps the rest. The cluster is ours alone: own ports, own token, own short temporary folder, never an address from the environment.

    guard (leader, watches the supervisor)
    └─ ray start --block ── raylet, agents ── ranks
"""

import os
import secrets
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from samite.engines.local import processes
from samite.engines.local.folder import RunFolder
from samite.engines.local.processes import ProcessId
from samite.engines.local.ray_command import (
    HEAD,
    PRELOADED,
    free_ports,
    head_command,
    ray_environment,
    short_temporary_folder,
    worker_command,
)
from samite.engines.ray_jobs import RayJobs


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """One Ray node. `address` is its own loopback address, so that nodes of one machine can be told apart."""

    name: str
    address: str
    process: ProcessId


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """What `cluster.json` remembers. A cluster keeps its id for life; a new head is a new cluster (ladder level L3)."""

    cluster_id: str
    gcs_port: int
    dashboard_port: int
    temporary_folder: str
    boot_id: str
    nodes_made: int = 0
    """Worker nodes ever made in this cluster: an address is never used twice."""
    nodes: tuple[Node, ...] = field(default=())
    """The head first, then the workers. Dead ones stay until they are removed: that they were meant to live is what makes them lost."""


class RayNodes:
    """The nodes of one run. Every change is written to `cluster.json` before the next one is made."""

    def __init__(
        self,
        folder: RunFolder,
        *,
        run_uid: str,
        gpus_per_node: int = 0,
        grace_s: float = 60.0,
        extra_environment: Mapping[str, str] | None = None,
    ) -> None:
        self._folder = folder
        self._run_uid = run_uid
        self._gpus_per_node = gpus_per_node
        self._grace_s = grace_s
        self._extra_environment = dict(extra_environment or {})
        self.cluster: Cluster | None = self._load()

    # What is

    def jobs(self) -> RayJobs | None:
        """Ray's Jobs API of this cluster, or None if there is no cluster."""
        if self.cluster is None:
            return None
        return RayJobs(address=f"http://127.0.0.1:{self.cluster.dashboard_port}", token=self._token())

    def is_alive(self, name: str) -> bool:
        """True if the node's process group leader lives."""
        return any(node.name == name and processes.is_alive(node.process) for node in self.nodes())

    def nodes(self) -> tuple[Node, ...]:
        """All nodes that are meant to be alive, the head first."""
        return self.cluster.nodes if self.cluster else ()

    def node_of_group(self, group: int) -> str:
        """Name of the node whose process group this is, or an empty string."""
        return next((node.name for node in self.nodes() if node.process.pid == group), "")

    # What is to be

    def start(self, cluster_id: str, worker_names: Sequence[str]) -> None:
        """Start the named cluster, or add the workers that it lacks; returns at once. Whatever is left of another cluster is ended first."""
        if self.cluster is None or self.cluster.cluster_id != cluster_id or not self.cluster.nodes:
            self.stop()
            gcs_port, dashboard_port, client_port = free_ports(3)
            self._write_token()
            self._save(
                Cluster(
                    cluster_id=cluster_id,
                    gcs_port=gcs_port,
                    dashboard_port=dashboard_port,
                    temporary_folder=str(short_temporary_folder()),
                    boot_id=_boot_id(),
                )
            )
            self._add(HEAD, "127.0.0.1", self._head_command(client_port), wait_port=0)
        for name in worker_names:
            self.add_worker(name)

    def add_worker(self, name: str) -> None:
        """Start one more worker node, unless it exists; returns at once. It joins when the head answers."""
        cluster = self.cluster_or_fail()
        if any(node.name == name for node in cluster.nodes):
            return
        number = cluster.nodes_made + 1
        self._save(replace(cluster, nodes_made=number))
        address = f"127.0.{number // 250}.{number % 250 + 1}"
        self._add(name, address, self._worker_command(name, address), wait_port=cluster.gcs_port)

    def remove(self, name: str) -> None:
        """End one node's process group and forget it. Unknown names are no error: the node is gone either way."""
        cluster = self.cluster_or_fail()
        for node in cluster.nodes:
            if node.name == name:
                processes.kill_node(node.process, run_uid=self._run_uid, node=node.name)
        self._save(replace(cluster, nodes=tuple(node for node in cluster.nodes if node.name != name)))

    def stop(self) -> None:
        """End every node and whatever else carries this run's mark, and remove the temporary folder."""
        for node in reversed(self.nodes()):
            processes.kill_node(node.process, run_uid=self._run_uid, node=node.name)
        processes.sweep(self._run_uid)
        if self.cluster is not None:
            self._keep_ray_logs(Path(self.cluster.temporary_folder))
            shutil.rmtree(self.cluster.temporary_folder, ignore_errors=True)
            self._save(replace(self.cluster, nodes=()))

    def adopt(self) -> int:
        """After a supervisor's crash: keep the nodes the file names, sweep processes of this run that belong to none. Returns how many were swept."""
        if self.cluster is None or self.cluster.boot_id != _boot_id():
            swept = processes.sweep(self._run_uid)
            if self.cluster is not None:
                self._save(replace(self.cluster, nodes=(), boot_id=_boot_id()))
            return swept
        living = [node.name for node in self.nodes() if processes.is_alive(node.process)]
        # While nodes live, a process that does not say which node it belongs to is left alone: it may be one of theirs that is just starting.
        return processes.sweep(self._run_uid, spare_nodes=[*living, ""] if living else [])

    def cluster_or_fail(self) -> Cluster:
        """The cluster, which the caller knows to exist."""
        assert self.cluster is not None, "no cluster was started"
        return self.cluster

    # Files

    def _add(self, name: str, address: str, command: list[str], *, wait_port: int) -> None:
        guard = [sys.executable, "-m", "samite.engines.local.guard", "--folder", str(self._folder.path), "--grace", str(self._grace_s)]
        process = processes.start_group(
            [*guard, "--wait-port", str(wait_port), "--", *command],
            environment=self._environment(name),
            log=self._folder.node_logs / f"{name}.log",
            folder=self._folder.path,
        )
        cluster = self.cluster_or_fail()
        self._save(replace(cluster, nodes=(*cluster.nodes, Node(name=name, address=address, process=process))))

    def _head_command(self, client_port: int) -> list[str]:
        cluster = self.cluster_or_fail()
        return head_command(
            gcs_port=cluster.gcs_port,
            dashboard_port=cluster.dashboard_port,
            client_port=client_port,
            temporary_folder=cluster.temporary_folder,
        )

    def _worker_command(self, name: str, address: str) -> list[str]:
        cluster = self.cluster_or_fail()
        return worker_command(
            name=name, address=address, gcs_port=cluster.gcs_port, gpus=self._gpus_per_node, temporary_folder=cluster.temporary_folder
        )

    def _environment(self, name: str) -> dict[str, str]:
        return (
            ray_environment(os.environ)
            | self._extra_environment
            | {
                processes.RUN_UID_VARIABLE: self._run_uid,
                processes.NODE_VARIABLE: name,
                "RAY_AUTH_TOKEN_PATH": str(self._token_file()),
            }
            | ({} if name == HEAD else {"RAY_preload_python_modules": ",".join(PRELOADED)})
        )

    def _token_file(self) -> Path:
        return self._folder.path / "ray.token"

    def _token(self) -> str:
        return self._token_file().read_text(encoding="utf-8").strip()

    def _write_token(self) -> None:
        file = self._token_file()
        file.unlink(missing_ok=True)
        file.touch(mode=0o600)
        file.write_text(secrets.token_hex(32) + "\n", encoding="utf-8")

    def _keep_ray_logs(self, temporary: Path) -> None:
        """Ray's own logs of this cluster, kept beside ours: they are what is read after a failure."""
        for logs in temporary.glob("*/session_2*/logs"):
            target = self._folder.node_logs / f"ray-{self.cluster_or_fail().cluster_id}" / logs.parts[-3]
            with suppress(OSError, shutil.Error):
                shutil.copytree(logs, target, dirs_exist_ok=True, symlinks=True)

    def _load(self) -> Cluster | None:
        found = self._folder.read_json(self._folder.cluster_file)
        if found is None:
            return None
        nodes = tuple(Node(name=node["name"], address=node["address"], process=ProcessId(**node["process"])) for node in found.pop("nodes"))
        return Cluster(**found, nodes=nodes)

    def _save(self, cluster: Cluster) -> None:
        self.cluster = cluster
        document: dict[str, Any] = asdict(cluster)
        self._folder.write_json(self._folder.cluster_file, document)


def _boot_id() -> str:
    """Differs after a reboot, when every remembered process number is void."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
