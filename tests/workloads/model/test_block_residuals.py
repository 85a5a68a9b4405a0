"""Block attention residuals: the reader against its formula, the two-phase form, and the layer loop."""

from dataclasses import replace
from math import ceil

import pytest
import torch

from samite_workloads.model.residual import AttentionResidual, source
from samite_workloads.presets import K3

EPS = 1e-5


@pytest.fixture
def reader():
    def build(width=24, seed=0):
        generator = torch.Generator().manual_seed(seed)
        module = AttentionResidual(width, EPS).double()
        with torch.no_grad():
            module.norm.copy_(1.0 + 0.3 * torch.randn(width, generator=generator, dtype=torch.float64))
            module.proj.copy_(torch.randn(1, width, generator=generator, dtype=torch.float64))
        return module

    return build


def values(count, tokens=10, width=24, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(tokens, width, generator=generator, dtype=torch.float64).mul(1 + i).requires_grad_() for i in range(count)]


def read(module, sources):
    return module([source(v, EPS) for v in sources[:-1]], sources[-1])


def test_a_zero_query_gives_the_plain_mean(reader):
    module, sources = reader(), values(4)
    with torch.no_grad():
        module.proj.zero_()
    assert torch.allclose(read(module, sources), torch.stack(sources).mean(0), atol=1e-12)


def test_a_single_source_is_passed_through(reader):
    sources = values(1)
    assert torch.equal(read(reader(), sources), sources[0])


@pytest.mark.parametrize("count", [1, 2, 5, 9])
def test_the_reader_and_its_gradients_equal_the_formula(reader, oracle, relative, count):
    module, sources, twins = reader(), values(count), values(count)
    pull = values(1, seed=7)[0].detach()
    (read(module, sources) * pull).sum().backward()
    weights = {
        "r_proj.weight": module.proj.detach().clone().requires_grad_(),
        "r_norm.weight": module.norm.detach().clone().requires_grad_(),
    }
    wanted = oracle.attention_residual(twins, weights, "r")
    (wanted * pull).sum().backward()
    assert relative(read(module, sources).detach(), wanted.detach()) < 1e-12
    for mine, theirs in zip(sources, twins, strict=True):
        assert relative(mine.grad, theirs.grad) < 1e-10
    if count > 1:
        assert relative(module.proj.grad, weights["r_proj.weight"].grad) < 1e-10
        assert relative(module.norm.grad, weights["r_norm.weight"].grad) < 1e-10


def test_two_phases_with_an_online_softmax_give_the_same_mixture(reader, relative):
    module, sources = reader(), [v.detach() for v in values(6)]
    fused = module.proj[0] * module.norm
    *frozen, partial = sources
    scores = torch.stack([(v * torch.rsqrt(v.square().mean(-1, keepdim=True) + EPS)) @ fused for v in frozen])
    peak = scores.amax(0)
    total, mass = (torch.exp(scores - peak)[..., None] * torch.stack(frozen)).sum(0), torch.exp(scores - peak).sum(0)
    last = (partial * torch.rsqrt(partial.square().mean(-1, keepdim=True) + EPS)) @ fused
    top = torch.maximum(peak, last)
    merged = torch.exp(peak - top)[:, None] * total + torch.exp(last - top)[:, None] * partial
    merged = merged / (torch.exp(peak - top) * mass + torch.exp(last - top))[:, None]
    assert relative(read(module, sources), merged) < 1e-6


def test_bfloat16_sources_are_mixed_in_float32(reader, relative):
    module, sources = reader().float(), [v.detach().bfloat16() for v in values(5)]
    exact = read(reader(), [v.double() for v in sources])
    found = read(module, sources)
    assert found.dtype == torch.bfloat16
    assert relative(found, exact) < 4e-3


def test_sublayers_reach_every_earlier_block(nano, make_model, make_batch):
    model = make_model(nano, dtype=torch.float64, spread=0.05)
    seen = []

    def keep(_, inputs):
        seen.append(inputs)
        for value in inputs:
            if torch.is_tensor(value) and value.requires_grad:
                value.retain_grad()

    for layer in model.layers:
        layer.register_forward_pre_hook(keep)
    model(make_batch(nano, [12, 8])).loss_sum.backward()
    blocks = seen[-1][2:]
    frozen = blocks[: len(blocks) // 2]
    assert len(frozen) == 4
    assert all(block.grad.norm() > 0 for block in frozen)


def test_stored_rows_before_each_layer_of_k3_follow_the_table():
    stored = 0
    for layer in range(K3.num_layers):
        assert stored == ceil(layer / 12)
        stored += K3.starts_block(layer)
    assert stored == 8
    assert [layer for layer in range(93) if K3.starts_block(layer)] == [0, 12, 24, 36, 48, 60, 72, 84]


def test_the_first_block_is_the_embedding_alone(nano, make_model, make_batch):
    model = make_model(replace(nano, num_layers=2), dtype=torch.float64)
    seen = []
    model.layers[1].register_forward_pre_hook(lambda _, inputs: seen.append(inputs))
    batch = make_batch(nano, [10])
    model(batch)
    assert torch.equal(seen[0][2], model.embed_tokens.weight[batch.tokens_T])
    assert not torch.equal(seen[0][0], seen[0][2])
