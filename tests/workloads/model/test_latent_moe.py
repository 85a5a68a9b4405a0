"""The latent mixture of experts against a loop over tokens and experts, and the promises about routing, padding and repeats."""

from dataclasses import replace

import pytest
import torch

from samite_workloads.model.experts import dispatch, mix_experts
from samite_workloads.model.grouped import grouped_product, grouped_weight_gradient
from samite_workloads.model.moe import LatentMoe
from samite_workloads.model.row import RowLayout


def row_of(total, padding=0):
    is_padding = torch.arange(total) >= total - padding
    cu_seqlens = torch.tensor([0, total], dtype=torch.int32)
    return RowLayout(offsets=(0, total), cu_seqlens_host=cu_seqlens, cu_seqlens=cu_seqlens, is_padding_T=is_padding)


@pytest.fixture
def build(nano):
    def layer(*, dtype=torch.float64, seed=0, **changes):
        generator = torch.Generator().manual_seed(seed)
        module = LatentMoe(replace(nano, **changes), 1).double()
        with torch.no_grad():
            for tensor in [*module.parameters(), module.gate.e_score_correction_bias]:
                tensor.copy_(0.4 * torch.randn(tensor.shape, generator=generator, dtype=torch.float64))
        return module.float().to(dtype) if dtype != torch.float64 else module

    return layer


def weights_of(module):
    named = {name: value.detach().double() for name, value in module.named_parameters()}
    named["gate.e_score_correction_bias"] = module.gate.e_score_correction_bias.double()
    gate_up, down = named.pop("experts.gate_up"), named.pop("experts.down")
    for e in range(down.shape[0]):
        named |= {f"experts.{e}.w1.weight": gate_up[e, 0], f"experts.{e}.w3.weight": gate_up[e, 1], f"experts.{e}.w2.weight": down[e]}
    return named


def tokens(nano, count, seed=0):
    return torch.randn(count, nano.hidden_size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_the_layer_equals_a_dense_loop_over_experts(nano, build, oracle, relative, dtype, bound):
    module, x = build(dtype=dtype), tokens(nano, 50)
    found = module(x.to(dtype), row_of(50, padding=7))
    wanted, _ = oracle.moe(x, weights_of(module), "", top_k=2, padding=row_of(50, padding=7).is_padding_T)
    assert relative(found, wanted) < bound


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-10), (torch.float32, 2e-5)])
def test_gradients_equal_those_of_the_loop(nano, build, oracle, relative, dtype, bound):
    module, x, pull = build(dtype=dtype), tokens(nano, 30), tokens(nano, 30, seed=9)
    mine = x.to(dtype, copy=True).requires_grad_()
    (module(mine, row_of(30, padding=4)) * pull.to(dtype)).sum().backward()
    theirs, weights = x.clone().requires_grad_(), {name: v.detach().clone().requires_grad_() for name, v in weights_of(module).items()}
    wanted, _ = oracle.moe(theirs, weights, "", top_k=2, padding=row_of(30, padding=4).is_padding_T)
    (wanted * pull).sum().backward()
    assert relative(mine.grad, theirs.grad) < bound
    for e in range(nano.num_experts):
        for side, letter in enumerate(("w1", "w3")):
            assert relative(module.experts.gate_up.grad[e, side], weights[f"experts.{e}.{letter}.weight"].grad) < bound
        assert relative(module.experts.down.grad[e], weights[f"experts.{e}.w2.weight"].grad) < bound
    for name in ("gate", "routed_expert_down_proj", "routed_expert_norm", "routed_expert_up_proj", "shared_experts.down_proj"):
        assert relative(module.get_parameter(f"{name}.weight").grad, weights[f"{name}.weight"].grad) < bound, name


def test_the_bias_moves_the_choice_and_never_the_weight(nano, build):
    module, x, row = build(), tokens(nano, 40), row_of(40)
    free = module.gate(x, row.is_padding_T)
    module.gate.e_score_correction_bias[3] += 10.0
    pushed = module.gate(x, row.is_padding_T)
    assert (pushed.chosen_TK == 3).any(-1).all()
    scores = torch.sigmoid(x @ module.gate.weight.T)
    assert torch.allclose(pushed.weight_TK, scores.gather(1, pushed.chosen_TK) / scores.gather(1, pushed.chosen_TK).sum(-1, keepdim=True))
    unmoved = (free.chosen_TK == pushed.chosen_TK).all(-1)
    assert torch.equal(free.weight_TK[unmoved], pushed.weight_TK[unmoved])


def test_a_constant_on_the_bias_changes_nothing(nano, build):
    module, x, row = build(), tokens(nano, 40), row_of(40)
    before = module(x, row)
    module.gate.e_score_correction_bias += 0.25
    assert torch.equal(before, module(x, row))


def test_scaling_all_expert_outputs_leaves_the_layer_unchanged(nano, build, relative):
    module, x, row = build(), tokens(nano, 40), row_of(40)
    before = module(x, row)
    with torch.no_grad():
        module.experts.down.mul_(1000.0)
    assert relative(module(x, row), before) < 1e-3
    assert relative(module(x, row), before) > 0.0


def test_no_token_is_dropped_even_when_all_want_one_expert(nano, build, oracle, relative):
    module, x = build(), tokens(nano, 60)
    module.gate.e_score_correction_bias.copy_(torch.tensor([50.0, 40.0] + [0.0] * 6))
    found = module(x, row_of(60))
    assert module.gate.counts_EB1[:, -1].tolist() == [60, 60, 0, 0, 0, 0, 0, 0]
    wanted, _ = oracle.moe(x, weights_of(module), "", top_k=2)
    assert relative(found, wanted) < 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_poisoned_memory_never_reaches_outputs_or_gradients(nano, build, dtype):
    module = build(dtype=dtype)
    # Experts 4 and later get no token: their gradients must be zero, not what the memory held; padding rows are never computed.
    module.gate.e_score_correction_bias.copy_(torch.tensor([9.0] * 4 + [0.0] * 4))
    for repeat in range(20):
        poison = [torch.full((size,), float("nan"), dtype=dtype) for size in (768, 1536, 3072, 6144, 12288) for _ in range(8)]
        del poison
        module.zero_grad()
        x = tokens(nano, 64, seed=repeat).to(dtype).requires_grad_()
        out = module(x, row_of(64, padding=30))
        out.float().sum().backward()
        assert torch.isfinite(out).all()
        assert torch.isfinite(x.grad).all()
        assert all(torch.isfinite(parameter.grad).all() for parameter in module.parameters())
        assert module.experts.down.grad[4:].abs().max() == 0
        assert module.experts.gate_up.grad[4:].abs().max() == 0


def test_forty_repeats_give_the_same_bits(nano, build):
    module, x, row = build(dtype=torch.float32), tokens(nano, 200).float(), row_of(200)

    def once():
        module.zero_grad()
        leaf = x.clone().requires_grad_()
        out = module(leaf, row)
        out.square().sum().backward()
        return [out.detach(), leaf.grad, *(parameter.grad.clone() for parameter in module.parameters())]

    first = once()
    assert all(all(torch.equal(a, b) for a, b in zip(first, once(), strict=True)) for _ in range(40))


def test_the_router_computes_in_float32_under_a_bfloat16_model(nano, build):
    module = build(dtype=torch.bfloat16)
    assert module.gate.weight.dtype == torch.float32
    x = tokens(nano, 400).bfloat16()
    _, weight_TK = module.gate(x, row_of(400).is_padding_T)
    assert weight_TK.dtype == torch.float32
    scores = torch.sigmoid(x.float() @ module.gate.weight.T)
    chosen = (scores + module.gate.e_score_correction_bias).topk(2, -1).indices
    assert torch.equal(module.gate(x, row_of(400).is_padding_T).chosen_TK, chosen)


def test_padding_gets_the_shared_network_only(nano, build, relative):
    module, x = build(), tokens(nano, 20)
    out = module(x, row_of(20, padding=5))
    zero = module.routed_expert_up_proj(module.routed_expert_norm(torch.zeros(5, nano.latent_size, dtype=torch.float64)))
    assert relative(out[15:], module.shared_experts(x[15:]) + zero) < 1e-12


def test_dispatch_is_a_stable_sort_with_padding_last():
    plan = dispatch(torch.tensor([[2, 0], [3, 3], [0, 2], [2, 1]]), 3)
    assert plan.token_of_row_R.tolist()[:6] == [0, 2, 3, 0, 2, 3]
    assert plan.ends_E.tolist() == [2, 3, 6]
    assert plan.is_padding_T1[:, 0].tolist() == [False, True, False, False]
    assert plan.slot_of_row_R[plan.row_of_slot_TK].tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_the_fused_operation_passes_gradcheck():
    generator = torch.Generator().manual_seed(0)
    chosen = torch.tensor([[0, 2], [2, 1], [3, 3], [0, 1], [2, 0]])
    plan = dispatch(chosen, 3)
    shapes = [(5, 4), (5, 2), (3, 2, 6, 4), (3, 4, 6)]
    inputs = [torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True) for shape in shapes]
    assert torch.autograd.gradcheck(lambda *x: mix_experts(*x, plan, beta=4.0, linear_beta=25.0), inputs)


@pytest.mark.parametrize("width", [16, 18])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_grouped_products_equal_a_loop_for_widths_that_do_and_do_not_fit_the_kernel(relative, width, dtype):
    generator = torch.Generator().manual_seed(0)
    ends = torch.tensor([0, 5, 5, 12], dtype=torch.int32)
    rows = torch.randn(14, width, generator=generator).to(dtype)
    weight = torch.randn(4, width, 8, generator=generator).to(dtype)
    bound = 1e-2 if dtype == torch.bfloat16 else 1e-6
    out, gradient = grouped_product(rows, weight, ends), grouped_weight_gradient(rows, rows, ends)
    assert gradient[0].abs().max() == gradient[2].abs().max() == 0
    for expert, (start, end) in enumerate([(0, 0), (0, 5), (5, 5), (5, 12)]):
        if end > start:
            assert relative(out[start:end], rows[start:end].double() @ weight[expert].double()) < bound
            assert relative(gradient[expert], rows[start:end].double().T @ rows[start:end].double()) < bound
