"""What every kernel asks of its tensors: one device, and memory that vector loads and bulk copies can take.

Called by the operators before they take an address: a pointer to another device or an address between two vectors is an error that the
device reports late, and that ends the process.
"""

from torch import Tensor

ALIGNMENT = 16
"""Bytes: of a vector load, an asynchronous copy and a bulk copy."""


def aligned(x: Tensor) -> Tensor:
    """`x` in contiguous memory that begins at a multiple of 16 bytes; a copy when it isn't so."""
    x = x.contiguous()
    return x if x.data_ptr() % ALIGNMENT == 0 else x.clone()


def check_devices(first: tuple[str, Tensor], **others: Tensor | None) -> None:
    """Raises ValueError when a tensor lies on another device than the `first`, given with its name."""
    name_of_first, like = first
    for name, x in others.items():
        if x is not None and x.device != like.device:
            raise ValueError(f"{name} must be on {like.device} like {name_of_first}, found {x.device}: move it there")
