"""FSDP2 over one data axis: each layer its own unit, the rest in the root.

Gradients are *summed* over ranks: the loss is already divided by the global number of supervised tokens, so a mean over ranks would be wrong
whenever ranks hold different numbers of labels. On CUDA, matrices compute in bf16 from fp32 masters and reduce in fp32; the parameters that the
model names as fp32 islands stay whole and fp32 on each rank, and their gradients are summed here in one collective.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor


@dataclass(frozen=True, slots=True)
class ShardedModel:
    """A model under FSDP2. `replicated` are the parameters that FSDP does not touch."""

    module: nn.Module
    mesh: DeviceMesh
    replicated: tuple[nn.Parameter, ...]

    def sum_replicated_gradients(self, group: dist.ProcessGroup) -> None:
        """Sum the islands' gradients over ranks, after the last backward of a step; one all-reduce whatever their number."""
        gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in self.replicated]
        if not gradients or group.size() == 1:
            return
        flat = torch.cat([g.reshape(-1) for g in gradients])
        dist.all_reduce(flat, group=group)
        for parameter, summed in zip(self.replicated, flat.split([g.numel() for g in gradients]), strict=True):
            parameter.grad = summed.view_as(parameter)

    def last_micro_batch(self, last: bool) -> None:
        """Gradients are reduced in the last micro-batch's backward only; before that they accumulate unsharded."""
        if isinstance(self.module, FSDPModule):
            self.module.set_requires_gradient_sync(last)


def shard(module: nn.Module, units: Iterable[nn.Module], *, device: torch.device, islands: Iterable[nn.Parameter] = ()) -> ShardedModel:
    """Shard `module` (usually still on the meta device) over all ranks. `units` are wrapped one by one, in forward order."""
    mesh = init_device_mesh(device.type, (dist.get_world_size(),), mesh_dim_names=("data",))
    kept = tuple(islands) if device.type == "cuda" else ()
    on_cuda = device.type == "cuda"
    precision = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if on_cuda else None,
        reduce_dtype=torch.float32 if on_cuda else None,
        cast_forward_inputs=False,
    )
    for part in (*units, module):
        fully_shard(part, mesh=mesh, mp_policy=precision, ignored_params=set(kept), reshard_after_forward=part is not module)
        assert isinstance(part, FSDPModule)
        part.set_force_sum_reduction_for_comms(True)  # before the divide factor: gloo has no PREMUL_SUM
        part.set_gradient_divide_factor(1.0)
    return ShardedModel(module, mesh, kept)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of `tensor`; the tensor itself when it is not sharded. A view: writing to it writes the parameter."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
