"""The decay signals against a brute force in double precision, and the alarms that must and must not ring."""

import math

import pytest
import torch

from samite_kernels.kda import decay_counts, log_decay_counts


def brute_force_lossy(decay: torch.Tensor, tile: int, shift: float | None) -> int:
    events = 0
    for start in range(0, decay.shape[1], tile):
        total = decay[0, start : start + tile].double().cumsum(0)
        for h in range(decay.shape[2]):
            for d in range(decay.shape[3]):
                column = total[:, h, d].tolist()
                anchor = 0.0 if shift is None else column[0] + shift
                for i, row in enumerate(column):
                    for other in column[: i + 1]:
                        lost = any(x < -87.3365 or x > 88.7228 for x in (row - anchor, anchor - other))
                        events += lost and row - other > -16.6
    return events


@pytest.mark.parametrize(("anchor", "shift"), [("first", 0.0), ("start", None), ("balanced", -37.5)])
@pytest.mark.parametrize("mean", [-2.0, -6.0, -7.0])
def test_lossy_flushes_equal_the_brute_force(anchor: str, shift: float | None, mean: float) -> None:
    decay = mean + torch.rand(1, 45, 2, 3, generator=torch.Generator().manual_seed(1))
    found = log_decay_counts(decay, torch.rand(1, 45, 2), anchor=anchor)  # type: ignore[arg-type]
    assert int(found.lossy_flush_events) == brute_force_lossy(decay, 16, shift)


def test_the_floor_rings_no_alarm_but_larger_tiles_and_no_bound_do() -> None:
    floor = torch.full((1, 64, 1, 4), -5.0)
    beta = torch.full((1, 64, 1), 0.5)
    counts = log_decay_counts(floor, beta)
    assert int(counts.lossy_flush_events) == 0
    assert float(counts.tile_span_max) == pytest.approx(75.0)
    assert float(log_decay_counts(floor, beta, anchor="start").tile_span_max) == pytest.approx(80.0)
    assert int(log_decay_counts(floor, beta, tile_size=64).lossy_flush_events) > 0
    unbounded = log_decay_counts(torch.full((1, 64, 1, 4), -6.5), beta)
    assert int(unbounded.lossy_flush_events) > 0
    assert float(unbounded.tile_margin) < 0


def test_counts_of_raw_inputs_equal_their_definitions() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, g = (torch.randn(1, 100, 3, 8, generator=generator) for _ in range(3))
    g = 6 * g
    beta = 8 * torch.randn(1, 100, 3, generator=generator)
    counts = decay_counts(q, k, g, beta, torch.zeros(3), torch.zeros(24))
    decay = -5 * g.sigmoid()
    assert int(counts.gate_sat_count) == int((decay <= -4.95).sum())
    assert int(counts.gate_open_count) == int((decay >= -1e-4).sum())
    assert int(counts.gate_total) == decay.numel()
    total = torch.stack([decay[0, :64].sum(0), decay[0, 64:].sum(0)])
    assert int(counts.chunk_total) == total.numel()
    assert int(counts.chunk_forget_counts["normal"]) == int((total < -87.34).sum())
    assert int(counts.memoryless_head_count) == int((total.mean(0) < math.log(1e-3)).all(-1).sum())
    assert int(counts.beta_sat_count) == int(((beta.sigmoid() < 1e-3) | (beta.sigmoid() > 0.999)).sum())
    assert int(counts.benign_total) == 2 * q.numel()
    assert 0 < int(counts.benign_flush_count) < q.numel()
    assert int(counts.nonfinite_operands) == 0
    g[0, 3, 1, 2] = math.nan
    assert int(decay_counts(q, k, g, beta, torch.zeros(3), torch.zeros(24)).nonfinite_operands) == 1
