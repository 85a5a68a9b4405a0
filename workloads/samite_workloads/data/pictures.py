"""Image files to pixels: decoded, turned upright, shrunk to a limit, flattened onto white. Called by `records`."""

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from samite_workloads.data.documents import Picture

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm"})
DEFAULT_MAX_PIXELS = 448 * 448
MAX_SIDE_PIXELS = 3584


class UnusableImageError(Exception):
    """An image that cannot be used; the message says why and leaves naming the place to the caller."""


def load_picture(path: Path, max_pixels: int = DEFAULT_MAX_PIXELS) -> Picture:
    """Pixels of the (first frame of the) image at `path`: grey stays grey, everything else becomes RGB.

    Scaled down, never up, to at most `max_pixels` and 3584 on a side. Raises UnusableImageError.
    """
    import numpy as np
    from PIL import Image, ImageOps

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path) as opened:
                opened.load()
                image = _flattened(_shrunk(ImageOps.exif_transpose(opened), max_pixels))
    except FileNotFoundError:
        raise UnusableImageError(f"image {path} does not exist") from None
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):
        raise UnusableImageError(f"image {path} has too many pixels to decode safely; shrink it") from None
    except (OSError, SyntaxError, ValueError, EOFError) as error:
        raise UnusableImageError(f"image {path} cannot be decoded: {error}") from error
    pixels = np.asarray(image, dtype=np.uint8)
    return Picture(pixels=pixels[:, :, None] if pixels.ndim == 2 else pixels)


def shrunk_size(width: int, height: int, max_pixels: int) -> tuple[int, int]:
    """Width and height after scaling by min(1, sqrt(limit / area), side limits); at least one pixel each."""
    scale = min(1.0, (max_pixels / (width * height)) ** 0.5, MAX_SIDE_PIXELS / width, MAX_SIDE_PIXELS / height)
    return max(1, int(width * scale)), max(1, int(height * scale))


def _shrunk(image: "Image", max_pixels: int) -> "Image":
    from PIL import Image

    size = shrunk_size(image.width, image.height, max_pixels)
    if size == image.size:
        return image
    if image.mode in {"P", "1"}:
        image = image.convert("RGBA" if image.mode == "P" else "L")
    return image.resize(size, Image.Resampling.BICUBIC)


def _flattened(image: "Image") -> "Image":
    """Grey or RGB; transparency is laid over white, after the resize as in the published recipe."""
    from PIL import Image

    if image.mode in {"L", "1"}:
        return image.convert("L")
    if image.mode.startswith("I") or image.mode == "F":
        raise ValueError(f"pixel mode {image.mode} (more than 8 bits) is not supported; save it with 8 bits per channel")
    if not image.has_transparency_data:
        return image.convert("RGB")
    layer = image.convert("RGBA")
    ground = Image.new("RGBA", layer.size, (255, 255, 255, 255))
    return Image.alpha_composite(ground, layer).convert("RGB")
