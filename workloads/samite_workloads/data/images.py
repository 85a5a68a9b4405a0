"""Pixels to patches: how many positions an image takes, and the patch rows that the vision tower reads.

Layout as in K3's vision packing: each side is padded with zeros to a multiple of two patches, patches run row by row, and every 2x2 block of
patches becomes one position of the token row. Used by `packing` (counts) and `assemble` (pixels).
"""

from typing import TYPE_CHECKING, TypeVar

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

MERGE = 2
DEFAULT_PATCH_SIZE = 14


Pixels = TypeVar("Pixels", int, "NDArray[np.int64]")


def patch_grid(height: Pixels, width: Pixels, patch_size: int) -> tuple[Pixels, Pixels]:
    """Patch rows and columns of an image (or of each image in two arrays), both even, at least 2."""
    side = MERGE * patch_size
    return MERGE * -(-height // side), MERGE * -(-width // side)


def num_positions(height: Pixels, width: Pixels, patch_size: int) -> Pixels:
    """Token positions of an image (or of each): merged patches."""
    rows, columns = patch_grid(height, width, patch_size)
    return rows * columns // (MERGE * MERGE)


def to_patches(pixels: "NDArray[np.uint8]", patch_size: int) -> "NDArray[np.float32]":
    """uint8 [height, width, 1 or 3] to float32 [rows*columns, 3*patch*patch] in [-1, 1], channel-major, zero pixels as padding."""
    height, width, channels = pixels.shape
    rows, columns = patch_grid(height, width, patch_size)
    canvas = np.zeros((3, rows * patch_size, columns * patch_size), dtype=np.float32)
    canvas[:, :height, :width] = (
        np.broadcast_to(pixels.transpose(2, 0, 1), (3, height, width)) if channels == 1 else pixels.transpose(2, 0, 1)
    )
    canvas = canvas / 127.5 - 1.0
    blocks = canvas.reshape(3, rows, patch_size, columns, patch_size).transpose(1, 3, 0, 2, 4)
    return np.ascontiguousarray(blocks.reshape(rows * columns, 3 * patch_size * patch_size), dtype=np.float32)
