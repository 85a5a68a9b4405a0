"""The KDA layer against the recurrence in float64, written out token by token, and its invariants."""

from dataclasses import replace

import pytest
import torch

from samite_workloads.model.kda import KdaAttention
from samite_workloads.model.row import RowLayout

LENGTHS = [1, 15, 0, 16, 17, 70]
CHANNELS = {"q": "q_conv", "k": "k_conv", "v": "v_conv"}


@pytest.fixture
def build(nano):
    """layer(gate=..., dtype=..., seed=...): a layer with random weights whose decays are of one family."""

    def layer(*, gate="mixed", dtype=torch.float64, seed=0):
        generator = torch.Generator().manual_seed(seed)
        module = KdaAttention(nano).double()
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                parameter.copy_(1.0 + 0.1 * noise if name.endswith("o_norm") else 0.4 * noise)
            module.core.A_log.zero_()
            if gate == "mixed":
                module.core.dt_bias.mul_(7.0)
            elif gate == "floor":
                module.core.dt_bias.fill_(40.0)
            elif gate == "near zero":
                module.core.dt_bias.fill_(-10.8)
        return module.to(dtype)

    return layer


def weights_of(module):
    """Released names without a prefix, in float64."""
    named = {name: value.detach().double() for name, value in module.named_parameters()}
    named |= {f"{letter}_conv1d.weight": named.pop(f"core.{conv}") for letter, conv in CHANNELS.items()}
    return named | {"A_log": named["core.A_log"], "dt_bias": named["core.dt_bias"], "o_norm.weight": named["core.o_norm"]}


def row_of(lengths):
    cu_seqlens = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)
    padding = torch.zeros(sum(lengths), dtype=torch.bool)
    return RowLayout(offsets=tuple(cu_seqlens.tolist()), cu_seqlens_host=cu_seqlens, cu_seqlens=cu_seqlens, is_padding_T=padding)


def tokens(nano, count, seed=0):
    return torch.randn(count, nano.hidden_size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def documents(function, x, lengths):
    return torch.cat([function(part) for part in x.split([n for n in lengths if n])])


@pytest.mark.parametrize("gate", ["mixed", "init", "floor", "near zero"])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-11), (torch.float32, 1e-5)])
def test_the_layer_equals_the_recurrence_at_lengths_that_do_not_divide(nano, build, oracle, relative, gate, dtype, bound):
    module, x = build(gate=gate, dtype=dtype), tokens(nano, sum(LENGTHS))
    found = module(x.to(dtype), row_of(LENGTHS))
    wanted = documents(lambda part: oracle.kda(part, weights_of(module), ""), x, LENGTHS)
    assert relative(found, wanted) < bound


@pytest.mark.parametrize(
    "mutation",
    [
        {"decay_sign": -1.0},
        {"lower_bound": -4.0},
        {"scale": 1.0, "eps": 1e-2},
        {"read_first": True},
        {"decay_last": True},
        {"beta_scale": 2.0},
    ],
    ids=lambda mutation: next(iter(mutation)),
)
def test_a_wrong_recurrence_does_not_pass(nano, build, oracle, relative, mutation):
    module, x = build(), tokens(nano, 40)
    wanted = oracle.kda(x, weights_of(module), "", **mutation)
    assert not relative(module(x, row_of([40])), wanted) < 1e-4


def test_the_query_scale_is_not_inert(nano, build, oracle, relative):
    module, x = build(), tokens(nano, 40)
    assert relative(module(x, row_of([40])), oracle.kda(x, weights_of(module), "", scale=1.0)) > 1e-9


def test_every_gradient_equals_that_of_the_recurrence(nano, build, oracle, relative):
    module, x = build(), tokens(nano, 37)
    pull = tokens(nano, 37, seed=3)
    mine = x.clone().requires_grad_()
    (module(mine, row_of([20, 17])) * pull).sum().backward()
    theirs, weights = x.clone().requires_grad_(), {name: value.requires_grad_() for name, value in weights_of(module).items()}
    (documents(lambda part: oracle.kda(part, weights, ""), theirs, [20, 17]) * pull).sum().backward()
    assert relative(mine.grad, theirs.grad) < 1e-10
    names = {f"core.{conv}": f"{letter}_conv1d.weight" for letter, conv in CHANNELS.items()}
    names |= {"core.A_log": "A_log", "core.dt_bias": "dt_bias", "core.o_norm": "o_norm.weight"}
    for name, parameter in module.named_parameters():
        assert relative(parameter.grad, weights[names.get(name, name)].grad) < 1e-9, name


def test_later_tokens_and_other_documents_do_not_reach_an_output(nano, build):
    module, x = build(dtype=torch.float32), tokens(nano, 80).float()
    row = row_of([30, 50])
    before = module(x, row)
    edited = x.clone()
    edited[51:] += 1.0
    after = module(edited, row)
    assert torch.equal(before[:51], after[:51])
    edited = x.clone()
    edited[:30] += 1.0
    assert torch.allclose(before[30:], module(edited, row)[30:], atol=0, rtol=1e-5)


def test_floor_gates_stay_finite_forward_and_backward(nano, build):
    for seed in range(30):
        module = build(gate="floor", dtype=torch.float32, seed=seed)
        x = (30.0 * tokens(nano, 70, seed=seed).float()).requires_grad_()
        out = module(x, row_of([70]))
        (out * 1e3).sum().backward()
        assert torch.isfinite(out).all()
        assert torch.isfinite(x.grad).all()
        assert all(torch.isfinite(parameter.grad).all() for parameter in module.parameters())


def test_without_writes_nothing_is_read(nano, build):
    module = build()
    with torch.no_grad():
        module.b_proj.weight.zero_()
    original, row = module.core.forward, row_of([20])
    silent = original(*(torch.randn(20, n, dtype=torch.float64) for n in (96, 32)), torch.full((20, 2), -1e4), torch.ones(20, 32), row)
    assert silent.abs().max() == 0.0


def test_decay_parameters_start_as_the_report_says(nano, make_model):
    model = make_model(nano)
    cores = [layer.self_attn.core for layer in model.layers if isinstance(layer.self_attn, KdaAttention)]
    assert len(cores) == 6
    for core in cores:
        assert core.A_log.abs().max() == 0.0
        assert torch.equal(core.o_norm, torch.ones(16))
        decay = nano.kda_lower_bound * torch.sigmoid(core.dt_bias)
        assert -0.48 < decay.min().item() < decay.max().item() < -0.0049
        assert 0.4 < core.q_conv.abs().max().item() <= 0.5


def test_islands_stay_in_float32_when_the_model_is_cast(nano, make_model):
    model = make_model(nano, spread=0.1)
    before = {f"{i}.{name}": value.clone() for i, island in enumerate(model.float32_islands()) for name, value in island.named_parameters()}
    biases = [router.e_score_correction_bias.clone() for router in model.router_layers()]
    model.to(torch.bfloat16)
    assert model.layers[0].self_attn.q_proj.weight.dtype == torch.bfloat16
    for i, island in enumerate(model.float32_islands()):
        for name, value in island.named_parameters():
            assert torch.equal(value, before[f"{i}.{name}"])
            assert value.dtype == torch.float32
    assert all(torch.equal(router.e_score_correction_bias, bias) for router, bias in zip(model.router_layers(), biases, strict=True))


def test_the_lower_bound_reaches_the_layer(nano, build, oracle, relative):
    x = tokens(nano, 24)
    module = build()
    softer = KdaAttention(replace(nano, kda_lower_bound=-2.0)).double()
    softer.load_state_dict(module.state_dict())
    assert relative(softer(x, row_of([24])), oracle.kda(x, weights_of(module), "", lower_bound=-2.0)) < 1e-11
