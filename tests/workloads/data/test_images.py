"""Pixels to patches: counts on odd sizes, order, range, padding."""

import numpy as np
import pytest

from samite_workloads.data.images import num_positions, patch_grid, to_patches


@pytest.mark.parametrize(
    ("height", "width", "patch", "grid"),
    [(28, 28, 14, (2, 2)), (29, 28, 14, (4, 2)), (1, 1, 14, (2, 2)), (16, 16, 4, (4, 4)), (9, 17, 4, (4, 6)), (3584, 3584, 14, (256, 256))],
)
def test_sides_are_padded_to_two_patches(height: int, width: int, patch: int, grid: tuple[int, int]):
    assert patch_grid(height, width, patch) == grid
    assert num_positions(height, width, patch) == grid[0] * grid[1] // 4


def test_patches_run_row_by_row_and_channel_by_channel():
    pixels = np.arange(8 * 8 * 3, dtype=np.uint8).reshape(8, 8, 3)
    patches = to_patches(pixels, 4)
    assert patches.shape == (4, 48)
    for number, (row, column) in enumerate([(0, 0), (0, 4), (4, 0), (4, 4)]):
        expected = pixels[row : row + 4, column : column + 4].transpose(2, 0, 1).reshape(-1) / 127.5 - 1
        assert np.allclose(patches[number], expected, atol=1e-6)


def test_grey_images_fill_all_three_channels():
    patches = to_patches(np.full((8, 8, 1), 255, np.uint8), 4).reshape(4, 3, 16)
    assert (patches == 1.0).all()


def test_padding_is_black_and_values_stay_in_range():
    patches = to_patches(np.full((5, 8, 3), 200, np.uint8), 4).reshape(2, 2, 3, 4, 4)
    assert (patches[1, :, :, 1:] == -1.0).all()
    assert patches.min() >= -1.0
    assert patches.max() <= 1.0
    assert patches.dtype == np.float32
