"""Supervision of a document, and the unigram baseline that a trained model has to beat.

The label rule lives here because the baseline and the batches must agree on it: position t predicts token t+1 of its document; the last
token predicts nothing; nothing inside a media block (header, image positions, end mark) is predicted, so an image position predicts nothing
either. What follows an image in its document counts as caption, everything else as text.
"""

from typing import TYPE_CHECKING

import numpy as np

from samite_workloads.batch import IGNORED_LABEL, Modality
from samite_workloads.data.layout import MODALITIES, SpecialTokens

if TYPE_CHECKING:
    from numpy.typing import NDArray


def label_document(tokens_L: "NDArray[np.int64]", special: SpecialTokens) -> "tuple[NDArray[np.int64], NDArray[np.uint8]]":
    """Labels [L] (-100 where nothing is predicted) and modality [L] of one whole document of L tokens."""
    labels_L = np.full(tokens_L.shape, IGNORED_LABEL, dtype=np.int64)
    labels_L[:-1] = tokens_L[1:]
    modality_L = np.full(tokens_L.shape, Modality.TEXT, dtype=np.uint8)
    opened_L = np.cumsum(tokens_L == special.media_begin)
    if opened_L.size == 0 or opened_L[-1] == 0:
        return labels_L, modality_L
    closed_L = np.cumsum(tokens_L == special.media_end)
    inside_L = (opened_L > closed_L) | (tokens_L == special.media_end)
    labels_L[:-1][inside_L[1:]] = IGNORED_LABEL
    modality_L[closed_L > 0] = Modality.IMAGE_CAPTION
    return labels_L, modality_L


class LabelCounts:
    """How often each token is a label, by modality: [2, vocabulary] int64."""

    def __init__(self, vocab_size: int) -> None:
        self.counts_MV = np.zeros((len(MODALITIES), vocab_size), dtype=np.int64)

    def add(self, labels_L: "NDArray[np.int64]", modality_L: "NDArray[np.uint8]") -> None:
        """Count the labels of one document."""
        used_L = labels_L != IGNORED_LABEL
        for modality in Modality:
            chosen = labels_L[used_L & (modality_L == modality)]
            if chosen.size:
                self.counts_MV[modality] += np.bincount(chosen, minlength=self.counts_MV.shape[1])

    def supervised(self) -> dict[str, int]:
        """Number of labels by modality; modalities without labels are left out."""
        return {name: int(total) for name, total in zip(MODALITIES, self.counts_MV.sum(axis=1), strict=True) if total}

    def __iadd__(self, other: "LabelCounts") -> "LabelCounts":
        self.counts_MV += other.counts_MV
        return self


def unigram_nats(fitted: LabelCounts, measured: LabelCounts) -> dict[str, float]:
    """Cross entropy, in nats per label, of `measured` under the token frequencies of `fitted`, by modality.

    For `fitted is measured` this is the entropy. Otherwise each token gets one extra count, so that an unseen one costs a finite amount.
    """
    extra = 0.0 if fitted is measured else 1.0
    result = {}
    for modality, name in enumerate(MODALITIES):
        measured_V = measured.counts_MV[modality].astype(np.float64)
        fitted_V = fitted.counts_MV[modality].astype(np.float64) + extra
        if measured_V.sum() == 0 or fitted_V.sum() == 0:
            continue
        used = measured_V > 0
        log_p = np.log(fitted_V[used] / fitted_V.sum())
        result[name] = float(-(measured_V[used] * log_p).sum() / measured_V.sum())
    return result
