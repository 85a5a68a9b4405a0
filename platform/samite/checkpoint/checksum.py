"""CRC64-NVME of buffers: the one checksum of the checkpoint format.

The polynomial is the one S3 verifies on upload (`x-amz-checksum-crc64nvme`), so one pass over the bytes serves the format and the transport.
awscrt computes it at about 30 GB/s without holding the interpreter lock.
"""

import base64
from collections.abc import Callable
from functools import cache
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
