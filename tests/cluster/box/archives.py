"""Writes an image archive (OCI layout in a tar) without a container engine. Used for the box's own images; others are built from Dockerfiles."""

import hashlib
import io
import json
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

PLAIN_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer: files of the host with their places, a whole tar (device nodes left out), or folders to make."""

    files: tuple[tuple[Path, str], ...] = ()
    tar: Path | None = None
    folders: tuple[str, ...] = ()


def write_archive(
    target: Path, name: str, layers: Sequence[Layer], *, entrypoint: Sequence[str] = (), user: str = "", path: str = PLAIN_PATH
) -> None:
    """Write image `name` as `target`, which appears only when whole."""
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        written = [_write_layer(layer, Path(scratch) / str(index)) for index, layer in enumerate(layers)]
        config = _json(
            {
                "architecture": "amd64",
                "os": "linux",
                "config": {"Env": [f"PATH={path}"], "User": user, "Entrypoint": list(entrypoint) or None},
                "rootfs": {"type": "layers", "diff_ids": [digest for _, digest in written]},
            }
        )
        kind = "application/vnd.oci.image"
        manifest = _json(
            {
                "schemaVersion": 2,
                "mediaType": f"{kind}.manifest.v1+json",
                "config": _descriptor(f"{kind}.config.v1+json", config),
                "layers": [
                    {"mediaType": f"{kind}.layer.v1.tar", "digest": digest, "size": file.stat().st_size} for file, digest in written
                ],
            }
        )
        described = _descriptor(f"{kind}.manifest.v1+json", manifest)
        described["annotations"] = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name.rpartition(":")[2]}
        described["platform"] = {"architecture": "amd64", "os": "linux"}
        index = _json({"schemaVersion": 2, "mediaType": f"{kind}.index.v1+json", "manifests": [described]})
        partial = target.with_suffix(".partial")
        with tarfile.open(partial, "w") as archive:
            _add_bytes(archive, "oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
            _add_bytes(archive, "index.json", index)
            for content in (manifest, config):
                _add_bytes(archive, _blob(_digest(content)), content)
            for file, digest in written:
                archive.add(file, arcname=_blob(digest))
        partial.rename(target)


class _Hashing(io.RawIOBase):
    """A file that hashes what is written to it."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.hash = file, hashlib.sha256()

    def write(self, block: Any) -> int:
        self.hash.update(block)
        return self.file.write(block)

    def writable(self) -> bool:
        return True


def _write_layer(layer: Layer, file: Path) -> tuple[Path, str]:
    with file.open("wb") as plain:
        hashing = _Hashing(plain)
        with tarfile.open(fileobj=hashing, mode="w|", format=tarfile.PAX_FORMAT) as archive:
            for folder in layer.folders:
                entry = tarfile.TarInfo(folder.strip("/"))
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(entry)
            for source, place in layer.files:
                archive.add(source, arcname=place.strip("/"), filter=_plain_owner)
            if layer.tar:
                copy_tar(layer.tar, archive, keep=lambda entry: not entry.isdev())
    return file, f"sha256:{hashing.hash.hexdigest()}"


def copy_tar(source: Path, archive: tarfile.TarFile, *, keep: Callable[[tarfile.TarInfo], bool]) -> None:
    """Copy the entries of a tar that `keep` accepts."""
    with tarfile.open(source, "r|") as original:
        for entry in original:
            if keep(entry):
                archive.addfile(entry, original.extractfile(entry) if entry.isfile() else None)


def _plain_owner(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mtime = 0
    return entry


def _json(document: Any) -> bytes:
    return json.dumps(document).encode()


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _descriptor(kind: str, content: bytes) -> dict[str, Any]:
    return {"mediaType": kind, "digest": _digest(content), "size": len(content)}


def _blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _add_bytes(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))
