"""`samite data`: make a training corpus on this machine, and look at one.

The work is done by `samite_workloads.data`, which the control plane reaches by name and only when a command runs: it needs the worker extra.
"""

import importlib
import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from samite.cli.output import Column, OutputFormat, OutputOption, hint, note, print_document, print_items

QUICKSTART_SOURCES = ("stdlib", "digits")
_REDRAW_S = 0.1
_REPORT_S = 5.0
_MANIFEST = "corpus.json"

FolderArgument = Annotated[Path, typer.Argument(metavar="FOLDER", help="A prepared corpus.", show_default=False)]

_SOURCE_COLUMNS = (
    Column(title="SOURCE", value=lambda item: str(item["name"])),
    Column(title="DOCUMENTS", value=lambda item: f"{item['documents']:,}", right=True),
    Column(title="TOKENS", value=lambda item: f"{item['tokens']:,}", right=True),
    Column(title="IMAGES", value=lambda item: f"{item['images']:,}", right=True),
    Column(title="HELD OUT", value=lambda item: f"{item['held_out']:,}", right=True),
    Column(title="LEFT OUT", value=lambda item: f"{sum(item['skipped'].values()):,}", right=True),
    Column(title="UNIGRAM NATS", value=lambda item: _pairs(item["unigram_nats"], ".3f"), wide=True),
    Column(title="WHAT", value=lambda item: str(item["description"]), wide=True),
)
_STATS_COLUMNS = (
    Column(title="SOURCE", value=lambda item: str(item["name"])),
    Column(title="DOCUMENTS", value=lambda item: f"{item['documents']:,}", right=True),
    Column(title="TOKENS", value=lambda item: f"{item['tokens']:,}", right=True),
    Column(title="MEDIAN", value=lambda item: f"{item['median_length']:,}", right=True),
    Column(title="P90", value=lambda item: f"{item['p90_length']:,}", right=True),
    Column(title="LONGEST", value=lambda item: f"{item['longest']:,}", right=True),
    Column(title="OVER CONTEXT", value=lambda item: f"{item['longer_than_context']:,}", right=True),
    Column(title="DROPPED", value=lambda item: f"{item['dropped_at_this_context']:,}", right=True),
)


def register(app: typer.Typer) -> None:
    """Add the commands to `samite`."""
    group = typer.Typer(name="data", help="Prepare and inspect training corpora.", no_args_is_help=True, rich_markup_mode=None)
    group.command()(prepare)
    group.command()(push)
    group.command()(show)
    group.command()(stats)
    app.add_typer(group)


def prepare(
    *,
    out: Annotated[Path, typer.Option("--out", help="Folder to make; it appears whole or not at all.", show_default=False)],
    source: Annotated[
        list[str] | None,
        typer.Option(
            "--source",
            help="stdlib, digits, PATH or NAME=PATH; repeat for several. A path may be a text file or folder, a .jsonl file "
            '({"text"} or {"image", "caption"}), a folder with captions.jsonl, or images beside .txt captions. Default: stdlib and digits.',
            show_default=False,
        ),
    ] = None,
    vocab_size: Annotated[int, typer.Option(help="Entries of the tokenizer that is trained on the corpus.")] = 2048,
    tokenizer: Annotated[Path | None, typer.Option(help="Use this tokenizer.json instead of training one.", show_default=False)] = None,
    max_mib: Annotated[float, typer.Option(help="Most text to take from stdlib, in MiB.")] = 8.0,
    pixels: Annotated[int, typer.Option(help="Size of the digits' images, in pixels; a multiple of 8.")] = 16,
    max_image_pixels: Annotated[int, typer.Option(min=1, help="Larger images are scaled down to this area.")] = 448 * 448,
    held_out: Annotated[float, typer.Option(help="Fraction of the documents kept for evaluation.")] = 0.03,
    force: Annotated[bool, typer.Option("--force", help="Replace a folder that holds something else.")] = False,
    output: OutputOption = OutputFormat.table,
) -> None:
    """Build a corpus: tokenizer, packed token and image shards, a digest. Works offline; the same inputs give the same digest."""
    arguments = _workload("arguments")
    sources = [
        arguments.parse_source(text, max_bytes=int(max_mib * (1 << 20)), pixels=pixels, max_image_pixels=max_image_pixels)
        for text in source or QUICKSTART_SOURCES
    ]
    started_s = time.monotonic()
    progress = _progress()
    try:
        prepared = _workload("prepare").prepare(
            out,
            sources,
            vocab_size=vocab_size,
            tokenizer_file=tokenizer,
            held_out_fraction=held_out,
            force=force,
            progress=progress,
        )
    finally:
        progress.done()
    document = json.loads(prepared.manifest.to_json())
    _print_corpus(document, output)
    for place in [place for record in document["sources"].values() for place in record["skipped_examples"]][:5]:
        hint(f"left out {place}")
    took = "was already there" if prepared.reused else f"made in {time.monotonic() - started_s:.1f} s"
    note(f"{prepared.folder} {took}: {document['digest'][:19]}, vocabulary of {document['vocab_size']}")


def push(
    folder: FolderArgument,
    uri: Annotated[
        str, typer.Argument(metavar="URI", help="s3://bucket/prefix, or another place that every node reaches.", show_default=False)
    ],
    *,
    endpoint: Annotated[str, typer.Option(help="URL of an S3-compatible storage that is not AWS.", show_default=False)] = "",
    region: Annotated[str, typer.Option(help="Region that requests are signed for.", show_default=False)] = "",
    insecure: Annotated[bool, typer.Option("--insecure", help="Allow an http:// endpoint on another machine.")] = False,
) -> None:
    """Copy a prepared corpus to storage, for runs on a cluster: data.uri is then URI. The manifest goes last, so nobody sees half a corpus."""
    from samite.checkpoint.store import StoreOptions
    from samite.cli.output import print_lines, size

    _read_manifest(folder)

    def show_progress(sent_bytes: int, total_bytes: int) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"\r\x1b[K{size(sent_bytes)} of {size(total_bytes)}" + ("\n" if sent_bytes == total_bytes else ""))
            sys.stderr.flush()

    options = StoreOptions(endpoint=endpoint, region=region, insecure=insecure)
    sent = _workload("publish").publish(folder, uri, options, progress=show_progress)
    note(f"{folder} {'is at' if sent else 'was already at'} {uri}; use it: data.uri: {uri}")
    print_lines([uri])


def show(folder: FolderArgument, output: OutputOption = OutputFormat.table) -> None:
    """Show what a corpus holds: sources, sizes, what was left out, and the unigram losses that a model has to beat."""
    document = _read_manifest(folder)
    _print_corpus(document, output)
    if output in {OutputFormat.table, OutputFormat.wide}:
        note(f"digest {document['digest']}")
        for split, baseline in document["baselines"].items():
            if baseline:
                note(f"unigram baseline, {split.replace('_', ' ')}: {_pairs(baseline, '.4f')} nats per token")
        for name, record in document["sources"].items():
            for reason, count in record["skipped"].items():
                note(f"{name}: left out {count}, {reason}")


def stats(
    folder: FolderArgument,
    context_length: Annotated[int, typer.Option(min=2, help="Tokens per row.")] = 512,
    patch_size: Annotated[int, typer.Option(min=1, help="Pixels on a side of the model's patches.")] = 14,
    output: OutputOption = OutputFormat.table,
) -> None:
    """Show document lengths, and what rows of --context-length would cut, drop and pad."""
    corpus = _workload("corpus").open_corpus(str(folder))
    figures = _workload("survey").survey(corpus, context_length=context_length, patch_size=patch_size)
    if output in {OutputFormat.json, OutputFormat.yaml}:
        print_document(figures, output)
        return
    items = [{"name": name, **values} for name, values in figures["sources"].items()]
    print_items(items, output, kind="CorpusStatistics", columns=_STATS_COLUMNS)
    rows = figures["rows"]
    note(
        f"{rows['laid_out']:,} rows of {context_length} tokens: {rows['padding_fraction']:.2%} padding, "
        f"{rows['pieces_per_row']:.1f} pieces per row"
    )


def _print_corpus(document: Mapping[str, Any], output: OutputFormat) -> None:
    if output in {OutputFormat.json, OutputFormat.yaml}:
        print_document(document, output)
        return
    items = []
    for name, record in document["sources"].items():
        train, held_out = record["splits"]["train"], record["splits"]["held_out"]
        items.append(
            {
                "name": name,
                "description": record["description"],
                "documents": train["num_documents"],
                "tokens": train["num_tokens"],
                "images": train["num_images"],
                "held_out": held_out["num_documents"],
                "skipped": record["skipped"],
                "unigram_nats": train["unigram_nats"],
            }
        )
    print_items(items, output, kind="CorpusSource", columns=_SOURCE_COLUMNS)


def _read_manifest(folder: Path) -> dict[str, Any]:
    """corpus.json of `folder`, without the worker extra."""
    from samite.errors import NotFoundError, SamiteError

    path = folder / _MANIFEST
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if not str(document["format"]).startswith("samite.corpus/"):
            raise KeyError("format")
    except (FileNotFoundError, NotADirectoryError):
        raise NotFoundError(
            f"{path} does not exist: {folder} is not a prepared corpus. Make one: samite data prepare --out {folder}"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise SamiteError(f"{path} is not a corpus description: {error}. Prepare the corpus again.") from error
    return dict(document)


def _workload(module: str) -> Any:
    """A module of samite_workloads.data. Raises UsageError saying what to install when the worker extra is missing."""
    from samite.errors import UsageError

    try:
        return importlib.import_module(f"samite_workloads.data.{module}")
    except ModuleNotFoundError as error:
        raise UsageError(
            f"this command needs the worker extra ({error.name} is not installed). Install it: pip install 'samite[worker,quickstart]'"
        ) from error


def _pairs(values: Mapping[str, float], form: str) -> str:
    return " ".join(f"{name}={value:{form}}" for name, value in values.items())


class _Progress:
    """Shows how a preparation goes, on stderr: one line redrawn on a terminal, one line now and then elsewhere."""

    def __init__(self, write: Callable[[str], object], *, live: bool) -> None:
        self._write = write
        self._live = live
        self._next_s = 0.0
        self._drawn = False

    def __call__(self, state: Any) -> None:
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        self._next_s = now_s + (_REDRAW_S if self._live else _REPORT_S)
        line = f"{state.phase}: {state.documents:,} documents" + (f", {state.tokens:,} tokens" if state.tokens else "")
        line = f"{state.phase}: {state.note}" if state.note else line
        self._write(f"\r\x1b[K{line}" if self._live else f"{line}\n")
        self._drawn = True

    def done(self) -> None:
        """Take the line away."""
        if self._live and self._drawn:
            self._write("\r\x1b[K")


def _progress() -> _Progress:
    def write(text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()

    return _Progress(write, live=sys.stderr.isatty())


def prepare_builtin(uri: str) -> Path:
    """Make the built-in corpus `uri` below SAMITE_HOME, with progress, unless it is there; returns its folder. UsageError for an unknown one."""
    from samite.errors import UsageError
    from samite.settings import Settings

    if uri != "builtin:quickstart":
        raise UsageError(f"data.uri {uri!r}: the only built-in corpus is builtin:quickstart; or give the folder of a prepared one")
    folder = Settings.from_environment().home / "data" / "quickstart"
    if (folder / _MANIFEST).is_file():
        return folder
    note("preparing the built-in corpus: this machine's Python sources and texts, and handwritten digits with captions")
    progress = _progress()
    try:
        _workload("prepare").prepare_quickstart(folder, progress=progress)
    finally:
        progress.done()
    return folder
