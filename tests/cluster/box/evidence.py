"""Everything that tells why a cluster test failed, in one folder: what the API server knows, what pods wrote, every log of the box."""

import json
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

from . import cgroups
from .kubectl import Kubectl
from .network import inside, ours

MAX_LOG_BYTES = 20_000_000


def collect_objects(kubectl: Kubectl, folder: Path) -> None:
    """What any cluster can tell: objects, events in order, and each container's log, of this life and the one before."""
    folder.mkdir(parents=True, exist_ok=True)
    every = kubectl.within("") if kubectl.namespace else kubectl
    asked = {
        "nodes.txt": ("get", "nodes", "-o", "wide"),
        "describe-nodes.txt": ("describe", "nodes"),
        "all.txt": ("get", "all", "-A", "-o", "wide"),
        "events.txt": ("get", "events", "-A", "--sort-by=.metadata.creationTimestamp", "-o", "wide"),
        "pods.yaml": ("get", "pods", "-A", "-o", "yaml"),
        "describe-pods.txt": ("describe", "pods", "-A"),
        "leases.yaml": ("get", "leases", "-A", "-o", "yaml"),
    }
    for name, words in asked.items():
        _write(folder / name, partial(every, *words, limit_s=30, check=False))
    _write(folder / "our-kinds.yaml", lambda: _custom_objects(every))
    for pod in _pods(every):
        space, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        for suffix, flag in {"": (), ".previous": ("--previous",)}.items():
            log = ("logs", name, "--all-containers", "--prefix", "--timestamps", *flag)
            _write(folder / "pods" / f"{space}.{name}{suffix}.log", partial(every.within(space), *log, limit_s=20, check=bool(suffix)))


def collect_box(logs: Path, folder: Path) -> None:
    """What only the box can tell: the logs of its processes, the processes, links and memory of each node."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in logs.glob("*") if logs.exists() else ():
        if file.stat().st_size <= MAX_LOG_BYTES:
            shutil.copyfile(file, folder / file.name)
        else:
            with file.open("rb") as source:
                source.seek(-MAX_LOG_BYTES, 2)
                (folder / file.name).write_bytes(source.read())
    for namespace in ours():
        for name, look in {"addresses": ["ip", "-s", "addr"], "routes": ["ip", "route"], "sockets": ["ss", "-tanp"]}.items():
            _write(folder / f"{namespace}-{name}.txt", partial(_run, [*inside(namespace), *look]))
    _write(
        folder / "processes.txt",
        lambda: _run(["ps", "-o", "pid,ppid,stat,rss,etime,args", "-p", ",".join(map(str, cgroups.processes())) or "1"]),
    )


def _custom_objects(kubectl: Kubectl) -> str:
    kinds = [
        definition["spec"]["names"]["plural"] + "." + definition["spec"]["group"]
        for definition in kubectl.items("customresourcedefinitions")
    ]
    return kubectl("get", ",".join(kinds), "-A", "-o", "yaml", limit_s=30) if kinds else ""


def _pods(kubectl: Kubectl) -> list[dict[str, dict[str, str]]]:
    try:
        return list(json.loads(kubectl("get", "pods", "-A", "-o", "json", limit_s=30))["items"])
    except (RuntimeError, ValueError, subprocess.TimeoutExpired):
        return []


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    return done.stdout + done.stderr


def _write(file: Path, ask: Callable[[], str]) -> None:
    """Write an answer, or why there is none: collecting never fails."""
    try:
        text = ask()
    except (OSError, RuntimeError, ValueError, subprocess.SubprocessError) as error:
        if ".previous" in file.name:
            return
        text = f"no answer: {error}\n"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
