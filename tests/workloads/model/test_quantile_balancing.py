"""Quantile balancing: the histogram against the exact rule, and what must not change it."""

import math
from dataclasses import replace

import pytest
import torch

from samite_workloads.config import Balancing
from samite_workloads.model.balancing import margin_quantile, quantile_balance, updated_bias
from samite_workloads.model.router import Router, margin_range


@pytest.fixture
def build(nano):
    def router(experts=16, top_k=2, bins=1000, **changes):
        module = Router(replace(nano, num_experts=experts, experts_per_token=top_k, balancing_bins=bins, **changes))
        module.e_score_correction_bias.zero_()
        return module

    return router


def scores_of(tokens, experts, skew=1.5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    offsets = skew * torch.randn(experts, generator=generator)
    return torch.sigmoid(torch.randn(tokens, experts, generator=generator) + offsets)


def count(router, scores, padding=None):
    biased = (scores + router.e_score_correction_bias).topk(router.top_k + 1, -1)
    padding = torch.zeros(scores.shape[0], dtype=torch.bool) if padding is None else padding
    router.count(biased.values[:, -1:] - scores, biased.indices[:, :-1], padding)


def loads(scores, bias, top_k):
    return torch.bincount((scores + bias).topk(top_k, -1).indices.flatten(), minlength=scores.shape[1])


def violation(scores, bias, top_k):
    load = loads(scores, bias, top_k).double()
    return (load.max() / load.mean() - 1).item()


def exact_update(scores, bias, top_k):
    """K3 report: minus the (q+1)-th largest of s - alpha over the tokens, mean removed."""
    tokens, experts = scores.shape
    alpha = (scores + bias).topk(top_k + 1, -1).values[:, -1:]
    q = tokens * top_k // experts
    moved = -torch.sort(scores - alpha, 0, descending=True).values[q]
    return moved - moved.mean()


def update(router, rule=Balancing.QUANTILE, rate=1e-3):
    return updated_bias(router, router.counts_EB1, rule, rate)


def test_the_histogram_is_within_one_bin_of_the_exact_rule(build):
    for seed in range(5):
        router, scores = build(), scores_of(4096, 16, seed=seed)
        router.e_score_correction_bias.copy_(0.3 * torch.randn(16, generator=torch.Generator().manual_seed(seed)))
        count(router, scores)
        width = margin_range(router.e_score_correction_bias, 1000)[1].item()
        difference = update(router) - exact_update(scores, router.e_score_correction_bias, 2)
        assert difference.abs().max().item() <= width


def test_the_flipped_sign_fails_the_same_comparison(build):
    router, scores = build(), scores_of(4096, 16)
    count(router, scores)
    difference = -update(router) - exact_update(scores, router.e_score_correction_bias, 2)
    assert difference.abs().max().item() > 0.1


def test_one_update_balances_the_four_experts_of_eight_tokens(build):
    # Loads (4, 3, 1, 0) become (2, 2, 2, 2) on the same scores, as in the report's figure.
    scores = torch.tensor(
        [
            [0.87, 0.12, 0.71, 0.38],
            [0.73, 0.01, 0.02, 0.63],
            [0.56, 0.99, 0.66, 0.85],
            [0.20, 0.92, 0.79, 0.54],
            [0.63, 0.25, 0.20, 0.31],
            [0.44, 0.38, 0.01, 0.29],
            [0.56, 0.13, 0.91, 0.23],
            [0.85, 1.00, 0.59, 0.40],
        ]
    )
    router = build(experts=4, top_k=1, bins=100_000)
    assert loads(scores, router.e_score_correction_bias, 1).tolist() == [4, 3, 1, 0]
    count(router, scores)
    assert loads(scores, update(router), 1).tolist() == [2, 2, 2, 2]


@pytest.mark.parametrize("pieces", [2, 3, 8])
def test_shards_and_micro_batches_give_the_same_bits(build, pieces):
    scores = scores_of(1000, 16)
    whole = build()
    count(whole, scores)
    counts = torch.zeros_like(whole.counts_EB1)
    for piece in scores.chunk(pieces):
        shard = build()
        for micro in piece.chunk(3):
            count(shard, micro)
        counts += shard.counts_EB1
    assert torch.equal(counts, whole.counts_EB1)
    assert torch.equal(updated_bias(whole, counts, Balancing.QUANTILE, 0), update(whole))


def test_one_update_cuts_the_violation_of_a_skewed_router_five_times_and_the_wrong_sign_does_not(build):
    router, scores = build(experts=64, top_k=4), scores_of(8192, 64)
    count(router, scores)
    before = violation(scores, router.e_score_correction_bias, 4)
    assert violation(scores, update(router), 4) < before / 5
    assert violation(scores, -update(router), 4) > before / 5


def test_a_few_steps_reach_the_sampling_floor_where_the_sign_rule_does_not(build):
    experts, top_k, tokens = 128, 4, 4096
    floor = math.sqrt(2 * math.log(experts) / (tokens * top_k / experts))
    drawn = scores_of(7 * tokens, experts).split(tokens)
    found = {}
    for rule in (Balancing.QUANTILE, Balancing.SIGN):
        router = build(experts=experts, top_k=top_k)
        for step in range(6):
            scores = drawn[step]
            router.counts_EB1.zero_()
            count(router, scores)
            router.e_score_correction_bias.copy_(update(router, rule))
        found[rule] = violation(drawn[-1], router.e_score_correction_bias, top_k)
    # The bias carries the sampling noise of the step before, the load that of its own: together sqrt(2) of the floor, and some luck.
    assert found[Balancing.QUANTILE] < 2 * floor
    assert found[Balancing.SIGN] > 5 * floor


def test_a_balanced_router_is_a_fixed_point(build):
    router, scores = build(experts=64, top_k=4), scores_of(8192, 64)
    for _ in range(12):
        router.counts_EB1.zero_()
        count(router, scores)
        before = router.e_score_correction_bias.clone()
        router.e_score_correction_bias.copy_(update(router))
    width = margin_range(before, 1000)[1].item()
    assert (router.e_score_correction_bias - before).abs().max().item() < width


def test_a_constant_on_the_bias_does_not_move_the_next_one(build):
    router, scores = build(bins=100_000), scores_of(2048, 16)
    count(router, scores)
    shifted = build(bins=100_000)
    shifted.e_score_correction_bias += 0.25
    count(shifted, scores)
    assert torch.allclose(update(router), update(shifted), atol=5e-5)
    assert update(router).mean().abs().item() < 1e-6


def test_padding_does_not_count(build):
    router, padded, scores = build(), build(), scores_of(500, 16)
    count(router, scores[:300])
    count(padded, scores, padding=torch.arange(500) >= 300)
    assert torch.equal(router.counts_EB1, padded.counts_EB1)
    assert router.counts_EB1[:, -1].sum().item() == 600
    assert router.counts_EB1[:, :-1].sum(-1).tolist() == [300] * 16


def test_margins_at_both_ends_of_the_range_are_counted(build):
    router = build(experts=4, top_k=1, bins=10)
    scores = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]])
    count(router, scores)
    assert router.counts_EB1[:, :-1].sum().item() == 8


def test_the_quantile_is_linear_within_its_bin():
    histogram = torch.tensor([[0, 4, 4, 0], [8, 0, 0, 0], [0, 0, 0, 8]], dtype=torch.int32)
    found = margin_quantile(histogram, torch.tensor(2.0), torch.tensor(-1.0), torch.tensor(0.5))
    assert found.tolist() == [-0.25, -0.875, 0.625]


def test_without_tokens_nothing_moves(build):
    router = build()
    router.e_score_correction_bias.copy_(torch.linspace(-1, 1, 16))
    assert torch.equal(update(router), router.e_score_correction_bias)


def test_rules_other_than_quantile(build):
    router, scores = build(), scores_of(2048, 16)
    count(router, scores)
    load = router.counts_EB1[:, -1].double()
    assert torch.allclose(update(router, Balancing.SIGN, 0.01), 0.01 * torch.sign(load.mean() - load).float())
    assert torch.equal(update(router, Balancing.NONE), router.e_score_correction_bias)


def test_a_training_step_moves_every_bias_and_clears_the_counts(nano, make_model, make_batch):
    model = make_model(nano, spread=0.2)
    batches = [make_batch(nano, [40, 30], padding=10, seed=seed) for seed in range(2)]
    for batch in batches:
        model(batch).loss_sum.backward()
    before = [router.e_score_correction_bias.clone() for router in model.router_layers()]
    report = quantile_balance(model)
    assert report.loads_LE.shape == (8, nano.num_experts)
    assert report.loads_LE.sum(-1).tolist() == [2 * 70 * nano.experts_per_token] * 8
    load = report.loads_LE[0].double()
    assert report.max_violation_L[0].item() == pytest.approx((load.max() / load.mean() - 1).item())
    assert report.sampling_floor_L[0].item() == pytest.approx(math.sqrt(2 * math.log(8) / load.mean().item()))
    for router, old in zip(model.router_layers(), before, strict=True):
        assert not torch.equal(router.e_score_correction_bias, old)
        assert router.counts_EB1.abs().max() == 0


@pytest.mark.parametrize("apply", [False, torch.tensor(False)])
def test_a_skipped_step_keeps_the_bias_and_forgets_the_counts(nano, make_model, make_batch, apply):
    model = make_model(nano, spread=0.2)
    model(make_batch(nano, [40]))
    before = [router.e_score_correction_bias.clone() for router in model.router_layers()]
    quantile_balance(model, apply=apply)
    for router, old in zip(model.router_layers(), before, strict=True):
        assert torch.equal(router.e_score_correction_bias, old)
        assert router.counts_EB1.abs().max() == 0


def test_evaluation_leaves_counts_and_bias_untouched(nano, make_model, make_batch):
    model = make_model(nano, spread=0.2).eval()
    before = [router.e_score_correction_bias.clone() for router in model.router_layers()]
    with torch.no_grad():
        model(make_batch(nano, [40]))
    assert all(router.counts_EB1.abs().max() == 0 for router in model.router_layers())
    quantile_balance(model)
    assert all(torch.equal(router.e_score_correction_bias, old) for router, old in zip(model.router_layers(), before, strict=True))


def test_a_checkpoint_of_the_bias_reproduces_the_next_one_bit_for_bit(nano, make_model, make_batch):
    model, again = make_model(nano, spread=0.2), make_model(nano, seed=1)
    again.load_state_dict(model.state_dict())
    assert not any("counts" in name for name in model.state_dict())
    for twin in (model, again):
        twin(make_batch(nano, [40, 24]))
        quantile_balance(twin)
    for mine, theirs in zip(model.router_layers(), again.router_layers(), strict=True):
        assert torch.equal(mine.e_score_correction_bias, theirs.e_score_correction_bias)


@pytest.mark.parametrize("micro_batches", [1, 3])
def test_recomputation_counts_every_token_once(nano, make_model, make_batch, micro_batches):
    plain = make_model(nano, spread=0.1)
    recomputing = make_model(replace(nano, recompute_layers=True), spread=0.1)
    for seed in range(micro_batches):
        for model in (plain, recomputing):
            model(make_batch(nano, [20, 13], padding=3, seed=seed)).loss_sum.backward()
    reports = [quantile_balance(model) for model in (plain, recomputing)]
    assert torch.equal(reports[0].loads_LE, reports[1].loads_LE)
    for mine, theirs in zip(plain.router_layers(), recomputing.router_layers(), strict=True):
        assert torch.equal(mine.e_score_correction_bias, theirs.e_score_correction_bias)
    for mine, theirs in zip(plain.parameters(), recomputing.parameters(), strict=True):
        assert (mine.grad is None and theirs.grad is None) or torch.equal(mine.grad, theirs.grad)


def test_a_model_without_experts_reports_nothing(nano, make_model, make_batch):
    model = make_model(replace(nano, num_layers=2, num_dense_layers=2))
    model(make_batch(nano, [10]))
    assert quantile_balance(model).loads_LE.numel() == 0
