"""Signals of sampled forward passes."""

import math
from dataclasses import fields, replace

import pytest
import torch


def test_sampling_fills_every_kda_and_moe_layer_once(nano, make_model, make_batch):
    model, batch = make_model(nano, spread=0.1), make_batch(nano, [30, 20], padding=6)
    with model.sampling():
        model(batch)
    samples = model.take_samples()
    assert sorted(samples.decay) == [0, 1, 2, 4, 5, 6]
    assert sorted(samples.router) == list(range(1, 9))
    assert list(samples.activation) == list(range(len(model.layers)))
    assert all(0.0 < amax.item() < 1e4 for amax in samples.activation.values())
    counts = samples.decay[0]
    assert counts.gate_total.item() == 56 * nano.kda_width
    assert counts.lossy_flush_events.item() == 0
    assert counts.tile_margin.item() >= 8.72
    assert not model.take_samples().decay


def test_a_layer_that_gives_on_what_is_not_finite_is_the_one_that_shows_it(nano, make_model, make_batch):
    model = make_model(nano, spread=0.1)
    with torch.no_grad():
        model.layers[3].post_attention_layernorm.weight[0] = math.nan
    with model.sampling():
        model(make_batch(nano, [20]))
    activation = model.take_samples().activation
    assert [math.isfinite(activation[layer].item()) for layer in range(4)] == [True, True, True, False]


def test_nothing_is_sampled_outside_the_block(nano, make_model, make_batch):
    model = make_model(nano)
    with model.sampling():
        pass
    model(make_batch(nano, [20]))
    samples = model.take_samples()
    assert not samples.decay
    assert not samples.router
    assert not samples.activation


def test_a_gate_at_its_floor_is_seen(nano, make_model, make_batch):
    model = make_model(nano)
    with torch.no_grad():
        model.layers[1].self_attn.core.dt_bias.fill_(50.0)
    with model.sampling():
        model(make_batch(nano, [40]))
    decay = model.take_samples().decay
    assert decay[1].gate_sat_count.item() == decay[1].gate_total.item()
    assert decay[0].gate_sat_count.item() == 0


def test_entropy_and_largest_logit_leave_padding_out(nano, make_model, make_batch):
    model, batch = make_model(nano, spread=0.1), make_batch(nano, [30], padding=10)
    seen = []
    router = next(iter(model.router_layers()))
    router.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    with model.sampling():
        model(batch)
    sample = model.take_samples().router[1]
    logits = (seen[0] @ router.weight.T)[:30]
    share = torch.sigmoid(logits) / torch.sigmoid(logits).sum(-1, keepdim=True)
    assert sample.entropy.item() == pytest.approx(-(share * share.log()).sum(-1).mean().item(), rel=1e-5)
    assert sample.logit_max.item() == pytest.approx(logits.abs().max().item(), rel=1e-6)
    assert 0 < sample.entropy.item() <= math.log(nano.num_experts)


def test_sampling_changes_neither_loss_nor_gradients(nano, make_model, make_batch):
    batch, plain, sampled = make_batch(nano, [25]), make_model(nano), make_model(nano)
    plain(batch).loss_sum.backward()
    with sampled.sampling():
        out = sampled(batch)
    out.loss_sum.backward()
    for mine, theirs in zip(plain.parameters(), sampled.parameters(), strict=True):
        assert (mine.grad is None and theirs.grad is None) or torch.equal(mine.grad, theirs.grad)


def test_recomputation_does_not_sample_again(nano, make_model, make_batch):
    model = make_model(replace(nano, recompute_layers=True))
    with model.sampling():
        out = model(make_batch(nano, [25]))
        first = model.take_samples()
        out.loss_sum.backward()
    assert len(first.decay) == 6
    assert not model.take_samples().decay


def test_samples_are_tensors_on_the_device_and_need_no_synchronisation(nano, make_model, make_batch):
    model = make_model(nano)
    with model.sampling():
        model(make_batch(nano, [25]))
    counts = model.take_samples().decay[0]
    for field in fields(counts):
        value = getattr(counts, field.name)
        assert all(torch.is_tensor(v) and v.dim() == 0 for v in (value.values() if isinstance(value, dict) else [value])), field.name
