"""Our cgroups, on machines with one hierarchy per controller (version 1) and with the unified one (version 2).

Pods live in /samite-box/nodeN of every hierarchy, outside the cgroup of whoever runs the tests: they must be removed by hand.
"""

import contextlib
import os
import time
from pathlib import Path

from .addresses import CLUSTER, node_name

ROOT = Path("/sys/fs/cgroup")
CONTROLLERS = ("cpu", "cpuset", "memory", "pids", "io", "hugetlb")


def unified() -> bool:
    """Whether the machine has the unified hierarchy only."""
    return (ROOT / "cgroup.controllers").exists()


def hierarchies() -> list[Path]:
    """Roots of all hierarchies that hold, or may hold, cgroups of ours."""
    return (
        [ROOT]
        if unified()
        else sorted(path for path in ROOT.iterdir() if path.is_dir() and not path.is_symlink() and (path / "cgroup.procs").exists())
    )


def make(number: int) -> None:
    """The node's cgroup in every hierarchy, ready for a kubelet."""
    name = node_name(number)
    if unified():
        _delegate(ROOT)
        for folder in (ROOT / CLUSTER, ROOT / CLUSTER / name):
            folder.mkdir(exist_ok=True)
            _delegate(folder)
        (ROOT / CLUSTER / name / "daemons").mkdir(exist_ok=True)
        return
    for root in hierarchies():
        if root.name == "unified":
            continue  # runc makes its own there
        (root / CLUSTER / name).mkdir(parents=True, exist_ok=True)
        if root.name == "cpuset":
            for folder in (root / CLUSTER, root / CLUSTER / name):
                for file in ("cpuset.cpus", "cpuset.mems"):
                    (folder / file).write_text((root / file).read_text(encoding="ascii"), encoding="ascii")


def join(number: int, pid: int) -> None:
    """Put a node's first process where freezing the node reaches it."""
    folder = ROOT / CLUSTER / node_name(number) / "daemons" if unified() else ROOT / "freezer" / CLUSTER / node_name(number)
    (folder / "cgroup.procs").write_text(str(pid), encoding="ascii")


def freeze(number: int, *, frozen: bool) -> None:
    """Stop every process of the node where it stands, or let all go on. TimeoutError when the kernel does not do it within 10 s."""
    name = node_name(number)
    if unified():
        (ROOT / CLUSTER / name / "cgroup.freeze").write_text("1" if frozen else "0", encoding="ascii")
        return
    file = ROOT / "freezer" / CLUSTER / name / "freezer.state"
    if not file.exists():
        return
    wanted = "FROZEN" if frozen else "THAWED"
    deadline_s = time.monotonic() + 10
    while file.read_text(encoding="ascii").strip() != wanted:
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{file} does not become {wanted}")
        file.write_text(wanted, encoding="ascii")
        time.sleep(0.02)


def remains() -> list[Path]:
    """Cgroups of ours that exist."""
    return [root / CLUSTER for root in hierarchies() if (root / CLUSTER).exists()]


def remove(number: int | None = None) -> None:
    """Remove a node's cgroups, or all of ours. A cgroup whose processes are still dying is tried again for 5 s, then left."""
    deadline_s = time.monotonic() + 5
    for root in hierarchies():
        top = root / CLUSTER if number is None else root / CLUSTER / node_name(number)
        while top.exists():
            for folder, _, _ in os.walk(top, topdown=False):
                with contextlib.suppress(OSError):
                    Path(folder).rmdir()
            if not top.exists() or time.monotonic() > deadline_s:
                break
            time.sleep(0.05)


def processes(number: int | None = None) -> list[int]:
    """Pids in a node's cgroups, or in all of ours."""
    found: set[int] = set()
    for root in hierarchies():
        top = root / CLUSTER if number is None else root / CLUSTER / node_name(number)
        for folder, _, _ in os.walk(top):
            with contextlib.suppress(OSError):
                found |= {int(pid) for pid in (Path(folder) / "cgroup.procs").read_text(encoding="ascii").split()}
    return sorted(found)


def _delegate(folder: Path) -> None:
    offered = (folder / "cgroup.controllers").read_text(encoding="ascii").split()
    with contextlib.suppress(OSError):
        (folder / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in CONTROLLERS if name in offered), encoding="ascii")
