"""Builds a corpus folder from sources: tokenizer, shards, baselines, manifest. `samite data prepare` runs this module.

    sources ──> texts ──> tokenizer.json
       └─────> documents ──> <source>/<split>.* ──> corpus.json (digest, baselines) ──> rename into place

The same sources and settings give the same digest; a folder that already holds them is left as it is. Nothing half-made is ever visible
under the target's name, and two concurrent preparations of one folder make it once.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from samite.errors import ConflictError, NotFoundError
from samite_workloads.data.baseline import LabelCounts, unigram_nats
from samite_workloads.data.digits import DEFAULT_PIXELS, Digits
from samite_workloads.data.documents import Skipped, Source
from samite_workloads.data.layout import (
    FORMAT,
    SPLITS,
    TOKENIZER_NAME,
    CorpusError,
    Manifest,
    SourceRecord,
    canonical_json,
    file_record,
    sha256_of,
)
from samite_workloads.data.shards import SourceWriter
from samite_workloads.data.staging import staged
from samite_workloads.data.stdlib import DEFAULT_MAX_BYTES, StandardLibrary
from samite_workloads.data.tokenizer import load_tokenizer, pieces, special_tokens, train_tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer

DEFAULT_VOCABULARY = 2048
DEFAULT_HELD_OUT = 0.03
TOKENIZER_SAMPLE_BYTES = 16 << 20
_SAMPLE_PIECE_CHARACTERS = 1 << 14


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """Where a preparation stands: `done` documents and bytes-like units of `phase`; `total` is None while unknown."""

    phase: str
    documents: int
    tokens: int = 0
    note: str = ""


ProgressSink = Callable[[Progress], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """Outcome of a preparation. `reused` is true when the folder already held exactly this corpus."""

    folder: Path
    manifest: Manifest
    reused: bool


def prepare_quickstart(
    folder: Path,
    vocab_size: int = DEFAULT_VOCABULARY,
    *,
    max_bytes: int = DEFAULT_MAX_BYTES,
    pixels: int = DEFAULT_PIXELS,
    progress: ProgressSink = lambda _: None,
) -> Prepared:
    """The quickstart corpus: sources `text` (Python standard library) and `digits` (handwritten digits with captions)."""
    sources: list[Source] = [StandardLibrary(max_bytes=max_bytes), Digits(pixels=pixels)]
    return prepare(folder, sources, vocab_size=vocab_size, progress=progress)


def prepare(
    folder: Path,
    sources: Sequence[Source],
    *,
    vocab_size: int = DEFAULT_VOCABULARY,
    tokenizer_file: Path | None = None,
    held_out_fraction: float = DEFAULT_HELD_OUT,
    force: bool = False,
    progress: ProgressSink = lambda _: None,
) -> Prepared:
    """Build `folder` from `sources`. With `tokenizer_file` that tokenizer is used instead of training one of `vocab_size` entries.

    Raises ConflictError when the folder holds something else and `force` is not set, CorpusError for inputs that cannot be used.
    """
    if "://" in str(folder) or ":/" in str(folder):
        raise CorpusError(f"{folder}: a corpus is prepared in a local folder; copy it to its URI afterwards, as it is")
    folder = folder.expanduser().resolve()
    _check_names(sources)
    if not 0.0 <= held_out_fraction < 1.0:
        raise CorpusError(f"held-out fraction: wanted 0 or more and below 1, got {held_out_fraction}")
    recipe = _recipe(sources, vocab_size, tokenizer_file, held_out_fraction)

    def existing() -> Manifest | None:
        return _existing(folder, recipe, force=force)

    if (manifest := existing()) is not None:
        return Prepared(folder=folder, manifest=manifest, reused=True)
    waiting = Progress(phase="waiting", documents=0, note="another process is preparing this folder")
    with staged(folder, lambda: existing() is not None, lambda: progress(waiting)) as staging:
        if staging is not None:
            manifest = _build(staging, sources, recipe, progress, tokenizer_file)
    if manifest is None:
        return Prepared(folder=folder, manifest=Manifest.read(folder), reused=True)
    return Prepared(folder=folder, manifest=manifest, reused=False)


def _build(root: Path, sources: Sequence[Source], recipe: dict[str, Any], progress: ProgressSink, tokenizer_file: Path | None) -> Manifest:
    tokenizer = (
        load_tokenizer(tokenizer_file)
        if tokenizer_file is not None
        else train_tokenizer(_sample(sources, progress), recipe["tokenizer"]["vocab_size"])
    )
    (root / TOKENIZER_NAME).write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
    records: dict[str, SourceRecord] = {}
    counts: dict[str, dict[str, LabelCounts]] = {}
    for source in sources:
        records[source.name], counts[source.name] = _write_source(root, source, tokenizer, recipe["held_out_fraction"], progress)
    total = {split: LabelCounts(tokenizer.get_vocab_size()) for split in SPLITS}
    for name, splits in counts.items():
        for split in SPLITS:
            total[split] += splits[split]
        records[name] = _with_baseline(records[name], splits)
    manifest = Manifest(
        vocab_size=tokenizer.get_vocab_size(),
        token_bytes=2 if tokenizer.get_vocab_size() <= 1 << 16 else 4,
        special_tokens=special_tokens(tokenizer),
        tokenizer=file_record(root, root / TOKENIZER_NAME),
        sources=records,
        baselines={split: unigram_nats(total["train"], total[split]) for split in SPLITS},
        recipe=recipe,
    )
    manifest = replace(manifest, digest=manifest.computed_digest())
    manifest.write(root)
    return manifest


def _write_source(
    root: Path, source: Source, tokenizer: "Tokenizer", held_out_fraction: float, progress: ProgressSink
) -> tuple[SourceRecord, dict[str, LabelCounts]]:
    skipped = Skipped()
    documents = tokens = 0
    with SourceWriter(root, source.name, tokenizer, special_tokens(tokenizer), held_out_fraction) as writer:
        for document in source.documents(skipped):
            tokens += writer.add(document)
            documents += 1
            progress(Progress(phase=f"tokenizing {source.name}", documents=documents, tokens=tokens))
        if documents == 0:
            raise CorpusError(f"source {source.name}: no document to read ({source.description}); {_reasons(skipped)}")
        splits, counts = writer.finish()
    record = SourceRecord(
        description=source.description,
        splits=splits,
        skipped=dict(sorted(skipped.counts.items())),
        skipped_examples=tuple(skipped.examples),
    )
    return record, counts


def _with_baseline(record: SourceRecord, counts: dict[str, LabelCounts]) -> SourceRecord:
    splits = {name: replace(split, unigram_nats=unigram_nats(counts["train"], counts[name])) for name, split in record.splits.items()}
    return replace(record, splits=splits)


def _sample(sources: Sequence[Source], progress: ProgressSink) -> Iterator[str]:
    """Text to train the tokenizer on: an equal share of the sample from each source, cut into pieces so that no document dominates memory."""
    share = TOKENIZER_SAMPLE_BYTES // len(sources)
    for source in sources:
        budget = share
        for number, document in enumerate(source.documents(Skipped()), start=1):
            progress(Progress(phase=f"reading {source.name} for the tokenizer", documents=number))
            for part in document.parts:
                if not isinstance(part, str):
                    continue
                for piece in pieces(part, _SAMPLE_PIECE_CHARACTERS):
                    yield piece
                    budget -= len(piece)
                    if budget <= 0:
                        break
            if budget <= 0:
                break
    progress(Progress(phase="training the tokenizer", documents=0, note="a few seconds"))


def _existing(folder: Path, recipe: dict[str, Any], *, force: bool) -> Manifest | None:
    """The manifest of `folder` if it already is what `recipe` makes. Raises ConflictError if it is something else, unless forced."""
    try:
        manifest = Manifest.read(folder)
    except NotFoundError:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())) and not force:
            raise ConflictError(f"{folder} exists and is not a corpus; give an empty or new folder, or --force to replace it") from None
        return None
    except CorpusError:
        if force:
            return None
        raise
    if canonical_json(manifest.recipe) == canonical_json(recipe) and _is_complete(folder, manifest):
        return manifest
    if force:
        return None
    raise ConflictError(
        f"{folder} holds another corpus ({manifest.digest[:19]}), made from other inputs or settings; "
        "give another folder, or --force to replace it"
    )


def _is_complete(folder: Path, manifest: Manifest) -> bool:
    try:
        return all((folder / record.path).stat().st_size == record.num_bytes for record in manifest.files())
    except OSError:
        return False


def _recipe(sources: Sequence[Source], vocab_size: int, tokenizer_file: Path | None, held_out_fraction: float) -> dict[str, Any]:
    import tokenizers

    tokenizer: dict[str, Any] = {"vocab_size": vocab_size, "library": tokenizers.__version__}
    if tokenizer_file is not None:
        load_tokenizer(tokenizer_file)
        tokenizer = {"file": sha256_of(tokenizer_file)}
    return {
        "format": FORMAT,
        "tokenizer": tokenizer,
        "held_out_fraction": held_out_fraction,
        "sources": {source.name: source.fingerprint() for source in sources},
    }


def _check_names(sources: Sequence[Source]) -> None:
    if not sources:
        raise CorpusError("no source given: name at least one, for example --source stdlib")
    names = [source.name for source in sources]
    for name in names:
        if not name or not all(character.isalnum() or character in "-_." for character in name) or name.startswith("."):
            raise CorpusError(f"source name {name!r}: wanted letters, digits, '-', '_' and '.'; give one as NAME=PATH")
        if names.count(name) > 1:
            raise CorpusError(f"two sources are named {name!r}; give one of them another name as NAME=PATH")


def _reasons(skipped: Skipped) -> str:
    if not skipped.counts:
        return "the source is empty"
    return "left out: " + ", ".join(f"{count} {reason}" for reason, count in sorted(skipped.counts.items()))
