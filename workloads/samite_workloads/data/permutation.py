"""A keyed permutation of 0..N-1 without a table: the order in which one epoch of one source is read.

A four-round Feistel network over the next even power of two, walked until it lands below N. Memory is constant, any index costs the same,
and every rank computes the same order from (seed, source, epoch). Used by `packing`; the order is part of what a cursor means, so a change
here breaks resume and must raise the cursor's version.
"""

import hashlib

_ROUNDS = 4
_MASK = (1 << 64) - 1


class Permutation:
    """Shuffled order of `size` items for one (seed, name, epoch)."""

    def __init__(self, *, size: int, seed: int, name: str, epoch: int) -> None:
        if size < 1:
            raise ValueError(f"a permutation needs at least one item, got {size}")
        self.size = size
        self._half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
        key = hashlib.blake2b(f"{seed}\0{name}\0{epoch}".encode(), digest_size=8 * _ROUNDS).digest()
        self._keys = tuple(int.from_bytes(key[8 * i : 8 * i + 8], "little") for i in range(_ROUNDS))

    def __call__(self, index: int) -> int:
        """Item at place `index` of the order."""
        if not 0 <= index < self.size:
            raise ValueError(f"index {index} outside 0..{self.size - 1}")
        half_bits, half_mask = self._half_bits, (1 << self._half_bits) - 1
        value = index
        while True:
            left, right = value >> half_bits, value & half_mask
            for key in self._keys:
                left, right = right, left ^ (_mix(right ^ key) & half_mask)
            value = (left << half_bits) | right
            if value < self.size:
                return value


def _mix(value: int) -> int:
    """The finaliser of splitmix64."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
