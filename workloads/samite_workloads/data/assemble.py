"""Planned rows to tensors: tokens, shifted labels, modality, document borders and image patches of one micro-batch.

Called by the loader in its background thread. Legend as in `PackedBatch`: T tokens, N documents, P patches, I images, M merged patches.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from samite_workloads.batch import IGNORED_LABEL, Modality, PackedBatch
from samite_workloads.data.baseline import label_document
from samite_workloads.data.images import num_positions, patch_grid, to_patches
from samite_workloads.data.packing import Piece, Row

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from samite_workloads.data.corpus import Corpus


class Assembler:
    """Builds batches from the documents of one split of a corpus, for a model with patches of `patch_size` pixels."""

    def __init__(self, corpus: "Corpus", split: str, patch_size: int) -> None:
        self.special = corpus.special
        self.patch_size = patch_size
        self._documents = {name: splits[split] for name, splits in corpus.splits.items()}
        self._has_images = {name: documents.lengths(patch_size)[1] for name, documents in self._documents.items()}

    def batch(self, rows: Sequence[Row]) -> PackedBatch:
        """One micro-batch of whole rows, in their order. CPU tensors."""
        import torch

        total = sum(piece.length for row in rows for piece in row.pieces) + sum(row.padding for row in rows)
        tokens_T = np.full(total, self.special.padding, dtype=np.int64)
        labels_T = np.full(total, IGNORED_LABEL, dtype=np.int64)
        modality_T = np.full(total, Modality.TEXT, dtype=np.uint8)
        is_padding_T = np.ones(total, dtype=np.bool_)
        borders, patches, grids, positions, sample_ids = [0], [], [], [], []
        for row in rows:
            for piece in row.pieces:
                start, end = borders[-1], borders[-1] + piece.length
                span = slice(start, end)
                tokens_T[span], labels_T[span], modality_T[span], pictures = self._piece(piece)
                is_padding_T[span] = False
                borders.append(end)
                if pictures:
                    positions.append(start + np.flatnonzero(tokens_T[span] == self.special.media_placeholder))
                for pixels in pictures:
                    patches.append(to_patches(pixels, self.patch_size))
                    grids.append(patch_grid(pixels.shape[0], pixels.shape[1], self.patch_size))
                if piece.start == 0:
                    sample_ids.append(sample_id(piece))
            if row.padding:
                borders.append(borders[-1] + row.padding)
        width = 3 * self.patch_size * self.patch_size
        patches_PD = np.concatenate(patches) if patches else np.zeros((0, width), dtype=np.float32)
        positions_M = np.concatenate(positions) if positions else np.zeros(0, dtype=np.int64)
        cu_seqlens_N1 = np.asarray(borders, dtype=np.int32)
        return PackedBatch(
            tokens_T=torch.from_numpy(tokens_T),
            labels_T=torch.from_numpy(labels_T),
            modality_T=torch.from_numpy(modality_T),
            is_padding_T=torch.from_numpy(is_padding_T),
            cu_seqlens_N1=torch.from_numpy(cu_seqlens_N1),
            patches_PD=torch.from_numpy(patches_PD),
            image_grids_I2=torch.tensor(grids, dtype=torch.int64).reshape(-1, 2),
            image_positions_M=torch.from_numpy(positions_M),
            max_seqlen=int(np.diff(cu_seqlens_N1).max()),
            rows=row_ranges(row.index for row in rows),
            sample_ids=tuple(sample_ids),
        )

    def _piece(self, piece: Piece) -> "tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8], tuple[NDArray[np.uint8], ...]]":
        """Tokens, labels and modality [length] of a piece, and the pixels of its images."""
        documents = self._documents[piece.source]
        if self._has_images[piece.source][piece.document]:
            stored = documents.document(piece.document)
            counts = [num_positions(pixels.shape[0], pixels.shape[1], self.patch_size) for pixels in stored.pictures]
            tokens_L = expand_placeholders(stored.tokens_L.astype(np.int64), self.special.media_placeholder, counts)
            labels_L, modality_L = label_document(tokens_L, self.special)
            return tokens_L, labels_L, modality_L, stored.pictures
        # One token more than the piece: what the last position of a cut document predicts lies in the next piece.
        tokens = documents.tokens(piece.document, piece.start, piece.start + piece.length + 1)
        labels_L, modality_L = label_document(tokens, self.special)
        return tokens[: piece.length], labels_L[: piece.length], modality_L[: piece.length], ()


def expand_placeholders(tokens: "NDArray[np.int64]", placeholder: int, counts: Sequence[int]) -> "NDArray[np.int64]":
    """Repeat the k-th placeholder `counts[k]` times."""
    repeats = np.ones(tokens.shape, dtype=np.int64)
    repeats[tokens == placeholder] = counts
    return np.repeat(tokens, repeats)


def sample_id(piece: Piece) -> str:
    """`source:document`, and `source:document@epoch` from the second epoch on."""
    return f"{piece.source}:{piece.document}" + (f"@{piece.epoch}" if piece.epoch else "")


def row_ranges(indices: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Ascending indices as half-open ranges."""
    ranges: list[tuple[int, int]] = []
    for index in indices:
        if ranges and ranges[-1][1] == index:
            ranges[-1] = (ranges[-1][0], index + 1)
        else:
            ranges.append((index, index + 1))
    return tuple(ranges)
