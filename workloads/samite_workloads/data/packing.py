"""The global row plan: which pieces of which documents fill row 0, 1, 2, ... of a run. Pure integers; no tokens are touched.

    source order (permutation per epoch) -> lanes of open documents -> piece -> row of `context_length` tokens

A text document is cut at the end of a row and goes on in a later one; a document with images is kept whole: it waits for a row that it
fits, or is dropped with a counted reason when no row of this stage could hold it. Each source keeps `NUM_LANES` documents open and takes
turns between them, so that a long document does not fill every row of a step. What remains of a row that nothing fits becomes padding.

The plan does not know ranks. Every rank computes all of it and materialises its own rows (`assemble`); the state between two rows is the
`DataCursor`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from samite_workloads.data.cursor import DataCursor, SourceCursor
from samite_workloads.data.layout import CorpusError
from samite_workloads.data.mixture import owed_most_first
from samite_workloads.data.permutation import Permutation

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

NUM_LANES = 16
IMAGE_TOO_LONG = "image document longer than the context"


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """`length` tokens from `start` of one document, laid into a row. `place` is the document's place in its source's reading order."""

    source: str
    document: int
    place: int
    epoch: int
    start: int
    length: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One row: pieces in order, then `padding` tokens. `index` counts rows over the whole run."""

    index: int
    pieces: tuple[Piece, ...]
    padding: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceShape:
    """What the plan needs of a source: tokens of each document [N], and whether it must stay whole [N]."""

    lengths_N: "NDArray[np.int64]"
    whole_N: "NDArray[np.bool_]"


class RowPlan:
    """Lays out rows one after the other, from a cursor. `weights` are the whole-number mixture weights."""

    def __init__(self, shapes: Mapping[str, SourceShape], weights: Mapping[str, int], context_length: int, cursor: DataCursor) -> None:
        if context_length < 2:
            raise CorpusError(f"context length {context_length}: wanted at least 2 tokens, one to read and one to predict")
        self.context_length = context_length
        self.weights = dict(weights)
        self._start = cursor
        self.row = cursor.row
        self.padding_tokens = cursor.padding_tokens
        self.skipped_rows = cursor.skipped_rows
        # Credit belongs to one mixture: another one starts even, the same one goes on where it was.
        same = cursor.weights == self.weights
        self.credit = {source: cursor.credit.get(source, 0) if same else 0 for source in self.weights}
        self._readers = {
            source: _Reader(source, shapes[source], cursor.seed, cursor.sources.get(source, SourceCursor()), context_length)
            for source in self.weights
        }

    def next_row(self) -> Row:
        """The next row. Deterministic: equal cursors give equal rows for ever."""
        room = self.context_length
        pieces: list[Piece] = []
        waiting: set[str] = set()
        while room and len(waiting) < len(self.weights):
            for source in owed_most_first(self.weights, self.credit):
                if source in waiting:
                    continue
                piece = self._readers[source].take(room)
                if piece is None:
                    waiting.add(source)
                    continue
                pieces.append(piece)
                room -= piece.length
                self.credit[source] += piece.length
                break
        row = Row(index=self.row, pieces=tuple(pieces), padding=room)
        self.row += 1
        self.padding_tokens += room
        return row

    def skip_row(self) -> Row:
        """Lay out the next row and count it as left out."""
        self.skipped_rows += 1
        return self.next_row()

    def cursor(self) -> DataCursor:
        """State before the next row. Sources outside the mixture keep the state they came with."""
        sources = {**self._start.sources, **{source: reader.cursor() for source, reader in self._readers.items()}}
        return DataCursor(
            corpus=self._start.corpus,
            split=self._start.split,
            seed=self._start.seed,
            row=self.row,
            padding_tokens=self.padding_tokens,
            skipped_rows=self.skipped_rows,
            weights=self.weights,
            credit=dict(self.credit),
            sources=dict(sorted(sources.items())),
        )


@dataclass(slots=True)
class _Open:
    place: int
    document: int
    used: int = 0


@dataclass(slots=True)
class _Order:
    epoch: int = -1
    permutation: Permutation | None = field(default=None)


class _Reader:
    """One source in reading order, with its open documents."""

    def __init__(self, name: str, shape: SourceShape, seed: int, cursor: SourceCursor, context_length: int) -> None:
        self.name = name
        self.shape = shape
        self.seed = seed
        self.context_length = context_length
        self.num_documents = len(shape.lengths_N)
        self._order = _Order()
        self._refuse_if_nothing_fits()
        self.next_place = cursor.next_place
        self.tokens = cursor.tokens
        self.dropped = dict(cursor.dropped)
        lanes = [None if lane is None else _Open(lane[0], self._document(lane[0]), lane[1]) for lane in cursor.open_documents]
        self.lanes: list[_Open | None] = lanes + [None] * (NUM_LANES - len(lanes))
        self.lane = cursor.lane

    def take(self, room: int) -> Piece | None:
        """The next piece of at most `room` tokens; None when the document whose turn it is must stay whole and does not fit."""
        opened = self._opened()
        remaining = int(self.shape.lengths_N[opened.document]) - opened.used
        if self.shape.whole_N[opened.document] and remaining > room:
            return None
        length = min(remaining, room)
        piece = Piece(
            source=self.name,
            document=opened.document,
            place=opened.place,
            epoch=opened.place // self.num_documents,
            start=opened.used,
            length=length,
        )
        opened.used += length
        if length == remaining:
            self.lanes[self.lane] = None
        self.lane = (self.lane + 1) % len(self.lanes)
        self.tokens += length
        return piece

    def cursor(self) -> SourceCursor:
        """State before the next piece."""
        return SourceCursor(
            next_place=self.next_place,
            open_documents=tuple(None if lane is None else (lane.place, lane.used) for lane in self.lanes),
            lane=self.lane,
            tokens=self.tokens,
            dropped=dict(self.dropped),
        )

    def _opened(self) -> _Open:
        """The document of the lane whose turn it is; opens the next one, past those that no row of this stage can hold."""
        while True:
            opened = self.lanes[self.lane]
            if opened is None:
                opened = _Open(self.next_place, self._document(self.next_place))
                self.next_place += 1
                self.lanes[self.lane] = opened
            if not (self.shape.whole_N[opened.document] and self.shape.lengths_N[opened.document] > self.context_length):
                return opened
            self.dropped[IMAGE_TOO_LONG] = self.dropped.get(IMAGE_TOO_LONG, 0) + 1
            self.lanes[self.lane] = None

    def _document(self, place: int) -> int:
        epoch, index = divmod(place, self.num_documents)
        if self._order.permutation is None or self._order.epoch != epoch:
            permutation = Permutation(size=self.num_documents, seed=self.seed, name=self.name, epoch=epoch)
            self._order = _Order(epoch, permutation)
        assert self._order.permutation is not None
        return self._order.permutation(index)

    def _refuse_if_nothing_fits(self) -> None:
        if self.num_documents == 0:
            raise CorpusError(f"source {self.name}: this split of the corpus has no documents")
        fits_N = ~self.shape.whole_N | (self.shape.lengths_N <= self.context_length)
        if not fits_N.any():
            raise CorpusError(
                f"source {self.name}: all {self.num_documents} documents have images and the shortest takes "
                f"{int(self.shape.lengths_N.min())} tokens; context length {self.context_length} holds none. "
                "Use a longer context or leave the source out of this stage."
            )
