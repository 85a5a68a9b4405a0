"""What this rank holds of each tensor: its box in the global shape, and which replica of that box it is.

Called by writer and reader. Plain tensors count as replicated over all ranks; DTensors say it themselves (Shard, Replicate, both;
strided shards of FSDP over tensor parallelism where they lie in one piece).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import _StridedShard

from samite.checkpoint.index import Box, TensorMeta, box_bytes
from samite.checkpoint.layout import ITEM_BYTES, RESERVED
from samite.errors import SamiteError

_SAME_WIDTH = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class UnsupportedTensorError(SamiteError):
    """Some tensors cannot be written as what they are; the message names all of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalShard:
    """One tensor's part on this rank. `data` shares memory with the caller's tensor."""

    meta: TensorMeta
    box: Box
    data: Tensor
    replica: int
    """Which copy of the box this is, of `num_replicas`."""
    num_replicas: int

    @property
    def num_bytes(self) -> int:
        """Bytes of the box."""
        return box_bytes(self.box, self.meta.dtype)


def local_shards(tensors: Mapping[str, Tensor], *, rank: int, world_size: int, targets: bool = False) -> list[LocalShard]:
    """Shards of this rank in order of name, the same order on every rank. Raises UnsupportedTensorError naming every tensor that has no place.

    With `targets` the tensors will be written to, so lazily conjugated and expanded ones are refused too.
    """
    shards, problems = [], []
    for name in sorted(tensors):
        try:
            shard = _shard(name, tensors[name], rank, world_size)
            if targets and shard is not None:
                _check_writable(tensors[name], shard.data)
        except UnsupportedTensorError as error:
            problems.append(f"  - {name[:200]}: {error}")
            continue
        if shard is not None:
            shards.append(shard)
    if problems:
        raise UnsupportedTensorError("these tensors cannot go into a checkpoint:\n" + "\n".join(problems))
    return shards


def raw(tensor: Tensor) -> Tensor:
    """`tensor` as an integer type of the same width and the same strides, so that every dtype copies bit for bit. Shares memory."""
    width = _SAME_WIDTH.get(tensor.element_size())
    return tensor if width is None else tensor.view(width)


def as_bytes(tensor: Tensor) -> memoryview:
    """Bytes of a contiguous CPU tensor, without a copy."""
    flat = tensor.detach().reshape(-1).view(torch.uint8) if tensor.numel() else torch.empty(0, dtype=torch.uint8)
    array: Any = flat.numpy()
    return memoryview(array).cast("B")


def dtype_name(tensor: Tensor) -> str:
    """PyTorch's name of its dtype, such as `bfloat16`."""
    return str(tensor.dtype).removeprefix("torch.")


def plain(tensor: Tensor) -> Tensor:
    """`tensor` without gradient and without lazy conjugation or negation; shares memory unless there was one."""
    return tensor.detach().resolve_conj().resolve_neg()


def check_storable(tensor: Tensor) -> None:
    """Raise UnsupportedTensorError if the format has no place for its layout or dtype."""
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise UnsupportedTensorError(f"wanted a dense tensor, found {tensor.layout}{' (quantized)' if tensor.is_quantized else ''}")
    if dtype_name(tensor) not in ITEM_BYTES:
        raise UnsupportedTensorError(f"the format has no dtype {tensor.dtype}")


def _shard(name: str, tensor: Tensor, rank: int, world_size: int) -> LocalShard | None:
    if not name:
        raise UnsupportedTensorError("its name is empty")
    if name.startswith(RESERVED):
        raise UnsupportedTensorError(f"names that begin with {RESERVED} are reserved; give it another one")
    check_storable(tensor)
    meta = TensorMeta(name, dtype_name(tensor), tuple(tensor.shape))
    if not isinstance(tensor, DTensor):
        box = tuple((0, size) for size in tensor.shape)
        return LocalShard(meta=meta, box=box, data=plain(tensor), replica=rank, num_replicas=world_size)
    coordinate = tensor.device_mesh.get_coordinate()
    if coordinate is None:
        return None
    replica, num_replicas = 0, 1
    for axis, placement in enumerate(tensor.placements):
        if type(placement) is Replicate:
            replica = replica * tensor.device_mesh.size(axis) + coordinate[axis]
            num_replicas *= tensor.device_mesh.size(axis)
        elif not isinstance(placement, Shard | _StridedShard):
            raise UnsupportedTensorError(f"wanted placements Shard or Replicate, found {placement}; redistribute it first")
        elif isinstance(placement, _StridedShard) and not _beside_each_other(tensor, placement.dim, coordinate):
            raise UnsupportedTensorError(
                f"wanted a part that lies in one piece, found {placement}, which takes rows apart; redistribute it first"
            )
    shape, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    local = plain(tensor.to_local())
    if tuple(local.shape) != tuple(shape):
        raise UnsupportedTensorError(f"its local shape is {list(local.shape)}, its placement says {list(shape)}")
    return LocalShard(
        meta=meta, box=tuple(zip(map(int, offset), map(int, shape), strict=True)), data=local, replica=replica, num_replicas=num_replicas
    )


def _beside_each_other(tensor: DTensor, dim: int, coordinate: Sequence[int]) -> bool:
    """Whether what this rank holds along `dim` is one range. So it is for FSDP over tensor parallelism, which is where strided shards come from."""
    index = torch.arange(tensor.shape[dim]).view([1] * dim + [-1])
    for axis, placement in enumerate(tensor.placements):
        if isinstance(placement, Shard | _StridedShard) and placement.dim == dim:
            pieces, _ = placement._split_tensor(index, tensor.device_mesh.size(axis), with_padding=False, contiguous=False)  # noqa: SLF001
            index = pieces[coordinate[axis]]
    rows = index.reshape(-1)
    return rows.numel() == 0 or bool((rows[1:] - rows[:-1] == 1).all())


def _check_writable(tensor: Tensor, data: Tensor) -> None:
    if tensor.is_conj() or tensor.is_neg():
        raise UnsupportedTensorError("is a lazily conjugated or negated view; load into its base or into a clone")
    if any(stride == 0 and size > 1 for stride, size in zip(data.stride(), data.shape, strict=True)):
        raise UnsupportedTensorError("is expanded: several elements share one place; load into its base or into a clone")
