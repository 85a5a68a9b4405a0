"""Text that every machine has: sources and documentation of the Python standard library, and licence texts of installed packages.

The quickstart's `text` source. Files are taken in the order of a hash of their path until `max_bytes` is reached, so that a bounded corpus
still covers the whole library; tests and installed packages are left out. Nothing is imported from them but `pydoc_data`, which is text.
"""

import hashlib
import importlib
import os
import platform
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from samite_workloads.data.documents import Document, Skipped
from samite_workloads.data.layout import CorpusError

DEFAULT_MAX_BYTES = 8 << 20
_MAX_FILE_BYTES = 256 << 10
_SKIPPED_FOLDERS = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__", "lib2to3", "pydoc_data"})
_SUFFIXES = (".py", ".txt", ".rst")
_LICENCE_WORDS = ("licen", "copying", "notice")


class StandardLibrary:
    """Source over this interpreter's standard library."""

    def __init__(self, *, name: str = "text", max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self.name = name
        self.max_bytes = max_bytes
        self.description = f"sources, documentation and licence texts of Python {platform.python_version()}, at most {max_bytes} bytes"

    def fingerprint(self) -> dict[str, Any]:
        """Interpreter version and the names and sizes of all candidate files."""
        candidates = [(name, path.stat().st_size) for name, path in self._files()]
        listing = hashlib.sha256(repr(candidates).encode()).hexdigest()
        return {"kind": "stdlib", "python": platform.python_version(), "max_bytes": self.max_bytes, "files": listing}

    def documents(self, skipped: Skipped) -> Iterator[Document]:
        """One document for each file and each documentation topic, in path order."""
        chosen: list[tuple[str, str]] = []
        seen: set[bytes] = set()
        budget = self.max_bytes
        for name, text in self._texts(skipped):
            size = len(text.encode())
            if size > budget:
                continue
            content = hashlib.blake2b(text.encode(), digest_size=16).digest()
            if content in seen:
                continue  # packages bring the same few licences over and over
            seen.add(content)
            budget -= size
            chosen.append((name, text))
        if not chosen:
            raise CorpusError(
                f"no text found below {_library()}: this Python has no readable standard library sources. "
                "Give your own text: samite data prepare --source text=FOLDER"
            )
        for name, text in sorted(chosen):
            yield Document(parts=(text,), origin=name)

    def _texts(self, skipped: Skipped) -> Iterator[tuple[str, str]]:
        """Candidates as (name, text) in hash order."""
        topics = {f"pydoc/{topic}": text for topic, text in _documentation_topics().items()}
        files = dict(self._files())
        for name in sorted([*topics, *files], key=_hash_order):
            if name in topics:
                yield name, topics[name]
                continue
            try:
                content = files[name].read_bytes()
            except OSError as error:
                skipped.add(f"unreadable ({type(error).__name__})", str(files[name]))
                continue
            if len(content) > _MAX_FILE_BYTES:
                skipped.add(f"larger than {_MAX_FILE_BYTES} bytes", str(files[name]))
                continue
            try:
                text = content.decode("utf-8")
            except UnicodeDecodeError:
                skipped.add("not UTF-8", str(files[name]))
                continue
            if text.strip():
                yield name, text

    def _files(self) -> list[tuple[str, Path]]:
        library = _library()
        found = []
        for folder, subfolders, names in os.walk(library):
            subfolders[:] = [name for name in subfolders if name not in _SKIPPED_FOLDERS]
            paths = [Path(folder, name) for name in names if name.endswith(_SUFFIXES)]
            found += [(path.relative_to(library).as_posix(), path) for path in paths]
        for key in ("purelib", "platlib"):
            packages = Path(sysconfig.get_path(key))
            for path in [*packages.glob("*.dist-info/*"), *packages.glob("*.dist-info/licenses/**/*")]:
                if any(word in path.name.lower() for word in _LICENCE_WORDS) and path.suffix in ("", ".txt", ".md", ".rst"):
                    found.append((f"licences/{path.relative_to(packages).as_posix()}", path))
        return sorted({(name, path) for name, path in found if path.is_file()})


def _library() -> Path:
    return Path(sysconfig.get_path("stdlib"))


def _documentation_topics() -> dict[str, str]:
    """The reference chapters behind `help()`; some distributions strip them."""
    try:
        topics = importlib.import_module("pydoc_data.topics").topics
    except ImportError:
        return {}
    return {name: text for name, text in topics.items() if len(text.encode()) <= _MAX_FILE_BYTES}


def _hash_order(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()
