"""Corpora behind other URIs: copied once to this machine, checked, and opened from there.

Any scheme that fsspec knows (`s3://`, `gs://`, `memory://`, ...). The copy is named after the corpus's digest, so a corpus that was replaced
at its URI is fetched anew and an unchanged one is not. Called by `open_corpus`; ranks on one machine share the copy.
"""

from pathlib import Path
from typing import Any

from samite.errors import NotAllowedError, NotFoundError, UnreachableError
from samite.settings import Settings
from samite_workloads.data.corpus import check_files
from samite_workloads.data.layout import MANIFEST_NAME, CorpusError, Manifest
from samite_workloads.data.staging import staged


def fetch(uri: str, cache: Path | None = None) -> Path:
    """Local folder with the corpus at `uri`. Raises NotFoundError, NotAllowedError, UnreachableError or CorpusError, naming the URI."""
    filesystem, root = _filesystem(uri)
    text = _read(filesystem, f"{root}/{MANIFEST_NAME}", uri).decode("utf-8", errors="replace")
    manifest = Manifest.from_json(text, f"{uri.rstrip('/')}/{MANIFEST_NAME}")
    folder = (cache or Settings.from_environment().home / "cache" / "corpora") / manifest.digest.removeprefix("sha256:")
    if folder.exists():
        return folder
    with staged(folder, folder.exists) as staging:
        if staging is not None:
            for record in manifest.files():
                path = staging / record.path
                path.parent.mkdir(parents=True, exist_ok=True)
                _copy(filesystem, f"{root}/{record.path}", path, uri)
            check_files(staging, manifest, hashes=True)
            (staging / MANIFEST_NAME).write_text(text, encoding="utf-8")
    return folder


def _filesystem(uri: str) -> tuple[Any, str]:
    import fsspec

    try:
        filesystem, root = fsspec.core.url_to_fs(uri)
    except ImportError as error:
        raise CorpusError(f"{uri}: this scheme needs a package that is not installed: {error}") from error
    except ValueError as error:
        raise CorpusError(f"{uri}: {error}. Wanted a folder, file:// or a URI that fsspec knows") from error
    return filesystem, str(root).rstrip("/")


def _read(filesystem: Any, path: str, uri: str) -> bytes:
    try:
        return bytes(filesystem.cat_file(path))
    except FileNotFoundError:
        raise NotFoundError(f"{uri} has no {MANIFEST_NAME}: it is not a prepared corpus, or the URI is wrong") from None
    except PermissionError as error:
        raise NotAllowedError(f"{uri}: reading is not permitted: {error}") from error
    except OSError as error:
        raise UnreachableError(f"{uri}: no answer from the storage: {error}") from error


def _copy(filesystem: Any, path: str, target: Path, uri: str) -> None:
    try:
        filesystem.get_file(path, str(target))
    except FileNotFoundError:
        raise CorpusError(f"{uri}: {path} is missing; the corpus was copied there incompletely") from None
    except PermissionError as error:
        raise NotAllowedError(f"{uri}: reading {path} is not permitted: {error}") from error
    except OSError as error:
        raise UnreachableError(f"{uri}: no answer from the storage while reading {path}: {error}") from error
