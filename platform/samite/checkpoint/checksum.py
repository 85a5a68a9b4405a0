"""CRC64-NVME of buffers: the one checksum of the checkpoint format.

The polynomial is the one S3 verifies on upload (`x-amz-checksum-crc64nvme`), so one pass over the bytes serves the format and the transport.
awscrt computes it at about 30 GB/s without holding the interpreter lock.
"""

import base64
import threading
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable
from functools import cache
from itertools import pairwise
from typing import Any

Buffer = bytes | bytearray | memoryview

BLOCK_BYTES = 4 * 1024 * 1024
"""Bytes per block checksum: a reader of a slice verifies whole blocks, so it reads at most one block too much at either end."""


def crc64(data: Buffer, previous: int = 0) -> int:
    """CRC64-NVME of `data`, continuing from `previous`. Memory views must be contiguous; nothing is copied."""
    return int(_functions()[0](data, previous))


def combine_crc64(first: int, second: int, second_bytes: int) -> int:
    """Checksum of two buffers laid behind each other, from the checksum of each and the second's length."""
    if second_bytes == 0:
        return first
    return int(_functions()[1](first, second, second_bytes))


def block_checksums(data: memoryview) -> list[int]:
    """Checksum of each block of `BLOCK_BYTES` of `data`, the last one possibly shorter; empty for no bytes."""
    return [crc64(data[start : start + BLOCK_BYTES]) for start in range(0, len(data), BLOCK_BYTES)]


def combine_blocks(checksums: list[int], num_bytes: int) -> int:
    """Checksum of a buffer of `num_bytes` from those of its blocks."""
    total = 0
    for number, checksum in enumerate(checksums):
        total = combine_crc64(total, checksum, min(BLOCK_BYTES, num_bytes - number * BLOCK_BYTES))
    return total


class Checksums:
    """Checksums of ranges of one buffer, each byte read once however many ranges it belongs to: a part that is sent, a block, a chunk, the whole.

    `borders` are where ranges will begin or end that are asked for later. Thread-safe; a range is summed by the thread that asks first.
    """

    def __init__(self, data: memoryview, borders: Iterable[int] = ()) -> None:
        self._data = data
        self._borders = sorted({0, len(data), *borders})
        self._known: dict[tuple[int, int], int] = {}
        self._lock = threading.Lock()

    def of(self, begin: int, end: int) -> int:
        """CRC64-NVME of bytes [begin, end), combined from the pieces between borders."""
        with self._lock:
            for border in (begin, end):
                at = bisect_left(self._borders, border)
                if at == len(self._borders) or self._borders[at] != border:
                    insort(self._borders, border)
            cuts = self._borders[bisect_left(self._borders, begin) : bisect_right(self._borders, end)]
        total = 0
        for low, high in pairwise(cuts):
            known = self._known.get((low, high))
            if known is None:
                known = self._known[low, high] = crc64(self._data[low:high])
            total = combine_crc64(total, known, high - low)
        return total

    def blocks(self, begin: int, end: int) -> list[int]:
        """Checksum of each block of `BLOCK_BYTES` of [begin, end), as `block_checksums`."""
        return [self.of(start, min(start + BLOCK_BYTES, end)) for start in range(begin, end, BLOCK_BYTES)]

    @property
    def whole(self) -> int:
        """Of the buffer."""
        return self.of(0, len(self._data))


Checksum = int | Checksums
"""What a store is given beside the bytes: their checksum, or all that it may ask for."""


def to_header(checksum: int) -> str:
    """The form S3 puts into headers: base64 of the eight bytes, big-endian."""
    return base64.b64encode(checksum.to_bytes(8, "big")).decode()


def from_header(text: str) -> int:
    """Inverse of `to_header`."""
    return int.from_bytes(base64.b64decode(text), "big")


@cache
def _functions() -> tuple[Callable[..., Any], Callable[..., Any]]:
    from awscrt import checksums

    return checksums.crc64nvme, checksums.combine_crc64nvme
