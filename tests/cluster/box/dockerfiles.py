"""Builds an image from a Dockerfile for real, with Debian's buildah, on a machine that has no container engine and no registry to pull from.

The image that FROM names is made here from Debian's packages: `debian:12-slim` is the root file system itself, `python:3.X-slim...` has the Python
that runs the tests below /usr/local. Layers are cached in the box's cache folder between builds.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from .binaries import MissingToolError
from .components import DOCKERFILE_NEEDS
from .folders import Folders
from .images import PACKAGES, debian_root

FROM = re.compile(r"^\s*FROM\s+(?:--\S+\s+)*(\S+)(?:\s+AS\s+(\S+))?\s*$", re.IGNORECASE | re.MULTILINE)
CERTIFICATES = Path("/etc/ssl/certs")
CERTIFICATE_ARGUMENTS = ("PIP_CERT", "SSL_CERT_FILE")
"""Build arguments of our Dockerfiles that name a file of further authorities."""
BASE_PACKAGES = ("ca-certificates",)


def build_image(
    folders: Folders,
    name: str,
    dockerfile: Path,
    context: Path,
    *,
    arguments: Mapping[str, str] | None = None,
    target: str | None = None,
    say: Callable[[str], None] = print,
) -> Path:
    """Build `name` and return its archive, ready for `Cluster.load_image`. The build's last words are in the error when it fails.

    RUN steps reach the network as the host does. Where the host trusts authorities of its own (PIP_CERT), the build sees them by mount and build
    argument, the image does not.
    """
    absent = [package for command, package in DOCKERFILE_NEEDS.items() if not shutil.which(command)]
    if absent:
        raise MissingToolError(
            f"building from a Dockerfile needs {', '.join(absent)}: apt-get install --no-install-recommends {' '.join(absent)}"
        )
    for base in bases(dockerfile.read_text(encoding="utf-8"), arguments or {}):
        _make_base(folders, base, say)
    words = ["bud", "--pull-never", "--layers", "--format", "oci", "-t", name, "-f", str(dockerfile)]
    own = os.environ.get("PIP_CERT")
    if own:
        words += ["-v", f"{CERTIFICATES}:{CERTIFICATES}:ro"]
    for key, value in ({**(dict.fromkeys(CERTIFICATE_ARGUMENTS, own) if own else {}), **(arguments or {})}).items():
        words += ["--build-arg", f"{key}={value}"]
    words += ["--target", target] if target else []
    if (ignored := dockerfile.with_name(f"{dockerfile.name}.dockerignore")).exists():
        words += ["--ignorefile", str(ignored)]
    say(f"building {name} from {dockerfile}")
    _buildah(folders, *words, str(context), limit_s=1500)
    folders.images.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folders.images) as scratch:
        partial = Path(scratch) / "image.tar"
        _buildah(folders, "push", name, f"docker-archive:{partial}:{name}", limit_s=600)
        archive = folders.images / f"built-{re.sub(r'[^a-zA-Z0-9.]', '_', name)}.tar"
        partial.rename(archive)
    return archive


def bases(dockerfile: str, arguments: Mapping[str, str]) -> list[str]:
    """Images that a Dockerfile's FROM lines want from outside, build arguments put in; stages of its own are left out."""
    values = dict(re.findall(r"^\s*ARG\s+(\w+)=\"?([^\s\"]*)\"?\s*$", dockerfile, re.MULTILINE)) | dict(arguments)
    stages: set[str] = set()
    found: list[str] = []
    for image, stage in FROM.findall(dockerfile):
        named = re.sub(r"\$\{?(\w+)\}?", lambda match: values.get(match.group(1), match.group(0)), image)
        if named not in stages and named != "scratch" and named not in found:
            found.append(named)
        stages.add(stage)
    return found


def _make_base(folders: Folders, name: str, say: Callable[[str], None]) -> None:
    """Make the image that FROM names, unless buildah has it. MissingToolError for a name that we cannot stand in for."""
    plain = name.partition("@")[0].removeprefix("docker.io/").removeprefix("library/")
    full = f"docker.io/library/{plain}"
    if _buildah(folders, "images", "--quiet", full, fail=False).strip():
        return
    family, _, tag = plain.partition(":")
    ours = f"{sys.version_info.major}.{sys.version_info.minor}"
    if family not in {"debian", "python"} or (family == "debian" and not tag.startswith(("12", "bookworm"))):
        raise MissingToolError(f"FROM {name}: no registry is asked in the box; it can make debian:12... and python:{ours}...")
    if family == "python" and not re.match(rf"{re.escape(ours)}(\D|$)", tag):
        raise MissingToolError(f"FROM {name}: the box can make python:{ours}, the version that runs the tests; pass it as a build argument")
    say(f"base image {full}, from Debian's packages")
    container = _buildah(folders, "from", "scratch").strip()
    try:
        _buildah(folders, "add", container, str(debian_root(folders, PACKAGES if family == "python" else BASE_PACKAGES)), "/")
        if family == "python":
            _add_python(folders, container)
        _buildah(folders, "config", "--cmd", "bash", container)
        _buildah(folders, "commit", container, full, limit_s=300)
    finally:
        _buildah(folders, "rm", container, fail=False)


def _add_python(folders: Folders, container: str) -> None:
    """The interpreter that runs the tests, without what is installed into it, below /usr/local as in the official images."""
    with tempfile.TemporaryDirectory(dir=folders.images) as scratch:
        top, base = Path(scratch), Path(sys.base_prefix).resolve()
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        leave_out = shutil.ignore_patterns("site-packages", "__pycache__", "test", "idlelib", "tkinter", "*.a")
        shutil.copytree(base / "lib" / version, top / "lib" / version, symlinks=True, ignore=leave_out)
        for library in (base / "lib").glob("libpython3*.so*"):
            shutil.copy2(library, top / "lib" / library.name, follow_symlinks=False)
        (top / "lib" / version / "site-packages").mkdir()
        (top / "bin").mkdir()
        shutil.copy2(base / "bin" / version, top / "bin" / version)
        for alias in ("python", "python3"):
            (top / "bin" / alias).symlink_to(version)
        _buildah(folders, "add", container, str(top), "/usr/local", limit_s=300)
    _buildah(folders, "run", container, "--", "sh", "-c", "ldconfig && python3 -m ensurepip --default-pip >/dev/null", limit_s=120)


def _buildah(folders: Folders, *words: str, limit_s: float = 120, fail: bool = True) -> str:
    root, scratch = folders.cache / "buildah", folders.cache / "buildah-run"
    command: Sequence[str] = ["buildah", "--root", str(root), "--runroot", str(scratch), "--storage-driver", "overlay", *words]
    environment = {**os.environ, "BUILDAH_ISOLATION": "chroot", "TMPDIR": str(folders.cache)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False, env=environment)
    if fail and done.returncode:
        raise RuntimeError(f"buildah {' '.join(words)} failed:\n{(done.stdout + done.stderr)[-4000:]}")
    return done.stdout
