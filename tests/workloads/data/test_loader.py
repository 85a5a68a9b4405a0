"""The loader: one global order shared out to ranks, resumed anywhere on any number of them."""

import gc
import json
import threading
import time
from itertools import islice

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from samite_workloads.batch import PackedBatch
from samite_workloads.data import Corpus, CorpusError, DataCursor, Loader, build_loader

PATCH = 4
MIXTURE = {"text": 3, "pictures": 1}


def loader(corpus: Corpus, *, rank: int = 0, world: int = 1, rows_per_step: int = 12, **other) -> Loader:
    arguments = {"mixture": MIXTURE, "context_length": 48, "seed": 3, "micro_rows": 2, "patch_size": PATCH, **other}
    return build_loader(corpus, rank=rank, world=world, rows_per_step=rows_per_step, **arguments)


def steps(corpus: Corpus, count: int, **arguments) -> tuple[list[list[PackedBatch]], DataCursor]:
    with loader(corpus, **arguments) as source:
        return [next(source) for _ in range(count)], source.cursor()


def signature(batches: list[PackedBatch]) -> list:
    """Everything a model sees, row order included, independent of how rows are grouped into micro-batches."""
    tokens = torch.cat([batch.tokens_T for batch in batches]).tolist()
    labels = torch.cat([batch.labels_T for batch in batches]).tolist()
    patches = torch.cat([batch.patches_PD for batch in batches]).sum(dim=1).tolist()
    ids = [sample for batch in batches for sample in batch.sample_ids]
    return [tokens, labels, patches, ids]


def row_numbers(batches: list[PackedBatch]) -> list[int]:
    return [row for batch in batches for first, end in batch.rows for row in range(first, end)]


@pytest.mark.parametrize("world", [2, 3, 4, 6, 12])
def test_ranks_together_see_what_one_rank_alone_sees(corpus: Corpus, world: int):
    alone, cursor = steps(corpus, 3)
    together = [steps(corpus, 3, rank=rank, world=world) for rank in range(world)]
    for step in range(3):
        joined = [batch for batches, _ in together for batch in batches[step]]
        assert signature(joined) == signature(alone[step])
        assert row_numbers(joined) == list(range(12 * step, 12 * step + 12))
    assert all(other == cursor for _, other in together)


@pytest.mark.parametrize(("micro_rows", "sizes"), [(1, [1, 1, 1, 1]), (2, [2, 2]), (3, [3, 1]), (4, [4]), (9, [4])])
def test_every_rank_gets_the_same_number_of_micro_batches(corpus: Corpus, micro_rows: int, sizes: list[int]):
    for rank in range(3):
        batches, _ = steps(corpus, 2, rank=rank, world=3, micro_rows=micro_rows)
        assert [[batch.num_tokens // 48 for batch in step] for step in batches] == [sizes, sizes]


@pytest.mark.parametrize("kill_after", [0, 1, 2, 5])
def test_a_resumed_loader_repeats_the_unbroken_one_bit_for_bit(corpus: Corpus, kill_after: int):
    unbroken, end = steps(corpus, 6)
    _, cursor = steps(corpus, kill_after)
    resumed, resumed_end = steps(corpus, 6 - kill_after, cursor=DataCursor.from_json(json.loads(json.dumps(cursor.to_json()))))
    assert [signature(step) for step in resumed] == [signature(step) for step in unbroken[kill_after:]]
    assert resumed_end == end


@settings(deadline=None, max_examples=25)
@given(
    attempts=st.lists(
        st.tuples(st.sampled_from([1, 2, 3, 4, 6]), st.integers(0, 3), st.sampled_from([40, 48, 96, 200]), st.sampled_from([12, 24])),
        min_size=1,
        max_size=5,
    )
)
def test_every_sample_is_seen_once_over_kills_world_sizes_and_stages(corpus: Corpus, attempts: list[tuple[int, int, int, int]]):
    cursor, tokens, begun, rows = None, 0, [], []
    for world, count, context_length, rows_per_step in attempts:
        shape = {"world": world, "context_length": context_length, "rows_per_step": rows_per_step, "cursor": cursor}
        ranks = [steps(corpus, count, rank=rank, **shape) for rank in range(world)]
        for batches, _ in ranks:
            for batch in (batch for step in batches for batch in step):
                tokens += int((~batch.is_padding_T).sum())
                begun += batch.sample_ids
                rows += row_numbers([batch])
        cursor = ranks[0][1]
        assert all(other == cursor for _, other in ranks)
    assert cursor is not None
    assert sorted(rows) == list(range(cursor.row))
    assert len(begun) == len(set(begun))
    assert tokens == sum(source.tokens for source in cursor.sources.values())
    unfinished = sum(lane is not None and lane[1] == 0 for source in cursor.sources.values() for lane in source.open_documents)
    dropped = sum(count for source in cursor.sources.values() for count in source.dropped.values())
    assert len(begun) == sum(source.next_place for source in cursor.sources.values()) - unfinished - dropped


def test_two_epochs_contain_every_document_twice(corpus: Corpus):
    with loader(corpus, mixture={"text": 1}, context_length=512) as source:
        begun: list[str] = []
        while source.epochs["text"] < 2.5:
            begun += [sample for batch in next(source) for sample in batch.sample_ids]
    documents = len(corpus.splits["text"]["train"])
    assert {f"text:{number}" for number in range(documents)} <= set(begun)
    assert {f"text:{number}@1" for number in range(documents)} <= set(begun)
    assert len(begun) == len(set(begun))


def test_skipped_windows_leave_their_rows_out_and_nothing_else(corpus: Corpus):
    unbroken, _ = steps(corpus, 4)
    skipping, cursor = steps(corpus, 2, skip_windows=[(3, 5), (13, 26)])
    assert row_numbers(skipping[0]) == [0, 1, 2, *range(5, 13), 26]
    assert row_numbers(skipping[1]) == list(range(27, 39))
    assert signature(skipping[1])[0] == signature([batch for step in unbroken for batch in step])[0][27 * 48 : 39 * 48]
    assert cursor.skipped_rows == 15


def test_a_step_is_left_out_by_skipping_the_window_it_named(corpus: Corpus):
    with loader(corpus) as source:
        next(source)
        before = source.cursor()
        next(source)
        window = source.window
        after = signature(next(source))
    assert window == (12, 24)
    resumed, _ = steps(corpus, 1, cursor=before, skip_windows=[window])
    assert signature(resumed[0]) == after


def test_another_seed_gives_another_order_and_the_same_samples(corpus: Corpus):
    first, _ = steps(corpus, 1)
    second, _ = steps(corpus, 1, seed=4)
    assert signature(first[0]) != signature(second[0])


def test_the_held_out_split_shares_no_document_with_training(corpus: Corpus):
    def texts(split: str) -> set[bytes]:
        documents = corpus.splits["text"][split]
        return {documents.document(number).tokens_L.tobytes() for number in range(len(documents))}

    assert texts("held_out")
    assert not texts("held_out") & texts("train")
    batches, cursor = steps(corpus, 1, split="held_out")
    assert batches[0]
    assert cursor.split == "held_out"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"rows_per_step": 10, "world": 4}, "10 rows per step cannot be shared evenly by 4 data-parallel ranks. Nearest: 8 or 12 rows"),
        ({"rows_per_step": 3, "world": 4}, "Nearest: 4 rows"),
        ({"rows_per_step": 0}, "Nearest: 1 rows"),
        ({"rank": 2, "world": 2}, "rank 2 of 2: wanted a rank from 0 to world - 1"),
        ({"micro_rows": 0}, "0 rows per micro-batch: wanted at least 1"),
        ({"mixture": {"texts": 1}}, "Did you mean 'text'?"),
        ({"skip_windows": [(5, 5)]}, "data window 5..5: wanted a half-open range"),
        ({"context_length": 8, "mixture": {"pictures": 1}}, "context length 8 holds none"),
    ],
)
def test_arguments_that_cannot_be_are_refused_before_the_first_step(corpus: Corpus, arguments: dict, words: str):
    with pytest.raises(CorpusError) as caught:
        loader(corpus, **arguments)
    assert words in str(caught.value)


def test_a_cursor_of_another_corpus_seed_or_split_is_refused(corpus: Corpus):
    other = DataCursor(corpus="sha256:other", seed=3)
    with pytest.raises(CorpusError, match="belongs to corpus sha256:other"):
        loader(corpus, cursor=other)
    with pytest.raises(CorpusError, match="shuffled by seed 9, not 'train' and 3"):
        loader(corpus, cursor=DataCursor(corpus=corpus.digest, seed=9))
    with pytest.raises(CorpusError, match="split 'held_out'"):
        loader(corpus, cursor=DataCursor(corpus=corpus.digest, seed=3, split="held_out"))


def test_dropped_images_are_counted_in_the_report(corpus: Corpus):
    with loader(corpus, context_length=64, mixture={"pictures": 1}) as source:
        while source.epochs["pictures"] < 1.5:
            next(source)
        assert source.dropped["pictures: image document longer than the context"] >= 1


def test_the_cursor_is_that_of_the_last_step_taken_and_not_of_steps_prepared_ahead(corpus: Corpus):
    with loader(corpus) as source:
        assert source.cursor().row == 0
        time.sleep(0.2)
        assert source.cursor().row == 0
        next(source)
        time.sleep(0.2)
        assert source.cursor().row == 12


def test_closing_or_dropping_a_loader_ends_its_thread(corpus: Corpus):
    def data_threads() -> int:
        return sum(thread.name == "samite-data" for thread in threading.enumerate())

    before = data_threads()
    closed = loader(corpus)
    next(closed)
    closed.close()
    assert data_threads() == before
    with pytest.raises(RuntimeError, match="closed"):
        list(islice(closed, 10))
    dropped = loader(corpus)
    next(dropped)
    del dropped
    gc.collect()
    deadline = time.monotonic() + 30
    while data_threads() > before and time.monotonic() < deadline:
        time.sleep(0.02)
    assert data_threads() == before
