"""Handwritten digits with captions: the quickstart's image-text source, drawn from the 8x8 scans that scikit-learn ships.

Each caption states facts that can be read off its image (which digit, how heavy the stroke is, whether it is wide or narrow), in one of a
few wordings chosen by the sample's number, so that a caption loss below the unigram baseline can only come from learning, and one well
below it only from looking.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from samite_workloads.data.documents import Document, Picture, Skipped
from samite_workloads.data.layout import CorpusError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

DEFAULT_PIXELS = 16
"""Two by two merged patches for the tiny preset, whose patches are 4 pixels wide."""
_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_WORDINGS = (
    "a handwritten {word}, {stroke} and {width}",
    "the digit {digit} written in {stroke} strokes",
    "a {width} {word} in {stroke} ink",
    "this is a {word}",
    "{word}: a {stroke}, {width} digit {digit}",
    "someone wrote the number {word}",
)


class Digits:
    """Source over scikit-learn's 1797 digits, enlarged from 8x8 to `pixels` x `pixels` (a multiple of 8) by repetition."""

    def __init__(self, *, name: str = "digits", pixels: int = DEFAULT_PIXELS) -> None:
        if pixels < 8 or pixels % 8:
            raise CorpusError(f"digits are 8x8 scans: wanted a multiple of 8 as their size in pixels, got {pixels}")
        self.name = name
        self.pixels = pixels
        self.description = f"1797 handwritten digits of scikit-learn at {pixels}x{pixels} pixels, with captions"

    def fingerprint(self) -> dict[str, Any]:
        """Package version and size."""
        return {"kind": "digits", "sklearn": _sklearn_version(), "pixels": self.pixels, "wordings": _WORDINGS}

    def documents(self, skipped: Skipped) -> Iterator[Document]:  # noqa: ARG002  the protocol's argument; no digit is ever left out
        """One document per scan: image, then caption."""
        import numpy as np
        from sklearn.datasets import load_digits

        data = load_digits()
        scale = self.pixels // 8
        for number, (scan, digit) in enumerate(zip(data.images, data.target, strict=True)):
            grey = np.minimum(scan * 16.0, 255.0).astype(np.uint8)
            pixels = np.repeat(np.repeat(grey, scale, axis=0), scale, axis=1)[:, :, None]
            yield Document(parts=(Picture(pixels=pixels), caption(scan, int(digit), number)), origin=f"digits:{number}")


def caption(scan: "NDArray[np.float64]", digit: int, number: int) -> str:
    """The caption of one scan [8, 8] with values 0 to 16; `number` chooses the wording."""
    inked_columns = int((scan.sum(axis=0) > 8).sum())
    return _WORDINGS[number % len(_WORDINGS)].format(
        word=_WORDS[digit],
        digit=digit,
        stroke="bold" if float(scan.sum()) > 312 else "light",
        width="wide" if inked_columns >= 6 else "narrow",
    )


def _sklearn_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("scikit-learn")
    except PackageNotFoundError:
        raise CorpusError(
            "the digits need scikit-learn, which is not installed. Install it: pip install 'samite[worker,quickstart]', "
            "or leave the source out: samite data prepare --source stdlib"
        ) from None
