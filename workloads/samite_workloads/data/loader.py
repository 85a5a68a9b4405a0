"""The data loader: for each optimizer step, this rank's micro-batches, from one global order of rows that knows nothing of ranks.

    RowPlan (global, all ranks alike) ── rows of a step ── rows of this rank ── micro-batches ── prefetch ── trainer

Step s takes the next `rows_per_step` rows; rank r of W gets the r-th of W equal, consecutive shares. Resume with `cursor` continues after
the last step that was yielded, on any number of ranks.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from samite_workloads.data.assemble import Assembler
from samite_workloads.data.cursor import DataCursor, SourceCursor
from samite_workloads.data.images import DEFAULT_PATCH_SIZE
from samite_workloads.data.layout import CorpusError
from samite_workloads.data.mixture import whole_weights
from samite_workloads.data.packing import Row, RowPlan, SourceShape
from samite_workloads.data.prefetch import Prefetcher

if TYPE_CHECKING:
    from samite_workloads.batch import PackedBatch
    from samite_workloads.data.corpus import Corpus


def build_loader(
    corpus: "Corpus",
    mixture: Any,
    context_length: int,
    *,
    rows_per_step: int,
    rank: int,
    world: int,
    seed: int,
    micro_rows: int,
    cursor: DataCursor | None = None,
    skip_windows: Sequence[tuple[int, int]] = (),
    patch_size: int = DEFAULT_PATCH_SIZE,
    split: str = "train",
) -> "Loader":
    """A loader of `rank` among `world` data-parallel ranks.

    mixture: source -> weight, or entries with `source` and `weight` (see `whole_weights`). context_length: tokens per row.
    rows_per_step: rows of one optimizer step over all ranks, divisible by `world`. micro_rows: rows of one micro-batch; the last one of a
    step is shorter when they do not divide, on every rank alike. cursor: where to go on; None starts from the beginning, in the order that
    `seed` gives (with a cursor the seed must be the cursor's). skip_windows: half-open ranges of global row indices to leave out.
    Raises CorpusError for arguments that cannot be, naming the nearest that can.
    """
    _check_shares(rows_per_step, rank, world, micro_rows)
    weights = whole_weights(mixture, corpus.sources)
    start = cursor or DataCursor(corpus=corpus.digest, split=split, seed=seed)
    _check_cursor(start, corpus, split, seed)
    shapes = {}
    for source in weights:
        lengths_N, has_images_N = corpus.splits[source][split].lengths(patch_size)
        shapes[source] = SourceShape(lengths_N=lengths_N, whole_N=has_images_N)
    plan = RowPlan(shapes, weights, context_length, start)
    share = rows_per_step // world
    steps = _Steps(
        plan=plan,
        assembler=Assembler(corpus, split, patch_size),
        rows_per_step=rows_per_step,
        own=slice(rank * share, (rank + 1) * share),
        micro_rows=micro_rows,
        skip_windows=_checked_windows(skip_windows),
    )
    return Loader(steps, start, {source: len(shape.lengths_N) for source, shape in shapes.items()})


class Loader:
    """Endless iterator over optimizer steps. Close it (or use it as a context manager) to end its thread."""

    def __init__(self, steps: "_Steps", start: DataCursor, num_documents: dict[str, int]) -> None:
        self._cursor = start
        self._first_row = start.row
        self._num_documents = num_documents
        self._prefetcher: Prefetcher[tuple[list[PackedBatch], DataCursor]] = Prefetcher(steps.next_step)

    def __iter__(self) -> "Iterator[list[PackedBatch]]":
        return self

    def __next__(self) -> "list[PackedBatch]":
        batches, cursor = self._prefetcher.get()
        self._first_row, self._cursor = self._cursor.row, cursor
        return batches

    def cursor(self) -> DataCursor:
        """State after the last yielded step: small, JSON-able with `to_json`, identical on every rank."""
        return self._cursor

    @property
    def wait_s(self) -> float:
        """Seconds the consumer has waited for data since the loader was built."""
        return self._prefetcher.wait_s

    @property
    def window(self) -> tuple[int, int]:
        """Global rows of the last yielded step, half-open, over all ranks: what a skip window must name to leave the step out."""
        return self._first_row, self._cursor.row

    @property
    def epochs(self) -> dict[str, float]:
        """How often each source of the mixture has been read, whole documents counted when they are opened."""
        opened = {source: self._cursor.sources.get(source, SourceCursor()).next_place for source in self._num_documents}
        return {source: opened[source] / documents for source, documents in self._num_documents.items()}

    @property
    def dropped(self) -> dict[str, int]:
        """Documents left out over the whole run, as `source: reason` -> count."""
        return {f"{name}: {reason}": count for name, source in self._cursor.sources.items() for reason, count in source.dropped.items()}

    def close(self) -> None:
        """End the background thread. The cursor stays readable."""
        self._prefetcher.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(kw_only=True, slots=True)
class _Steps:
    """Produces one step after the other; runs in the prefetch thread and is touched by nothing else."""

    plan: RowPlan
    assembler: Assembler
    rows_per_step: int
    own: slice
    micro_rows: int
    skip_windows: tuple[tuple[int, int], ...]

    def next_step(self) -> "tuple[list[PackedBatch], DataCursor]":
        rows = [self._next_row() for _ in range(self.rows_per_step)][self.own]
        batches = [self.assembler.batch(rows[at : at + self.micro_rows]) for at in range(0, len(rows), self.micro_rows)]
        return batches, self.plan.cursor()

    def _next_row(self) -> Row:
        while any(first <= self.plan.row < end for first, end in self.skip_windows):
            self.plan.skip_row()
        return self.plan.next_row()


def _checked_windows(windows: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    for first, end in windows:
        if not 0 <= first < end:
            raise CorpusError(f"data window {first}..{end}: wanted a half-open range of rows, first below end")
    return tuple((first, end) for first, end in windows)


def _check_shares(rows_per_step: int, rank: int, world: int, micro_rows: int) -> None:
    if world < 1 or not 0 <= rank < world:
        raise CorpusError(f"rank {rank} of {world}: wanted a rank from 0 to world - 1")
    if micro_rows < 1:
        raise CorpusError(f"{micro_rows} rows per micro-batch: wanted at least 1")
    if rows_per_step < world or rows_per_step % world:
        below, above = rows_per_step // world * world, (rows_per_step // world + 1) * world
        nearest = f"{below} or {above}" if below else f"{above}"
        raise CorpusError(
            f"{rows_per_step} rows per step cannot be shared evenly by {world} data-parallel ranks. Nearest: {nearest} rows "
            "(rows per step = batch tokens / context length)."
        )


def _check_cursor(cursor: DataCursor, corpus: "Corpus", split: str, seed: int) -> None:
    if cursor.corpus != corpus.digest:
        raise CorpusError(
            f"the data cursor belongs to corpus {cursor.corpus}, this one is {corpus.digest}: going on would lose and repeat samples. "
            "Use the corpus the run began with, or reset the data cursor in the stage's handover."
        )
    if (cursor.split, cursor.seed) != (split, seed):
        raise CorpusError(
            f"the data cursor is for split {cursor.split!r} shuffled by seed {cursor.seed}, not {split!r} and {seed}: its places mean other "
            "documents there. Keep the seed, or reset the data cursor in the stage's handover."
        )
