"""The fused reduction over real processes: counts stay exact, the maximum sees every rank."""

import multiprocessing
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from samite_workloads.signals.reduction import FusedReduction


def reduce_on_rank(rank: int, world: int, store: str, results) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    reduction = FusedReduction()
    reduction.add("count", torch.tensor(2**45 + rank))
    reduction.maximum("peak", torch.tensor([float(rank), float("nan") if rank == 0 else 1.0]))
    results.put(reduction.run(dist.group.WORLD))
    dist.destroy_process_group()


@pytest.mark.timeout(90)
def test_all_ranks_get_the_same_exact_numbers(tmp_path: Path):
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    ranks = [context.Process(target=reduce_on_rank, args=(rank, 2, str(tmp_path / "store"), results), daemon=True) for rank in range(2)]
    for process in ranks:
        process.start()
    try:
        found = [results.get(timeout=60) for _ in ranks]
    finally:
        for process in ranks:
            process.join(10)
            process.kill()
    assert found == [{"count": [float(2**46 + 1)], "peak": [1.0, float("inf")]}] * 2
