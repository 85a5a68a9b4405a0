"""What runs in the box, on disk, so that any process can look at it, break it or take it down."""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .processes import Started


@dataclass(slots=True)
class State:
    """The running box. Saved at every change, whole, by rename."""

    file: Path
    nodes: int
    fast: bool
    """Node failures are noticed in 10 s; false: Kubernetes' own defaults."""
    api_port: int
    """Loopback port of the host."""
    owner: Started | None
    """The test session that the box ends with; None: it stays up until `down`."""
    processes: dict[str, Started] = field(default_factory=dict)
    """`etcd`, `kube-apiserver`, ..., and `node1` for the first process of a node."""
    archives: list[str] = field(default_factory=list)
    """Image archives that every node has, also one that starts later."""
    tags: list[tuple[str, str]] = field(default_factory=list)
    """(image, further name of it) on every node."""

    def record(self, name: str, process: Started) -> None:
        """Add a process."""
        self.processes[name] = process
        self.save()

    def forget(self, name: str) -> Started | None:
        """Remove a process, and return it."""
        process = self.processes.pop(name, None)
        self.save()
        return process

    def save(self) -> None:
        """Write the file."""
        document: dict[str, Any] = {
            "nodes": self.nodes,
            "fast": self.fast,
            "api_port": self.api_port,
            "owner": _pair(self.owner),
            "processes": {name: _pair(process) for name, process in self.processes.items()},
            "archives": self.archives,
            "tags": self.tags,
        }
        self.file.parent.mkdir(parents=True, exist_ok=True)
        partial = self.file.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(document, indent=1), encoding="utf-8")
        partial.rename(self.file)

    @classmethod
    def load(cls, file: Path) -> "State | None":
        """From disk, or None when no box was brought up, or its file cannot be read."""
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
            processes = {name: Started(*pair) for name, pair in found["processes"].items()}
            owner = Started(*found["owner"]) if found["owner"] else None
            tags = [(image, name) for image, name in found["tags"]]
            return cls(file, found["nodes"], found["fast"], found["api_port"], owner, processes, found["archives"], tags)
        except (OSError, ValueError, KeyError, TypeError):
            return None


def _pair(process: Started | None) -> list[int] | None:
    return [process.pid, process.ticks] if process else None
