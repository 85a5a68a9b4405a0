"""Labels of real batches against a brute-force oracle that knows only the stored documents."""

import itertools

import numpy as np
import pytest

from samite_workloads.batch import IGNORED_LABEL, Modality
from samite_workloads.data import Corpus
from samite_workloads.data.assemble import Assembler
from samite_workloads.data.cursor import DataCursor
from samite_workloads.data.images import num_positions
from samite_workloads.data.packing import RowPlan, SourceShape

PATCH = 4


def oracle(corpus: Corpus, source: str, document: int) -> list[tuple[int, int, int]]:
    """(token, label, modality) of every position of a document, one position at a time."""
    special = corpus.special
    stored = corpus.splits[source]["train"].document(document)
    pixels = list(stored.pictures)
    tokens: list[int] = []
    for token in stored.tokens_L.tolist():
        if token == special.media_placeholder:
            picture = pixels.pop(0)
            tokens += [token] * num_positions(picture.shape[0], picture.shape[1], PATCH)
        else:
            tokens.append(token)
    positions = []
    inside_media, after_image = False, False
    for at, token in enumerate(tokens):
        inside_media = inside_media or token == special.media_begin
        following = tokens[at + 1] if at + 1 < len(tokens) else None
        predicts = following is not None and token != special.media_placeholder and following != special.media_begin
        if inside_media and token != special.media_end:
            predicts = False
        if token == special.media_end:
            inside_media, after_image = False, True
        positions.append((token, following if predicts else IGNORED_LABEL, Modality.IMAGE_CAPTION if after_image else Modality.TEXT))
    return positions


def laid_out(corpus: Corpus, context_length: int, num_rows: int, micro_rows: int):
    shapes = {}
    for source in corpus.sources:
        lengths_N, has_images_N = corpus.splits[source]["train"].lengths(PATCH)
        shapes[source] = SourceShape(lengths_N=lengths_N, whole_N=has_images_N)
    plan = RowPlan(shapes, dict.fromkeys(corpus.sources, 1), context_length, DataCursor(corpus=corpus.digest, seed=5))
    assembler = Assembler(corpus, "train", PATCH)
    rows = [plan.next_row() for _ in range(num_rows)]
    return [(rows[at : at + micro_rows], assembler.batch(rows[at : at + micro_rows])) for at in range(0, num_rows, micro_rows)]


@pytest.mark.parametrize(("context_length", "micro_rows"), [(37, 3), (40, 1), (64, 2), (512, 1), (4096, 1)])
def test_every_position_of_every_batch_agrees_with_the_document_it_came_from(corpus: Corpus, context_length: int, micro_rows: int):
    cut = 0
    for rows, batch in laid_out(corpus, context_length, 24, micro_rows):
        expected: list[tuple[int, int, int]] = []
        borders = [0]
        for row in rows:
            for piece in row.pieces:
                document = oracle(corpus, piece.source, piece.document)
                cut += len(document) != piece.length
                expected += document[piece.start : piece.start + piece.length]
                borders.append(len(expected))
            if row.padding:
                expected += [(corpus.special.padding, IGNORED_LABEL, Modality.TEXT)] * row.padding
                borders.append(len(expected))
        tokens, labels, modality = (list(column) for column in zip(*expected, strict=True))
        assert batch.tokens_T.tolist() == tokens
        assert batch.labels_T.tolist() == labels
        assert batch.modality_T.tolist() == modality
        assert batch.cu_seqlens_N1.tolist() == borders
        assert batch.num_tokens == len(rows) * context_length == borders[-1]
    assert cut or context_length == 4096


def test_padding_is_marked_and_lies_at_the_end_of_rows(corpus: Corpus):
    for rows, batch in laid_out(corpus, 4096, 6, 2):
        expected = [position >= 4096 - row.padding for row in rows for position in range(4096)]
        assert batch.is_padding_T.tolist() == expected


def test_image_positions_are_the_placeholders_and_grids_match_patches(corpus: Corpus):
    seen = 0
    for _, batch in laid_out(corpus, 128, 40, 2):
        placeholders = np.flatnonzero(batch.tokens_T.numpy() == corpus.special.media_placeholder)
        assert batch.image_positions_M.tolist() == placeholders.tolist()
        areas = [rows * columns for rows, columns in batch.image_grids_I2.tolist()]
        assert sum(areas) == batch.patches_PD.shape[0] == 4 * len(placeholders)
        assert batch.patches_PD.shape[1] == 3 * PATCH * PATCH
        assert all(side % 2 == 0 for grid in batch.image_grids_I2.tolist() for side in grid)
        seen += len(areas)
    assert seen > 20


def test_a_batch_without_images_has_empty_tensors_of_the_right_shape(corpus: Corpus):
    assembler = Assembler(corpus, "train", PATCH)
    lengths_N, _ = corpus.splits["text"]["train"].lengths(PATCH)
    shape = SourceShape(lengths_N=lengths_N, whole_N=np.zeros(len(lengths_N), bool))
    plan = RowPlan({"text": shape}, {"text": 1}, 32, DataCursor(corpus=corpus.digest, seed=0))
    batch = assembler.batch([plan.next_row()])
    assert tuple(batch.patches_PD.shape) == (0, 48)
    assert tuple(batch.image_grids_I2.shape) == (0, 2)
    assert tuple(batch.image_positions_M.shape) == (0,)


def test_types_are_those_of_the_contract(corpus: Corpus):
    _, batch = laid_out(corpus, 64, 2, 2)[0]
    types = {name: str(getattr(batch, name).dtype) for name in TYPES}
    assert types == TYPES
    borders = batch.cu_seqlens_N1.tolist()
    assert batch.max_seqlen == max(end - first for first, end in itertools.pairwise(borders))


def test_one_token_documents_carry_no_label(corpus: Corpus):
    lengths_N, _ = corpus.splits["text"]["train"].lengths(PATCH)
    single = int(np.flatnonzero(lengths_N == 1)[0])
    assert oracle(corpus, "text", single) == [(corpus.special.document_end, IGNORED_LABEL, Modality.TEXT)]
    singles = 0
    for _, batch in laid_out(corpus, 64, 40, 1):
        borders = batch.cu_seqlens_N1.tolist()
        for first, end in itertools.pairwise(borders):
            if end - first == 1 and batch.tokens_T[first] == corpus.special.document_end:
                singles += 1
                assert batch.labels_T[first] == IGNORED_LABEL
    assert singles > 0


def test_the_number_of_labels_does_not_depend_on_where_documents_are_cut(corpus: Corpus):
    expected = sum(corpus.manifest.sources["text"].splits["train"].supervised.values())
    for context_length in (16, 50, 333):
        lengths_N, _ = corpus.splits["text"]["train"].lengths(PATCH)
        shape = SourceShape(lengths_N=lengths_N, whole_N=np.zeros(len(lengths_N), bool))
        plan = RowPlan({"text": shape}, {"text": 1}, context_length, DataCursor(corpus=corpus.digest, seed=0))
        assembler = Assembler(corpus, "train", PATCH)
        labels = 0
        for _ in range(int(lengths_N.sum()) * 4 // context_length):
            row = plan.next_row()
            for piece in row.pieces:
                if piece.epoch == 0:
                    _, labels_L, _, _ = assembler._piece(piece)
                    labels += int((labels_L != IGNORED_LABEL).sum())
        assert labels == expected


TYPES = {
    "tokens_T": "torch.int64",
    "labels_T": "torch.int64",
    "modality_T": "torch.uint8",
    "is_padding_T": "torch.bool",
    "cu_seqlens_N1": "torch.int32",
    "patches_PD": "torch.float32",
    "image_grids_I2": "torch.int64",
    "image_positions_M": "torch.int64",
}
