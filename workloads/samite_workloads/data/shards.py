"""Writes one source into token and image shards, a document at a time, in memory that does not grow with the corpus.

Called by `prepare`; read back by `corpus`. Tokens are written as they come from the tokenizer, so a document of any length passes through.
"""

import hashlib
from array import array
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Self

import numpy as np

from samite_workloads.data.baseline import LabelCounts, label_document
from samite_workloads.data.documents import Document, Picture
from samite_workloads.data.layout import SPLITS, SpecialTokens, SplitRecord, file_record
from samite_workloads.data.tokenizer import encode

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SUFFIXES = ("tokens", "index", "images", "image_index")


class SplitWriter:
    """Open files and counts of one split of one source."""

    def __init__(self, folder: Path, split: str, token_type: "np.dtype[np.unsignedinteger]", vocab_size: int, files: ExitStack) -> None:
        self.folder = folder
        self.split = split
        self.token_type = token_type
        self.index = array("q", [0])
        self.image_index = array("q")
        self.labels = LabelCounts(vocab_size)
        self._pixel_bytes = 0
        self._tokens: BinaryIO = files.enter_context(self._path("tokens").open("wb"))
        self._images: BinaryIO = files.enter_context(self._path("images").open("wb"))

    def add(self, tokens: "np.ndarray", pictures: list[Picture], special: SpecialTokens) -> None:
        """Append one document: token ids [L] and its pictures in reading order."""
        self._tokens.write(tokens.astype(self.token_type).tobytes())
        for picture in pictures:
            height, width, channels = picture.pixels.shape
            self.image_index.extend((len(self.index) - 1, self._pixel_bytes, height, width, channels))
            self._images.write(np.ascontiguousarray(picture.pixels).tobytes())
            self._pixel_bytes += picture.pixels.size
        self.index.append(self.index[-1] + len(tokens))
        self.labels.add(*label_document(tokens.astype(np.int64), special))

    def finish(self, root: Path) -> SplitRecord:
        """Write the indexes and describe the files, named relative to `root`. The data files must be closed."""
        self._path("index").write_bytes(np.asarray(self.index, dtype="<i8").tobytes())
        self._path("image_index").write_bytes(np.asarray(self.image_index, dtype="<i8").tobytes())
        return SplitRecord(
            num_documents=len(self.index) - 1,
            num_tokens=self.index[-1],
            num_images=len(self.image_index) // 5,
            files=tuple(file_record(root, self._path(suffix)) for suffix in SUFFIXES),
            supervised=self.labels.supervised(),
        )

    def _path(self, suffix: str) -> Path:
        return self.folder / f"{self.split}.{suffix}"


class SourceWriter:
    """Writes both splits of one source below `root`/`name`. Use as a context manager, then call `finish`."""

    def __init__(self, root: Path, name: str, tokenizer: "Tokenizer", special: SpecialTokens, held_out_fraction: float) -> None:
        self.root = root
        self.folder = root / name
        self.tokenizer = tokenizer
        self.special = special
        self.held_out_fraction = held_out_fraction
        self.vocab_size: int = tokenizer.get_vocab_size()
        self._files = ExitStack()

    def __enter__(self) -> Self:
        self.folder.mkdir()
        token_type = np.dtype("<u2" if self.vocab_size <= 1 << 16 else "<u4")
        self.splits = {split: SplitWriter(self.folder, split, token_type, self.vocab_size, self._files) for split in SPLITS}
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    def add(self, document: Document) -> int:
        """Tokenize and append one document, ended by the document-end token. Returns its number of tokens."""
        parts: list[np.ndarray] = []
        pictures: list[Picture] = []
        content = hashlib.blake2b(digest_size=8)
        for part in document.parts:
            if isinstance(part, Picture):
                parts.append(self._media_block(part))
                pictures.append(part)
                content.update(np.ascontiguousarray(part.pixels).tobytes())
            else:
                parts.extend(np.asarray(ids, dtype=np.uint32) for ids in encode(self.tokenizer, part))
        parts.append(np.asarray([self.special.document_end], dtype=np.uint32))
        tokens = np.concatenate(parts)
        content.update(tokens.tobytes())
        held_out = int.from_bytes(content.digest(), "little") < self.held_out_fraction * 2.0**64
        self.splits["held_out" if held_out else "train"].add(tokens, pictures, self.special)
        return len(tokens)

    def finish(self) -> tuple[dict[str, SplitRecord], dict[str, LabelCounts]]:
        """Close, and describe the splits. When every document fell into the held-out split, it becomes the training split."""
        self._files.close()
        if len(self.splits["train"].index) == 1:
            self.splits = {"train": self.splits["held_out"], "held_out": self.splits["train"]}
            for suffix in ("tokens", "images"):
                empty, full = self.folder / f"train.{suffix}", self.folder / f"held_out.{suffix}"
                full.replace(empty)
                full.touch()
            for name, split in self.splits.items():
                split.split = name
        records = {name: split.finish(self.root) for name, split in self.splits.items()}
        return records, {name: split.labels for name, split in self.splits.items()}

    def _media_block(self, picture: Picture) -> "np.ndarray":
        """Prompt form of an image: begin, `image WxH`, content, one placeholder, end."""
        height, width, _ = picture.pixels.shape
        header = [token for ids in encode(self.tokenizer, f"image {width}x{height}") for token in ids]
        special = self.special
        return np.asarray(
            [special.media_begin, *header, special.media_content, special.media_placeholder, special.media_end], dtype=np.uint32
        )
