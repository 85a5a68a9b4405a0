"""Opens a prepared corpus and hands out its documents; every byte is checked or its size is, before the first one is used.

Called by the loader, by evaluation and by reports. Documents are memory-mapped: opening costs the indexes, not the text.
"""

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import numpy as np

from samite.errors import NotFoundError
from samite_workloads.data.images import num_positions
from samite_workloads.data.layout import SPLITS, TOKENIZER_NAME, CorpusError, Manifest, SpecialTokens, Verify, check_files
from samite_workloads.data.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from tokenizers import Tokenizer

QUICKSTART_URI = "builtin:quickstart"


def open_corpus(uri: str | os.PathLike[str], *, verify: Verify = "auto") -> "Corpus":
    """Open the corpus at `uri`: a folder, a `file://` URI, any fsspec URI (copied once to the local cache), or `builtin:quickstart`.

    `verify="full"` hashes every file, `"size"` compares sizes, `"auto"` hashes corpora up to 256 MiB. Raises NotFoundError when nothing is
    there and CorpusError when something is damaged, naming the file.
    """
    folder = _local_folder(os.fspath(uri))
    manifest = Manifest.read(folder)
    check_files(folder, manifest, verify)
    return Corpus(folder, manifest)


class Corpus:
    """An opened corpus. `digest` identifies its content; `splits[source][split]` gives the documents."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest
        self.digest = manifest.digest
        self.vocab_size = manifest.vocab_size
        self.special: SpecialTokens = manifest.special_tokens
        self.splits = {
            name: {split: Split(folder / name, split, manifest.token_bytes, name) for split in SPLITS} for name in manifest.sources
        }

    @property
    def sources(self) -> tuple[str, ...]:
        """Source names, sorted."""
        return tuple(sorted(self.splits))

    @cached_property
    def tokenizer(self) -> "Tokenizer":
        """The corpus's tokenizer."""
        return load_tokenizer(self.folder / TOKENIZER_NAME)


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredDocument:
    """One document as stored: token ids [L] with one placeholder per image, and the images' pixels in reading order."""

    tokens_L: "NDArray[np.unsignedinteger]"
    pictures: "tuple[NDArray[np.uint8], ...]"


class Split:
    """The documents of one split of one source."""

    def __init__(self, folder: Path, split: str, token_bytes: int, source: str) -> None:
        self.source = source
        self.split = split
        prefix = folder / split
        self._index = _mapped(prefix.with_name(f"{split}.index"), np.dtype("<i8"))
        self._tokens = _mapped(prefix.with_name(f"{split}.tokens"), np.dtype("<u2" if token_bytes == 2 else "<u4"))
        self._pixels = _mapped(prefix.with_name(f"{split}.images"), np.dtype("u1"))
        self._image_index = _mapped(prefix.with_name(f"{split}.image_index"), np.dtype("<i8")).reshape(-1, 5)
        if self._index.size == 0 or self._index[-1] != self._tokens.size:
            raise CorpusError(f"{prefix}.index does not fit {prefix}.tokens; the corpus is damaged. Prepare it again.")

    def __len__(self) -> int:
        return int(self._index.size - 1)

    def lengths(self, patch_size: int) -> "tuple[NDArray[np.int64], NDArray[np.bool_]]":
        """Positions that each document takes [N], and whether it has images [N]."""
        lengths_N = np.diff(self._index)
        has_images_N = np.zeros(len(self), dtype=np.bool_)
        if self._image_index.size:
            documents_I = self._image_index[:, 0]
            positions_I = num_positions(self._image_index[:, 2], self._image_index[:, 3], patch_size)
            np.add.at(lengths_N, documents_I, positions_I - 1)
            has_images_N[documents_I] = True
        return lengths_N, has_images_N

    def tokens(self, document: int, start: int, stop: int) -> "NDArray[np.int64]":
        """Stored tokens `start` to `stop` of a document, clipped to it; int64 copy."""
        first, end = int(self._index[document]), int(self._index[document + 1])
        return self._tokens[min(first + start, end) : min(first + stop, end)].astype(np.int64)

    def document(self, document: int) -> StoredDocument:
        """A whole document with its pixels."""
        first, last = np.searchsorted(self._image_index[:, 0], [document, document + 1])
        pictures = []
        for _, offset, height, width, channels in self._image_index[first:last].tolist():
            pictures.append(self._pixels[offset : offset + height * width * channels].reshape(height, width, channels))
        return StoredDocument(tokens_L=self._tokens[self._index[document] : self._index[document + 1]], pictures=tuple(pictures))


def _mapped(path: Path, kind: "np.dtype") -> "NDArray":
    """A file as a read-only array; empty files cannot be mapped."""
    if path.stat().st_size == 0:
        return np.zeros(0, dtype=kind)
    return np.memmap(path, dtype=kind, mode="r")


def _local_folder(uri: str) -> Path:
    if uri == QUICKSTART_URI:
        from samite_workloads.data.quickstart import quickstart_folder

        return quickstart_folder()
    if uri.startswith("builtin:"):
        raise NotFoundError(f"{uri}: there is no such built-in corpus; wanted {QUICKSTART_URI}")
    scheme, separator, rest = uri.partition("://")
    if not separator:
        return Path(uri).expanduser()
    if scheme == "file":
        # Both spellings are in use: percent-encoded as the standard has it, and the plain path.
        return Path(rest) if Path(rest).exists() else Path(unquote(rest))
    from samite_workloads.data.remote import fetch

    return fetch(uri)
