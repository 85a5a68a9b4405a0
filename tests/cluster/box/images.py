"""The box's own images, made once into the cache: pause, CoreDNS, the KubeRay operator, and a thin Debian that sees the host's Python.

No registry is asked. The Python image holds no Python: every container of the box has the host's interpreter, virtual environment and this repository
mounted read-only at their own paths (`mounts`), so that an image of 130 MB stands for a worker image of 7 GB, under the same name.
"""

import hashlib
import platform
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from .archives import PLAIN_PATH, Layer, write_archive
from .binaries import Binaries, MissingToolError
from .components import COREDNS, KUBERAY
from .folders import REPOSITORY, Folders

PAUSE_IMAGE = "registry.k8s.io/pause:3.10"
COREDNS_IMAGE = f"registry.k8s.io/coredns/coredns:v{COREDNS}"
KUBERAY_IMAGE = f"quay.io/kuberay/operator:v{KUBERAY}"
PYTHON_IMAGE = f"localhost/python:{sys.version_info.major}.{sys.version_info.minor}"
PACKAGES = (
    "bash", "ca-certificates", "iproute2", "libbz2-1.0", "libffi8", "libgomp1", "liblzma5", "libncursesw6", "libreadline8", "libsqlite3-0",
    "libssl3", "libuuid1", "procps", "wget", "zlib1g",
)  # fmt: skip
"""What a Python built elsewhere, Ray's probes and a person with `kubectl exec` need."""


def mounts() -> list[Path]:
    """Folders of the host that every container sees: Python, the virtual environment, the repository. Nested ones are left out."""
    wanted = {Path(sys.base_prefix).resolve(), Path(sys.prefix).absolute(), REPOSITORY}
    return sorted(path for path in wanted if not any(other != path and path.is_relative_to(other) for other in wanted))


def python_problem() -> str | None:
    """Why the host's Python cannot be shown to pods, or None."""
    if Path(sys.base_prefix).resolve() in {Path("/usr"), Path("/")}:
        return f"pods are shown the host's Python, and {sys.base_prefix} would hide their own; use one in a folder of its own (pyenv, or uv python install)"
    return None


def debian_root(folders: Folders, packages: Sequence[str] = PACKAGES) -> Path:
    """A Debian 12 root file system with further packages as a tar, made once (about a minute)."""
    key = hashlib.sha256(" ".join(packages).encode()).hexdigest()[:16]
    target = folders.images / f"debian-12-{key}.tar"
    if not target.exists():
        folders.images.mkdir(parents=True, exist_ok=True)
        partial = target.with_suffix(".partial.tar")
        command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(packages)}", "bookworm", str(partial)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
        if done.returncode:
            partial.unlink(missing_ok=True)
            raise MissingToolError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
        partial.rename(target)
    return target


def own_images(binaries: Binaries, say: Callable[[str], None]) -> list[Path]:
    """Archives of the four images; those that the cache lacks are made."""
    if platform.machine() != "x86_64":
        raise MissingToolError(f"the box's images are for x86_64; this machine is {platform.machine()}")
    folders = binaries.folders
    folders.images.mkdir(parents=True, exist_ok=True)
    made = [
        _archive_of_binary(folders, say, PAUSE_IMAGE, binaries.path("pause"), "/pause"),
        _archive_of_binary(folders, say, COREDNS_IMAGE, binaries.path("coredns"), "/coredns"),
        _archive_of_binary(folders, say, KUBERAY_IMAGE, binaries.path("kuberay-operator"), "/manager", user="65532:65532"),
    ]
    if python_problem() is None:
        made.append(_python_archive(folders, say))
    return made


def _archive_of_binary(folders: Folders, say: Callable[[str], None], name: str, binary: Path, place: str, user: str = "") -> Path:
    target = folders.images / f"{_file_name(name)}-{binary.parent.name.rpartition('-')[2]}.tar"
    if not target.exists():
        say(f"image {name}")
        write_archive(target, name, [Layer(files=((binary, place),))], entrypoint=[place], user=user)
    return target


def _python_archive(folders: Folders, say: Callable[[str], None]) -> Path:
    shown = mounts()
    key = hashlib.sha256(f"{' '.join(PACKAGES)} {shown} {sys.prefix}".encode()).hexdigest()[:16]
    target = folders.images / f"{_file_name(PYTHON_IMAGE)}-{key}.tar"
    if not target.exists():
        say(f"image {PYTHON_IMAGE}")
        # Every user may walk down to the mounted folders: Debian's /root is closed, and a Python may lie below it.
        above = sorted({str(parent) for path in shown for parent in [path, *path.parents] if parent != Path("/")})
        search = f"{Path(sys.prefix).absolute() / 'bin'}:{Path(sys.base_prefix).resolve() / 'bin'}:{PLAIN_PATH}"
        others = sorted(folders.images.glob(f"{_file_name(PYTHON_IMAGE)}-*.tar"), key=lambda file: file.stat().st_mtime)
        for old in others[:-2]:  # of checkouts in other places
            old.unlink()
        write_archive(target, PYTHON_IMAGE, [Layer(tar=debian_root(folders)), Layer(folders=tuple(above))], path=search)
    return target


def _file_name(name: str) -> str:
    return name.replace("/", "_").replace(":", "_")
