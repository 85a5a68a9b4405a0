"""The packed batch: the one value that passes from the data loader to the model.

Documents of several sequences lie behind each other in one row of T tokens; `cu_seqlens` says where each begins, so no state, convolution
tap or attention score crosses a border. Images are ordinary positions in the row whose embeddings come from the vision tower.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

IGNORED_LABEL = -100
"""Label of positions without a next-token target: padding, image positions, the last token of a document."""


class Modality(IntEnum):
    """What a supervised token belongs to; losses are reported for each."""

    TEXT = 0
    IMAGE_CAPTION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedBatch:
    """One micro-batch of one rank. Legend: T tokens (rows x contextLength), N documents, P vision patches, I images, M merged patches (P/4).

    Padding is the tail of a row, is its own document in `cu_seqlens`, has labels of -100 and `is_padding_T` true; it takes no part in routing
    counts or losses. A batch without images has P = I = M = 0 tensors, never None.
    """

    tokens_T: "Tensor"
    """int64 [T]; image positions hold the image placeholder id."""
    labels_T: "Tensor"
    """int64 [T], already shifted: labels_T[t] is the token to predict at t, or -100."""
    modality_T: "Tensor"
    """uint8 [T], `Modality` of the label."""
    is_padding_T: "Tensor"
    """bool [T]."""
    cu_seqlens_N1: "Tensor"
    """int32 [N+1], from 0 to T, non-decreasing."""
    patches_PD: "Tensor"
    """float32 [P, 3*patch*patch], channel-major patches in row-major order, image after image."""
    image_grids_I2: "Tensor"
    """int64 [I, 2]: patch rows and columns of each image, both even."""
    image_positions_M: "Tensor"
    """int64 [M]: where in the row each merged patch goes, in the order the projector emits them."""
    max_seqlen: int
    """Longest document, on the host, so that kernels need no sync."""
    rows: tuple[tuple[int, int], ...] = ()
    """Half-open ranges of global row indices in this batch, for the data window of an error."""
    sample_ids: tuple[str, ...] = ()
    """Ids of the samples that begin in this batch (`source:index`), for exactly-once tests and for reports."""

    @property
    def num_tokens(self) -> int:
        """T, padding included."""
        return int(self.tokens_T.shape[0])

    def to(self, device: "str | object") -> "PackedBatch":
        """The same batch with every tensor on `device`."""
        moved = {
            name: getattr(self, name).to(device, non_blocking=True)
            for name in (
                "tokens_T",
                "labels_T",
                "modality_T",
                "is_padding_T",
                "cu_seqlens_N1",
                "patches_PD",
                "image_grids_I2",
                "image_positions_M",
            )
        }
        return PackedBatch(max_seqlen=self.max_seqlen, rows=self.rows, sample_ids=self.sample_ids, **moved)
