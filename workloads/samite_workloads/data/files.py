"""Text that a user has in files: a folder read recursively, or one file; one document for each, very long ones cut into several.

Files that are not text are left out and counted by reason. A file longer than `MAX_DOCUMENT_CHARACTERS` becomes consecutive documents, cut
at a line break where there is one, so that one endless line costs neither memory nor patience.
"""

import codecs
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from samite_workloads.data.documents import Document, Skipped
from samite_workloads.data.layout import CorpusError, sha256_of

MAX_DOCUMENT_CHARACTERS = 4 << 20
_BLOCK_BYTES = 1 << 20


class TextFiles:
    """Source over the text files below `path` (or `path` itself), in order of their relative paths. Hidden files are ignored."""

    def __init__(self, path: Path, *, name: str) -> None:
        self.name = name
        self.path = path
        self.description = f"text files of {path}"

    def fingerprint(self) -> dict[str, Any]:
        """Names and contents of all files."""
        digest = hashlib.sha256()
        for path in self._files():
            try:
                content = sha256_of(path)
            except OSError as error:
                content = type(error).__name__
            digest.update(f"{self._relative(path)}\0{content}\0".encode("utf-8", "surrogateescape"))
        return {"kind": "text_files", "files": digest.hexdigest()}

    def documents(self, skipped: Skipped) -> Iterator[Document]:
        """One document per file, or several for a long one."""
        for path in self._files():
            reason = unreadable_reason(path)
            if reason is not None:
                skipped.add(reason, str(path))
                continue
            for number, text in enumerate(_documents_of(path), start=1):
                yield Document(parts=(text,), origin=str(path) if number == 1 else f"{path} (part {number})")

    def _files(self) -> list[Path]:
        if self.path.is_file():
            return [self.path]
        if not self.path.is_dir():
            raise CorpusError(f"{self.path}: no such file or folder")
        found = []
        for folder, subfolders, names in os.walk(self.path):
            subfolders[:] = [name for name in subfolders if not name.startswith(".")]
            found += [Path(folder, name) for name in names if not name.startswith(".")]
        return sorted((path for path in found if path.is_file()), key=lambda path: path.relative_to(self.path).parts)

    def _relative(self, path: Path) -> str:
        return path.name if path == self.path else path.relative_to(self.path).as_posix()


def unreadable_reason(path: Path) -> str | None:
    """Why `path` is no text (binary, not UTF-8, empty, unreadable), or None. Reads it once, in blocks."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    empty = True
    try:
        with path.open("rb") as stream:
            while block := stream.read(_BLOCK_BYTES):
                if b"\0" in block:
                    return "binary"
                empty = not decoder.decode(block).strip() and empty
            decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return "not UTF-8"
    except OSError as error:
        return f"unreadable ({type(error).__name__})"
    return "empty" if empty else None


def _documents_of(path: Path) -> Iterator[str]:
    """The text of one file in documents of at most MAX_DOCUMENT_CHARACTERS, in memory of about that size."""
    with path.open(encoding="utf-8-sig", newline="") as stream:
        rest = ""
        while block := stream.read(MAX_DOCUMENT_CHARACTERS - len(rest)):
            rest += block
            if len(rest) < MAX_DOCUMENT_CHARACTERS:
                continue
            following = stream.read(1)
            if not following:
                break
            cut = rest.rfind("\n", MAX_DOCUMENT_CHARACTERS // 2) + 1 or len(rest)
            yield rest[:cut]
            rest = rest[cut:] + following
        if rest:
            yield rest
