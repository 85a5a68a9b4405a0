"""The first process of a node: started by node.py in mount, pid, uts, ipc and network namespaces of its own. Its death is the node's power cut.

It lays out the node's file system, imports images, keeps containerd, kubelet and kube-proxy running, and reaps orphans. Imports only the standard
library, because it runs isolated. Usage: node_init.py SETTINGS.json (written by node.py)
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

KERNEL_SETTINGS = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1000000,
    "kernel/keys/root_maxbytes": 25000000,
}
"""What kubelet insists on, machine-wide. It is shown private files with these values; the machine keeps its own."""
KEPT_STOCKS = 3
"""Checkouts in other places have images of their own."""
SOCKET = "/run/containerd/containerd.sock"


def mount(*words: str) -> None:
    """Run mount(8)."""
    subprocess.run(["mount", *words], check=True, timeout=20)


def lay_out(folder: Path) -> None:
    """Mounts of this node's own over the machine's folders, in this mount namespace alone."""
    mount("--make-rprivate", "/")
    mount("--make-rshared", "/")  # kubelet wants to pass mounts on to containers
    mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
    for own, place in {
        "kubelet": "/var/lib/kubelet",
        "containerd": "/var/lib/containerd",
        "pod-logs": "/var/log/pods",
        "container-logs": "/var/log/containers",
        "cni": "/etc/cni/net.d",
    }.items():
        (folder / own).mkdir(exist_ok=True)
        Path(place).mkdir(parents=True, exist_ok=True)
        mount("--bind", str(folder / own), place)
    mount("--make-rshared", "/var/lib/kubelet")
    for name, value in KERNEL_SETTINGS.items():
        file = Path("/run") / name.replace("/", "_")
        file.write_text(f"{value}\n", encoding="ascii")
        mount("--bind", str(file), f"/proc/sys/{name}")


def import_mark(folder: Path, archive: str) -> Path:
    """The file that says that a node has an archive."""
    return folder / f"imported-{Path(archive).name}"


def import_images(ctr: str, archives: list[str], folder: Path) -> None:
    """Import each archive that this node does not have yet."""
    for archive in archives:
        mark = import_mark(folder, archive)
        if not mark.exists():
            words = [ctr, "-a", SOCKET, "-n", "k8s.io", "images", "import", "--digests=false", "--local", archive]
            subprocess.run(words, check=True, timeout=180, stdout=subprocess.DEVNULL)
            mark.touch()


def stock_up(root: Path, stock: Path) -> None:
    """Keep a copy of containerd's folder, with the images unpacked, for the nodes of later boxes. containerd must not run.

    Files are linked, not copied: image content and unpacked layers never change. The databases do change, so each node gets its own.
    """
    partial = stock.with_name(f"{stock.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    copy_linked(root, partial)
    partial.rename(stock)
    os.utime(stock)
    for old in sorted(stock.parent.iterdir(), key=lambda folder: folder.stat().st_mtime)[:-KEPT_STOCKS]:
        shutil.rmtree(old)


def copy_linked(source: Path, target: Path) -> None:
    """Copy a containerd folder so that only its databases take room."""
    target.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cp", "-a", "--link", str(source), str(target)], check=True, timeout=60)
    for database in target.rglob("*.db"):
        original = source / database.relative_to(target)
        if "snapshots" not in database.parts:
            database.unlink()
            shutil.copy2(original, database)


def start_containerd(settings: dict[str, Any]) -> int:
    """Start containerd and wait until it answers; its pid."""
    pid = keep(settings["daemons"]["containerd"], settings["logs"]["containerd"])
    asking = [settings["ctr"], "-a", SOCKET, "version"]
    deadline_s = time.monotonic() + 60
    while subprocess.run(asking, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=30, check=False).returncode:
        if time.monotonic() > deadline_s:
            sys.exit("containerd did not answer within 60 s")
        time.sleep(0.1)
    return pid


def keep(command: list[str], log: str) -> int:
    """Start one daemon; its pid."""
    with Path(log).open("ab") as out:
        # Popen is kept by nobody on purpose: main() reaps every child of this first process.
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)
    child.returncode = 0
    return child.pid


def main(settings_file: str) -> None:
    """Bring the node up and watch over it for ever."""
    settings = json.loads(Path(settings_file).read_text(encoding="utf-8"))
    folder = Path(settings["folder"])
    socket.sethostname(settings["name"])
    lay_out(folder)
    os.environ["PATH"] = ":".join([*settings["path"], os.environ.get("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")])
    os.environ.pop("SAMITE_BOX", None)  # what the node starts dies with it
    daemons: dict[str, list[str]] = settings["daemons"]
    containerd, stock = start_containerd(settings), settings["stock"]
    import_images(settings["ctr"], settings["archives"], folder)
    if stock and not Path(stock).exists():
        os.kill(containerd, signal.SIGTERM)
        os.waitpid(containerd, 0)
        stock_up(folder / "containerd", Path(stock))
        containerd = start_containerd(settings)
    pids = {containerd: "containerd"}
    for name in ("kubelet", "kube-proxy"):
        pids[keep(daemons[name], settings["logs"][name])] = name
    while True:
        pid, status = os.wait()
        if pid in pids:
            name = pids.pop(pid)
            with Path(settings["logs"][name]).open("a", encoding="utf-8") as out:
                out.write(f"{time.strftime('%T')} {name} ended with status {status}; started again\n")
            time.sleep(1)
            pids[keep(daemons[name], settings["logs"][name])] = name


if __name__ == "__main__":
    main(sys.argv[1])
