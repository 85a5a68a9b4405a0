"""Gated MLA without positions against a loop over tokens and heads."""

import pytest
import torch

from samite_workloads.model.attention import document_attention
from samite_workloads.model.mla import MlaAttention
from samite_workloads.model.row import RowLayout

LENGTHS = [1, 9, 0, 9, 9, 21]


@pytest.fixture
def layer(nano):
    generator = torch.Generator().manual_seed(0)
    module = MlaAttention(nano).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.4 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return module


@pytest.fixture
def sizes(nano):
    return {"nope": nano.mla_nope_head_dim, "rope": nano.mla_rope_head_dim, "value": nano.mla_v_head_dim}


def row_of(lengths):
    cu_seqlens = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)
    padding = torch.zeros(sum(lengths), dtype=torch.bool)
    return RowLayout(offsets=tuple(cu_seqlens.tolist()), cu_seqlens_host=cu_seqlens, cu_seqlens=cu_seqlens, is_padding_T=padding)


def tokens(nano, count, seed=0):
    return torch.randn(count, nano.hidden_size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def weights_of(module):
    return {name: value.detach().double().requires_grad_() for name, value in module.named_parameters()}


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_the_layer_equals_the_loop_within_documents(nano, layer, sizes, oracle, relative, dtype, bound):
    x = tokens(nano, sum(LENGTHS))
    found = layer.to(dtype)(x.to(dtype), row_of(LENGTHS))
    wanted = torch.cat([oracle.mla(part, weights_of(layer), "", **sizes) for part in x.split([n for n in LENGTHS if n])])
    assert relative(found, wanted) < bound


def test_gradients_equal_those_of_the_loop(nano, layer, sizes, oracle, relative):
    x, pull = tokens(nano, 30), tokens(nano, 30, seed=1)
    (layer(x, row_of([13, 17])) * pull).sum().backward()
    weights = weights_of(layer)
    (torch.cat([oracle.mla(part, weights, "", **sizes) for part in x.split([13, 17])]) * pull).sum().backward()
    for name, parameter in layer.named_parameters():
        assert relative(parameter.grad, weights[name].grad) < 1e-10, name


@pytest.mark.parametrize("mutation", [{"scale": 16**-0.5}, {"drop_shared_key": True}, {"eps": 1e-2}], ids=["scale", "shared key", "eps"])
def test_a_wrong_attention_does_not_pass(nano, layer, sizes, oracle, relative, mutation):
    x = tokens(nano, 20)
    assert relative(layer(x, row_of([20])), oracle.mla(x, weights_of(layer), "", **sizes, **mutation)) > 1e-4


def test_the_latent_norms_have_their_own_epsilon(nano, layer):
    assert layer.q_a_layernorm.eps == layer.kv_a_layernorm.eps == nano.mla_norm_eps == 1e-6


def test_the_last_token_does_not_care_about_the_order_of_the_others(nano, layer, relative):
    x = tokens(nano, 16)
    shuffled = torch.cat([x[torch.randperm(15, generator=torch.Generator().manual_seed(2))], x[15:]])
    assert relative(layer(shuffled, row_of([16]))[-1], layer(x, row_of([16]))[-1]) < 1e-12


def test_the_absorbed_form_of_decoding_gives_the_same_output(nano, layer, sizes, relative):
    x, last = tokens(nano, 12), 11
    nope, value, heads = sizes["nope"], sizes["value"], nano.mla_num_heads
    w = weights_of(layer)
    compressed = x @ w["kv_a_proj_with_mqa.weight"].T
    latent = layer.kv_a_layernorm(compressed[:, : nano.mla_kv_lora_rank])
    cache = torch.cat([latent, compressed[:, nano.mla_kv_lora_rank :]], -1)
    up = w["kv_b_proj.weight"].view(heads, nope + value, -1)
    q = layer.q_b_proj(layer.q_a_layernorm(layer.q_a_proj(x[last]))).view(heads, -1)
    absorbed = torch.cat([torch.einsum("hn,hnc->hc", q[:, :nope], up[:, :nope]), q[:, nope:]], -1)
    shares = torch.softmax((nope + sizes["rope"]) ** -0.5 * absorbed @ cache.T, -1)
    mixed = torch.einsum("hc,hvc->hv", shares @ latent, up[:, nope:])
    out = (mixed.flatten() * torch.sigmoid(x[last] @ w["g_proj.weight"].T)) @ w["o_proj.weight"].T
    assert relative(layer(x, row_of([12]))[last], out) < 1e-10


def test_the_future_and_other_documents_do_not_reach_an_output(nano, layer):
    x, row = tokens(nano, 30), row_of([12, 18])
    before = layer(x, row)
    edited = x.clone()
    edited[20:] += 1.0
    edited[:12] -= 1.0
    assert torch.equal(before[12:20], layer(edited, row)[12:20])


def test_values_wider_than_keys_are_possible():
    q, k, v = torch.randn(3, 6, 2, 4, dtype=torch.float64)[..., :4].unbind(0)
    wide = torch.cat([v, v, v], -1)
    attended = document_attention(q, k, wide, offsets=(0, 6), cu_seqlens=torch.tensor([0, 6], dtype=torch.int32), causal=True)
    narrow = document_attention(q, k, v, offsets=(0, 6), cu_seqlens=torch.tensor([0, 6], dtype=torch.int32), causal=True)
    assert torch.allclose(attended, torch.cat([narrow] * 3, -1), atol=1e-12)
