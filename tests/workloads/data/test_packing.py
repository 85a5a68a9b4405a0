"""The row plan: every token of every document once, whatever is cut, killed, resumed or lengthened on the way."""

import json
from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samite_workloads.data import CorpusError, DataCursor
from samite_workloads.data.packing import IMAGE_TOO_LONG, NUM_LANES, Row, RowPlan, SourceShape
from samite_workloads.data.permutation import Permutation

NAMES = ("alpha", "beta", "gamma")


def shape(*documents: int | tuple[int, bool]) -> SourceShape:
    """A source from document lengths; (length, True) stands for one with images."""
    pairs = [document if isinstance(document, tuple) else (document, False) for document in documents]
    return SourceShape(lengths_N=np.array([length for length, _ in pairs]), whole_N=np.array([whole for _, whole in pairs]))


def start(seed: int = 0) -> DataCursor:
    return DataCursor(corpus="sha256:0", seed=seed)


def through_json(cursor: DataCursor) -> DataCursor:
    return DataCursor.from_json(json.loads(json.dumps(cursor.to_json())))


@dataclass
class Ledger:
    """Follows rows and checks that each document is laid out in order, once, from its first token to its last."""

    shapes: dict[str, SourceShape]
    seed: int
    used: dict[tuple[str, int], int] = field(default_factory=dict)
    dropped: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    tokens: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    next_row: int = 0

    def enter(self, row: Row, context_length: int) -> None:
        assert row.index == self.next_row
        self.next_row += 1
        assert sum(piece.length for piece in row.pieces) + row.padding == context_length
        for piece in row.pieces:
            shape = self.shapes[piece.source]
            size = len(shape.lengths_N)
            order = Permutation(size=size, seed=self.seed, name=piece.source, epoch=piece.epoch)
            assert piece.epoch == piece.place // size
            assert piece.document == order(piece.place % size)
            length = int(shape.lengths_N[piece.document])
            assert piece.length >= 1
            assert piece.start == self.used.get((piece.source, piece.place), 0)
            self.used[piece.source, piece.place] = piece.start + piece.length
            assert piece.start + piece.length <= length
            if shape.whole_N[piece.document]:
                assert piece.length == length
            self.tokens[piece.source] += piece.length

    def settle(self, cursor: DataCursor) -> None:
        """Every document opened so far is finished, open in the cursor where the ledger says, or counted as dropped."""
        for name, source in cursor.sources.items():
            still_open = {lane[0]: lane[1] for lane in source.open_documents if lane is not None}
            missing = 0
            for place in range(source.next_place):
                size = len(self.shapes[name].lengths_N)
                document = Permutation(size=size, seed=self.seed, name=name, epoch=place // size)(place % size)
                used = self.used.get((name, place), 0)
                if place in still_open:
                    assert used == still_open[place]
                elif used == 0:
                    assert self.shapes[name].whole_N[document]
                    missing += 1
                else:
                    assert used == self.shapes[name].lengths_N[document]
            assert missing == source.dropped.get(IMAGE_TOO_LONG, 0)
            assert source.tokens == self.tokens[name]
            assert not any(place >= source.next_place for (key, place) in self.used if key == name)


@st.composite
def sources(draw: st.DrawFn, *, images: bool = True) -> dict[str, SourceShape]:
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
    document = st.tuples(st.one_of(st.just(1), st.integers(1, 12), st.integers(1, 90)), st.booleans() if images else st.just(False))
    built = {name: draw(st.lists(document, min_size=1, max_size=25)) for name in names}
    return {name: shape(*documents, 1) for name, documents in built.items()}


@st.composite
def stages(draw: st.DrawFn, names: list[str]) -> list[tuple[int, dict[str, int], list[int]]]:
    """(context length, weights, rows between kills) of each stage."""
    count = draw(st.integers(1, 4))
    contexts = draw(st.lists(st.integers(2, 70), min_size=count, max_size=count))
    weights = st.dictionaries(st.sampled_from(names), st.integers(1, 9), min_size=1)
    return [(context, draw(weights), draw(st.lists(st.integers(0, 12), min_size=1, max_size=3))) for context in contexts]


@settings(deadline=None)
@given(data=st.data(), shapes=sources(), seed=st.integers(0, 99))
def test_no_token_is_lost_or_repeated_over_kills_and_stages(data: st.DataObject, shapes: dict[str, SourceShape], seed: int):
    cursor = start(seed)
    ledger = Ledger(shapes, seed)
    for context_length, weights, runs in data.draw(stages(sorted(shapes))):
        for num_rows in runs:
            plan = RowPlan(shapes, weights, context_length, through_json(cursor))
            for _ in range(num_rows):
                ledger.enter(plan.next_row(), context_length)
            cursor = plan.cursor()
            plan.next_row()  # laid out ahead of the kill, and lost with the process
    ledger.settle(cursor)


@settings(deadline=None)
@given(shapes=sources(), kill_at=st.integers(0, 30), context_length=st.integers(2, 70))
def test_a_killed_plan_goes_on_exactly_as_an_unbroken_one(shapes: dict[str, SourceShape], kill_at: int, context_length: int):
    weights = {name: number + 1 for number, name in enumerate(sorted(shapes))}
    unbroken = RowPlan(shapes, weights, context_length, start())
    rows = [unbroken.next_row() for _ in range(40)]
    first = RowPlan(shapes, weights, context_length, start())
    for _ in range(kill_at):
        first.next_row()
    resumed = RowPlan(shapes, weights, context_length, through_json(first.cursor()))
    assert [resumed.next_row() for _ in range(40 - kill_at)] == rows[kill_at:]
    assert resumed.cursor() == unbroken.cursor()


@settings(deadline=None)
@given(shapes=sources(images=False), context_length=st.integers(2, 70), data=st.data())
def test_each_source_of_text_stays_within_a_few_rows_of_its_share(shapes: dict[str, SourceShape], context_length: int, data: st.DataObject):
    weights = {name: data.draw(st.integers(1, 9)) for name in sorted(shapes)}
    plan = RowPlan(shapes, weights, context_length, start())
    for _ in range(60):
        plan.next_row()
        laid_out = sum(plan.credit.values())
        for name, weight in weights.items():
            share = laid_out * weight / sum(weights.values())
            assert abs(plan.credit[name] - share) <= len(weights) * context_length


def test_small_images_and_text_keep_their_shares_over_a_long_run():
    shapes = {"images": shape(*[(length, True) for length in (20, 23, 25)]), "text": shape(*range(5, 900, 7))}
    plan = RowPlan(shapes, {"images": 1, "text": 4}, 256, start())
    for _ in range(1000):
        plan.next_row()
    assert abs(plan.credit["images"] - 256 * 1000 / 5) <= 256
    assert plan.padding_tokens == 0


def test_text_fills_rows_without_padding():
    plan = RowPlan({"text": shape(1, 7, 100, 33)}, {"text": 1}, 16, start())
    assert all(plan.next_row().padding == 0 for _ in range(200))


def test_an_image_that_would_straddle_the_end_of_a_row_moves_whole_to_the_next():
    plan = RowPlan({"images": shape((6, True), (6, True))}, {"images": 1}, 10, start())
    for _ in range(10):
        row = plan.next_row()
        assert [piece.length for piece in row.pieces] == [6]
        assert row.padding == 4


def test_text_fills_what_a_waiting_image_leaves():
    plan = RowPlan({"images": shape((6, True)), "text": shape(50)}, {"images": 1, "text": 1}, 10, start())
    rows = [plan.next_row() for _ in range(20)]
    assert all(row.padding == 0 for row in rows)
    assert any(piece.source == "images" for piece in rows[0].pieces + rows[1].pieces)


def test_an_image_longer_than_the_context_is_dropped_whole_and_counted():
    plan = RowPlan({"images": shape((99, True), (5, True))}, {"images": 1}, 10, start())
    pieces = [piece for _ in range(20) for piece in plan.next_row().pieces]
    assert {piece.length for piece in pieces} == {5}
    dropped = plan.cursor().sources["images"].dropped[IMAGE_TOO_LONG]
    assert abs(dropped - len(pieces)) <= NUM_LANES


def test_an_image_dropped_in_a_short_stage_is_used_in_a_longer_one():
    shapes = {"images": shape((99, True), (5, True))}
    short = RowPlan(shapes, {"images": 1}, 10, start())
    for _ in range(5):
        short.next_row()
    longer = RowPlan(shapes, {"images": 1}, 128, short.cursor())
    assert any(piece.length == 99 for _ in range(5) for piece in longer.next_row().pieces)


def test_a_source_of_images_that_all_exceed_the_context_is_refused_at_once():
    with pytest.raises(CorpusError, match="source images: all 2 documents have images and the shortest takes 50 tokens"):
        RowPlan({"images": shape((50, True), (60, True))}, {"images": 1}, 10, start())


def test_an_empty_split_is_refused_at_once():
    with pytest.raises(CorpusError, match="source text: this split of the corpus has no documents"):
        RowPlan({"text": SourceShape(lengths_N=np.zeros(0, int), whole_N=np.zeros(0, bool))}, {"text": 1}, 10, start())


def test_a_context_of_one_token_is_refused():
    with pytest.raises(CorpusError, match="context length 1: wanted at least 2"):
        RowPlan({"text": shape(5)}, {"text": 1}, 1, start())


def test_a_long_document_shares_its_rows_with_others():
    plan = RowPlan({"text": shape(*[1000] * 40)}, {"text": 1}, 10, start())
    documents = [plan.next_row().pieces[0].document for _ in range(NUM_LANES)]
    assert len(set(documents)) == NUM_LANES


def test_a_cut_document_goes_on_in_a_longer_stage_where_it_stopped():
    shapes = {"text": shape(100)}
    plan = RowPlan(shapes, {"text": 1}, 30, start())
    first = plan.next_row().pieces[0]
    longer = RowPlan(shapes, {"text": 1}, 500, plan.cursor())
    same = [piece for _ in range(10) for piece in longer.next_row().pieces if piece.place == first.place]
    assert [(piece.start, piece.length) for piece in same] == [(30, 70)]


def test_a_source_left_out_of_a_stage_waits_where_it_stopped():
    shapes = {"a": shape(*range(1, 30)), "b": shape(*range(1, 30))}
    both = RowPlan(shapes, {"a": 1, "b": 1}, 16, start())
    for _ in range(5):
        both.next_row()
    only_a = RowPlan(shapes, {"a": 1}, 16, both.cursor())
    only_a.next_row()
    assert only_a.cursor().sources["b"] == both.cursor().sources["b"]


def test_a_new_mixture_does_not_pay_debts_of_the_old_one():
    shapes = {"a": shape(4), "b": shape(4)}
    old = RowPlan(shapes, {"a": 9, "b": 1}, 16, start())
    for _ in range(100):
        old.next_row()
    new = RowPlan(shapes, {"a": 1, "b": 1}, 16, old.cursor())
    pieces = [piece.source for _ in range(10) for piece in new.next_row().pieces]
    assert pieces.count("a") == pieces.count("b")


@pytest.mark.parametrize("document", [{}, {"version": 2}, {"version": 1}, {"version": 1, "sources": {"a": 3}}])
def test_a_cursor_that_is_none_is_refused(document: dict):
    with pytest.raises(ValueError, match="data cursor"):
        DataCursor.from_json(document)


def test_a_cursor_stays_small():
    shapes = {name: shape(*[10_000] * 50) for name in NAMES}
    plan = RowPlan(shapes, dict.fromkeys(NAMES, 1), 64, start())
    for _ in range(500):
        plan.next_row()
    assert len(json.dumps(plan.cursor().to_json())) < 2000
