"""A short run of the tiny preset: it learns, and only balancing brings its experts near the sampling floor."""

from dataclasses import replace
from statistics import fmean

import pytest
import torch

from samite_workloads.config import Balancing
from samite_workloads.model import quantile_balance
from samite_workloads.presets import TINY

STEPS = 16
LAST = slice(STEPS - 6, None)


def run(config, make_model, make_batch):
    """Losses per token and the last reports of a run on text with structure: each token is the one before plus one, mostly."""
    model = make_model(config)
    with torch.no_grad():
        for router in model.router_layers():
            router.weight.mul_(10.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, fused=False, foreach=True)
    losses, violations = [], []
    for step in range(STEPS):
        batch = make_batch(config, [250, 140, 110], grids=[(8, 8), (4, 4)], padding=12, seed=step)
        start = torch.randint(0, config.vocab_size, (1,), generator=torch.Generator().manual_seed(step))
        batch.tokens_T.copy_((start + torch.arange(512)) % config.vocab_size)
        batch.labels_T.copy_(torch.where(batch.labels_T == -100, -100, (batch.tokens_T + 1) % config.vocab_size))
        out = model(batch)
        count = out.num_supervised_by_modality.sum()
        optimizer.zero_grad()
        (out.loss_sum / count).backward()
        optimizer.step()
        report = quantile_balance(model)
        losses.append((out.loss_sum / count).item())
        violations.append((report.max_violation_L / report.sampling_floor_L).max().item())
    return losses, violations


@pytest.mark.timeout(240)
def test_the_loss_falls_and_quantile_balancing_holds_the_load_near_its_floor(make_model, make_batch):
    config = replace(TINY, vocab_size=64)
    losses, balanced = run(config, make_model, make_batch)
    _, free = run(replace(config, balancing=Balancing.NONE), make_model, make_batch)
    assert losses[0] > 4.0
    assert losses[-1] < 0.3 * losses[0]
    assert fmean(balanced[LAST]) < 1.4
    assert fmean(free[LAST]) > 1.8
