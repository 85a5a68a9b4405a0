"""Run on each of several gloo ranks by `test_muon.py`: three optimizer steps on sharded matrices; rank 0 stores the whole weights.

Globals given by the caller: arguments (output file), rank, world, port.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from samite_workloads.train.muon import Matrix, Muon

SHAPES = {
    "whole": ((20, 12), 20, (20,)),
    "tall": ((33, 8), 33, (33,)),
    "heads": ((12, 16), 4, (4,)),
    "halves": ((18, 8), 6, (4, 2)),
    "experts": ((5, 6, 7), 6, (6,)),
    "pairs": ((3, 2, 4, 6), 4, (4,)),
    "narrow": ((1, 9), 1, (1,)),
}


def matrices(mesh):
    made = []
    for name, (shape, block_rows, parts) in SHAPES.items():
        value = torch.randn(shape, generator=torch.Generator().manual_seed(len(name)))
        parameter = nn.Parameter(value if mesh is None else distribute_tensor(value, mesh, [Shard(0)]))
        made.append(Matrix(name=name, parameter=parameter, block_rows=block_rows, parts=parts))
    return made


def train(mesh, steps=3):
    """Weights after `steps` of Muon with gradients that depend on the step alone."""
    made = matrices(mesh)
    muon = Muon(made, momentum=0.95, weight_decay=0.1, compute_dtype=torch.float32)
    for step in range(steps):
        for matrix in made:
            seed = torch.Generator().manual_seed(100 * step + len(matrix.name))
            gradient = torch.randn(matrix.parameter.shape, generator=seed)
            matrix.parameter.grad = gradient if mesh is None else distribute_tensor(gradient, mesh, [Shard(0)])
        muon.step(learning_rate=torch.tensor(0.02), accepted=torch.tensor(1.0))
    whole = {m.name: m.parameter.detach() for m in made}
    return {name: value.full_tensor() if isinstance(value, DTensor) else value for name, value in whole.items()}


if __name__ == "__main__":
    output, rank, world, port = globals()["arguments"][0], globals()["rank"], globals()["world"], globals()["port"]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    result = train(init_device_mesh("cpu", (world,)))
    if rank == 0:
        torch.save(result, output)
    dist.destroy_process_group()
