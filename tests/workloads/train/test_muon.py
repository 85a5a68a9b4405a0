"""Muon: orthogonal updates of the right size, block by block, and the same bits however the matrices are sharded."""

import math
import runpy
from pathlib import Path

import pytest
import torch
from torch import nn

from samite_workloads.train.exchange import Slot, owners
from samite_workloads.train.muon import Matrix, Muon, muon_direction, orthogonalise

SCRIPT = Path(__file__).with_name("muon_on_ranks.py")


def conditioned(rows: int, columns: int, condition: float) -> torch.Tensor:
    """A matrix with singular values from 1 down to 1 / condition."""
    seed = torch.Generator().manual_seed(rows * 100 + columns)
    small = min(rows, columns)
    left = torch.linalg.qr(torch.randn(rows, small, generator=seed)).Q
    right = torch.linalg.qr(torch.randn(columns, small, generator=seed)).Q
    return left @ torch.diag(torch.logspace(0, -math.log10(condition), small)) @ right.T


@pytest.mark.parametrize(("rows", "columns"), [(32, 32), (16, 64), (64, 16), (3, 50)])
def test_singular_values_of_an_orthogonalised_matrix_lie_near_one(rows, columns):
    values = torch.linalg.svdvals(orthogonalise(conditioned(rows, columns, 90.0).unsqueeze(0)))
    assert 0.65 <= values.min() <= values.max() <= 1.25


@pytest.mark.parametrize(("rows", "columns"), [(128, 32), (32, 128), (64, 64)])
def test_the_update_has_about_the_root_mean_square_of_adamw(rows, columns):
    # Five iterations leave singular values between 0.7 and 1.2, so 0.2 is met to a fifth, not exactly.
    seed = torch.Generator().manual_seed(1)
    direction = muon_direction(torch.randn(rows, columns, generator=seed), rows, (rows,))
    assert direction.square().mean().sqrt().item() == pytest.approx(0.2, rel=0.2)


def test_heads_are_orthogonalised_one_by_one():
    update = torch.randn(12, 16, generator=torch.Generator().manual_seed(0))
    looped = torch.cat([muon_direction(head, 4, (4,)) for head in update.split(4)])
    assert torch.allclose(muon_direction(update, 4, (4,)), looped, atol=1e-6)
    assert not torch.allclose(muon_direction(update, 12, (12,)), looped, atol=1e-2)


def test_key_and_value_halves_of_a_head_are_orthogonalised_apart():
    update = torch.randn(2 * 6, 8, generator=torch.Generator().manual_seed(0))
    parts = [muon_direction(piece, piece.shape[0], (piece.shape[0],)) for head in update.split(6) for piece in head.split([4, 2])]
    assert torch.allclose(muon_direction(update, 6, (4, 2)), torch.cat(parts), atol=1e-6)


def test_blocks_that_do_not_divide_a_matrix_are_refused_by_name():
    with pytest.raises(ValueError, match=r"q_proj.*\(10, 4\).*blocks of 4"):
        Matrix(name="q_proj", parameter=nn.Parameter(torch.zeros(10, 4)), block_rows=4, parts=(4,))


def test_a_refused_step_changes_no_bit():
    parameter = nn.Parameter(torch.randn(6, 5, generator=torch.Generator().manual_seed(0)))
    muon = Muon(
        [Matrix(name="w", parameter=parameter, block_rows=6, parts=(6,))], momentum=0.95, weight_decay=0.1, compute_dtype=torch.float32
    )
    parameter.grad = torch.ones_like(parameter)
    muon.step(learning_rate=torch.tensor(0.1), accepted=torch.tensor(1.0))
    weights, momentum = parameter.detach().clone(), muon.tensors()["muon/w"].clone()
    parameter.grad = torch.zeros_like(parameter)
    muon.step(learning_rate=torch.tensor(0.0), accepted=torch.tensor(0.0))
    assert torch.equal(parameter, weights)
    assert torch.equal(muon.tensors()["muon/w"], momentum)


@pytest.mark.parametrize("world", [2, 3])
def test_sharded_updates_equal_the_unsharded_ones_bit_for_bit(world, tmp_path, run_script):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    alone = runpy.run_path(str(SCRIPT))["train"](None)
    torch.set_num_threads(threads)
    output = tmp_path / "weights.pt"
    assert run_script(SCRIPT, world, str(output)) == [0] * world
    sharded = torch.load(output)
    assert [name for name in alone if not torch.equal(alone[name], sharded[name])] == []


def test_owners_share_the_work_evenly():
    slots = [Slot((256, 256))] * 6 + [Slot((64, 256))] * 7 + [Slot((8, 8))] * 5
    load = [0, 0, 0]
    for slot, owner in zip(slots, owners(slots, 3), strict=True):
        load[owner] += slot.cost
    assert max(load) <= 1.2 * min(load)
