"""Expert load is judged against chance; only a real collapse is reported."""

import math

import pytest
import torch

from samite_workloads.signals.router import CollapseRule, RouterSignals, router_signals


def balanced_loads(num_experts: int, tokens_per_expert: int, seed: int) -> tuple[int, ...]:
    choices = torch.randint(num_experts, (num_experts * tokens_per_expert,), generator=torch.Generator().manual_seed(seed))
    return tuple(torch.bincount(choices, minlength=num_experts).tolist())


def test_maxvio_is_the_largest_load_over_the_mean_minus_one():
    signals = RouterSignals(layer=1, loads=(10, 20, 30, 20))
    assert signals.maxvio == pytest.approx(0.5)
    assert signals.maxvio_floor == pytest.approx(math.sqrt(2 * math.log(4) / 20))
    assert signals.load_cv == pytest.approx(math.sqrt(50) / 20)
    assert signals.idle == 0


@pytest.mark.parametrize(("num_experts", "tokens_per_expert"), [(8, 64), (64, 256), (896, 512)])
def test_a_balanced_router_lies_near_its_floor(num_experts: int, tokens_per_expert: int):
    signals = RouterSignals(layer=0, loads=balanced_loads(num_experts, tokens_per_expert, seed=0))
    assert 0.3 < signals.maxvio / signals.maxvio_floor < 1.5


def test_a_step_without_tokens_has_no_violation():
    signals = RouterSignals(layer=0, loads=(0, 0, 0))
    assert (signals.maxvio, signals.maxvio_floor, signals.load_cv) == (0.0, 0.0, 0.0)
    assert CollapseRule(samples=1).update([signals]) == []


def test_a_collapse_is_reported_once_after_enough_samples_and_again_after_recovery():
    rule = CollapseRule(samples=3)
    bad = RouterSignals(layer=2, loads=(1000, 0, 0, 0))
    good = RouterSignals(layer=2, loads=(250, 250, 250, 250))
    history = [bool(rule.update([state])) for state in (bad, bad, bad, bad, good, bad, bad, bad)]
    assert history == [False, False, True, False, False, False, False, True]


@pytest.mark.parametrize(("num_experts", "tokens_per_expert"), [(8, 4), (64, 2), (896, 4), (896, 16)])
def test_small_batches_of_a_balanced_router_are_no_collapse(num_experts: int, tokens_per_expert: int):
    rule = CollapseRule(samples=2)
    states = [RouterSignals(layer=0, loads=balanced_loads(num_experts, tokens_per_expert, seed)) for seed in range(50)]
    assert [found for state in states for found in rule.update([state])] == []


def test_idle_experts_beyond_chance_are_a_collapse():
    rule = CollapseRule(samples=1)
    loads = (0, 0, *balanced_loads(62, 100, seed=1))
    (found,) = rule.update([RouterSignals(layer=5, loads=loads)])
    assert found.attributes()["experts_idle"] == 2


def test_rows_are_named_by_their_layer_and_entropy_comes_on_sampled_steps_only():
    plain = router_signals([[1, 2], [3, 4]], [1, 3])
    sampled = router_signals([[1, 2], [3, 4]], [1, 3], entropy=[0.5, 0.6], logit_max=[2.0, 3.0])
    assert [s.layer for s in plain] == [1, 3]
    assert all(point.name != "samite.moe.router.entropy" for s in plain for point in s.points())
    assert [(s.entropy, s.logit_max) for s in sampled] == [(0.5, 2.0), (0.6, 3.0)]
