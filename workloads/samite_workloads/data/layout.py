"""A prepared corpus on disk: names, types and the digest that identifies it.

Written by `prepare`, read by `corpus`; plain files, so that any reader with numpy can follow.

    corpus.json                    `Manifest`: format, digest, vocabulary, sources, baselines, recipe
    tokenizer.json                 Hugging Face `tokenizers` file
    <source>/<split>.tokens        token ids of all documents behind each other, little-endian uint16 or uint32
    <source>/<split>.index         int64 [N+1], where each document begins in `.tokens`
    <source>/<split>.images        uint8 pixels, image after image, height x width x channels
    <source>/<split>.image_index   int64 [I, 5]: document, first byte, height, width, channels

An image is one placeholder token here. It becomes as many positions as the model's patch size asks for when a row is laid out, so one
corpus serves every patch size. Splits are `train` and `held_out`; equal documents always fall into the same one.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal, Self

from samite.errors import NotFoundError, SamiteError

FORMAT = "samite.corpus/v1"
MANIFEST_NAME = "corpus.json"
TOKENIZER_NAME = "tokenizer.json"
SPLITS = ("train", "held_out")
MODALITIES = ("text", "image_caption")
"""Names of `samite_workloads.batch.Modality`, in its order."""

Verify = Literal["auto", "full", "size"]
_HASHED_UP_TO_BYTES = 256 << 20
_AGAIN = "Prepare it again: samite data prepare --force"


class CorpusError(SamiteError):
    """A corpus or one of its inputs is not what it should be; the message names the file, and the line where there is one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SpecialTokens:
    """Ids of the tokens that no text can produce."""

    document_end: int
    padding: int
    media_begin: int
    media_content: int
    media_placeholder: int
    media_end: int


@dataclass(frozen=True, kw_only=True, slots=True)
class FileRecord:
    """One file of the corpus, relative to its folder."""

    path: str
    num_bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitRecord:
    """One split of one source. `supervised` counts labels and `unigram_nats` is their unigram baseline, both by modality name."""

    num_documents: int
    num_tokens: int
    num_images: int
    files: tuple[FileRecord, ...]
    supervised: dict[str, int] = field(default_factory=dict)
    unigram_nats: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceRecord:
    """One source: where it came from, its splits, and what was left out and why."""

    description: str
    splits: dict[str, SplitRecord]
    skipped: dict[str, int] = field(default_factory=dict)
    """Documents left out, by reason."""
    skipped_examples: tuple[str, ...] = ()
    """The first few of them as `place: reason`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """The content of corpus.json. `digest` covers every byte a training run can see, and nothing else."""

    vocab_size: int
    token_bytes: int
    special_tokens: SpecialTokens
    tokenizer: FileRecord
    sources: dict[str, SourceRecord]
    baselines: dict[str, dict[str, float]]
    """Split name -> modality name -> nats per supervised token of a unigram model fitted on the training split of all sources."""
    recipe: dict[str, Any]
    """What the corpus was made from; equal recipes need no second preparation."""
    format: str = FORMAT
    digest: str = ""

    def files(self) -> list[FileRecord]:
        """Every file besides corpus.json, sorted by path."""
        records = [self.tokenizer]
        for source in self.sources.values():
            for split in source.splits.values():
                records.extend(split.files)
        return sorted(records, key=lambda record: record.path)

    def computed_digest(self) -> str:
        """`sha256:<hex>` over the vocabulary and over path, size and hash of every file."""
        identity = {
            "format": self.format,
            "vocab_size": self.vocab_size,
            "token_bytes": self.token_bytes,
            "special_tokens": asdict(self.special_tokens),
            "files": [asdict(record) for record in self.files()],
        }
        return "sha256:" + hashlib.sha256(canonical_json(identity).encode()).hexdigest()

    def to_json(self) -> str:
        """Indented JSON for people; sources in name order."""
        return json.dumps(asdict(self), indent=1, sort_keys=True, ensure_ascii=False) + "\n"

    def write(self, folder: Path) -> None:
        """Write `folder`/corpus.json. File names that are not Unicode (lone surrogates in Python) become JSON escapes and come back."""
        (folder / MANIFEST_NAME).write_bytes(self.to_json().encode("utf-8", "backslashreplace"))

    @classmethod
    def from_json(cls, text: str, place: str) -> Self:
        """Parse corpus.json found at `place`. Raises CorpusError for another format, missing fields or a digest that does not fit."""
        try:
            document = json.loads(text)
            if document.get("format") != FORMAT:
                raise CorpusError(
                    f"{place}: wanted format {FORMAT}, found {document.get('format')!r}. "
                    "Prepare the corpus again with this version: samite data prepare"
                )
            manifest = cls(
                **{
                    **document,
                    "special_tokens": SpecialTokens(**document["special_tokens"]),
                    "tokenizer": FileRecord(**document["tokenizer"]),
                    "sources": {name: _source(value) for name, value in document["sources"].items()},
                }
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorpusError(f"{place} is not a corpus description: {type(error).__name__}: {error}") from error
        for record in manifest.files():
            if PurePosixPath(record.path).is_absolute() or ".." in PurePosixPath(record.path).parts:
                raise CorpusError(f"{place}: file {record.path!r} lies outside the corpus; refusing to read it")
        if manifest.digest != manifest.computed_digest():
            raise CorpusError(f"{place}: its digest does not fit its content; the file was edited or cut. Prepare the corpus again.")
        return manifest

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read `folder`/corpus.json. Raises NotFoundError when there is none."""
        path = folder / MANIFEST_NAME
        try:
            text = path.read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            raise NotFoundError(
                f"{path} does not exist: {folder} is not a prepared corpus. Make one: samite data prepare --out {folder}"
            ) from None
        except UnicodeDecodeError as error:
            raise CorpusError(f"{path} is not a corpus description: {error}") from error
        return cls.from_json(text, str(path))


def file_record(folder: Path, path: Path) -> FileRecord:
    """Size and sha256 of `path`, named relative to `folder`."""
    return FileRecord(path=path.relative_to(folder).as_posix(), num_bytes=path.stat().st_size, sha256=sha256_of(path))


def check_files(folder: Path, manifest: Manifest, verify: Verify = "auto") -> None:
    """Compare the size of every file with its record, and the hash too for `full`, or for `auto` up to 256 MiB.

    Raises CorpusError naming the first file that differs.
    """
    records = manifest.files()
    hashes = verify == "full" or (verify == "auto" and sum(record.num_bytes for record in records) <= _HASHED_UP_TO_BYTES)
    for record in records:
        path = folder / record.path
        try:
            size = path.stat().st_size
        except OSError as error:
            raise CorpusError(f"{path}: {error.strerror}; the corpus is incomplete. {_AGAIN}") from None
        if size != record.num_bytes:
            raise CorpusError(f"{path}: wanted {record.num_bytes} bytes, found {size}; the corpus is damaged. {_AGAIN}")
        if hashes and sha256_of(path) != record.sha256:
            raise CorpusError(f"{path}: content differs from its recorded sha256; the corpus is damaged. {_AGAIN}")


def sha256_of(path: Path) -> str:
    """Hex sha256 of a file's bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def canonical_json(value: Any) -> str:
    """One spelling for equal values: sorted keys, no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def _source(document: dict[str, Any]) -> SourceRecord:
    splits = {
        name: SplitRecord(**{**split, "files": tuple(FileRecord(**record) for record in split["files"])})
        for name, split in document["splits"].items()
    }
    return SourceRecord(**{**document, "splits": splits, "skipped_examples": tuple(document["skipped_examples"])})
