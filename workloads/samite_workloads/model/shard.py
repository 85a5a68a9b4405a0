"""Writing a piece of a full tensor into whatever part of it lives in this process."""

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor


def local_slices(tensor: Tensor) -> tuple[Tensor, list[slice]]:
    """The local storage of `tensor` and the ranges of the full tensor that it holds, one per dim."""
    if not isinstance(tensor, DTensor):
        return tensor, [slice(0, size) for size in tensor.shape]
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    shape, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return tensor.to_local(), [slice(start, start + size) for start, size in zip(offset, shape, strict=True)]


def holds(tensor: Tensor, index: tuple[int, ...]) -> bool:
    """Whether any of `tensor[index]` lives here."""
    _, ranges = local_slices(tensor)
    inside = all(held.start <= i < held.stop for i, held in zip(index, ranges, strict=False))
    return inside and all(held.stop > held.start for held in ranges)


@torch.no_grad()
def assign(tensor: Tensor, index: tuple[int, ...], value: Tensor) -> None:
    """tensor[index] = value for the part of it that lives here; `value` is that piece of the full tensor, on any device."""
    if not holds(tensor, index):
        return
    local, ranges = local_slices(tensor)
    place = tuple(i - held.start for i, held in zip(index, ranges, strict=False))
    local[place].copy_(value[tuple(ranges[len(index) :])])
