"""The whole model against an independent float64 forward pass, with weights exchanged under the released names."""

from dataclasses import replace

import pytest
import torch

from samite_workloads.model.state_dict import to_k3

GRIDS = [(2, 4), (4, 4)]


@pytest.fixture
def nano_batch(nano, make_batch):
    return make_batch(nano, [7, 9, 19, 0, 16, 1], grids=GRIDS, padding=3)


def test_logits_equal_the_oracle_in_float32_and_float64(nano, nano_batch, make_model, oracle, relative):
    for dtype, bound in ((torch.float64, 1e-9), (torch.float32, 1e-4)):
        model = make_model(nano, dtype=dtype, spread=0.1).eval()
        with torch.no_grad(), model.recorded_routing() as chosen:
            logits = model(nano_batch, logits=True).logits_TV
        wanted, _ = oracle.decoder(nano_batch, to_k3(model), nano, chosen=chosen)
        assert relative(logits, wanted) < bound


def test_the_oracle_chooses_the_same_experts_by_itself(nano, nano_batch, make_model, oracle):
    model = make_model(nano, dtype=torch.float64, spread=0.1).eval()
    with torch.no_grad(), model.recorded_routing() as chosen:
        model(nano_batch)
    _, wanted = oracle.decoder(nano_batch, to_k3(model), nano)
    real = ~nano_batch.is_padding_T
    assert set(chosen) == set(range(1, 9))
    for layer, choices in chosen.items():
        assert torch.equal(choices[real].sort(-1).values, wanted[layer][real].sort(-1).values)


@pytest.mark.parametrize(
    "mutation",
    [
        {"attn_res_block_size": 3},
        {"experts_per_token": 3},
        {"vision_num_heads": 4},
    ],
    ids="-".join,
)
def test_a_model_read_with_another_shape_does_not_pass(nano, nano_batch, make_model, oracle, relative, mutation):
    model = make_model(nano, dtype=torch.float64, spread=0.1).eval()
    with torch.no_grad():
        logits = model(nano_batch, logits=True).logits_TV
    wanted, _ = oracle.decoder(nano_batch, to_k3(model), replace(nano, **mutation))
    assert relative(logits, wanted) > 1e-3


def test_every_gradient_equals_that_of_the_oracle(nano, make_batch, make_model, oracle, relative):
    config = replace(nano, num_layers=5)
    batch = make_batch(config, [7, 12], grids=[(2, 4)], padding=2)
    model = make_model(config, dtype=torch.float64, spread=0.1)
    with model.recorded_routing() as chosen:
        model(batch).loss_sum.backward()
    weights = {name: value.clone().requires_grad_() for name, value in to_k3(model).items()}
    logits, _ = oracle.decoder(batch, weights, config, chosen=chosen)
    torch.nn.functional.cross_entropy(logits, batch.labels_T, reduction="sum").backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
    gradients = to_k3(model)
    compared = 0
    for name, weight in weights.items():
        if weight.grad is not None and "correction_bias" not in name:
            assert relative(gradients[name], weight.grad) < 1e-8 or weight.grad.norm() < 1e-12, name
            compared += 1
    assert compared > 100


def test_forced_routing_is_obeyed_and_weights_still_come_from_the_scores(nano, nano_batch, make_model, oracle, relative):
    model = make_model(nano, dtype=torch.float64, spread=0.1).eval()
    generator = torch.Generator().manual_seed(5)
    forced = {
        layer: torch.stack([torch.randperm(nano.num_experts, generator=generator)[: nano.experts_per_token] for _ in range(55)])
        for layer in range(1, 9)
    }
    with torch.no_grad(), model.forced_routing(forced):
        logits = model(nano_batch, logits=True).logits_TV
    wanted, _ = oracle.decoder(nano_batch, to_k3(model), nano, chosen=forced)
    assert relative(logits, wanted) < 1e-9
    with pytest.raises(ValueError, match=r"routing can be forced in layers \[1, 2, .*found \[0\]"), model.forced_routing({0: forced[1]}):
        pass


def test_a_packed_row_gives_the_losses_of_its_documents(nano, make_model, make_batch):
    model = make_model(nano, dtype=torch.float64, spread=0.1)
    lengths = [9, 17, 1, 30]
    whole = make_batch(nano, lengths)
    alone = 0.0
    for start, length in zip([0, 9, 26, 27], lengths, strict=True):
        part = make_batch(nano, [length])
        part.tokens_T.copy_(whole.tokens_T[start : start + length])
        part.labels_T.copy_(whole.labels_T[start : start + length])
        alone += model(part).loss_sum.item()
    assert model(whole).loss_sum.item() == pytest.approx(alone, rel=1e-10)


def test_a_recomputed_pass_goes_the_way_of_the_first_even_after_forcing_has_ended(nano, nano_batch, make_model):
    plain = make_model(nano, dtype=torch.float64, spread=0.1)
    recomputing = make_model(replace(nano, recompute_layers=True), dtype=torch.float64, spread=0.1)
    forced = {layer: torch.tensor([[1, 6]]).expand(55, 2) for layer in range(1, 9)}
    losses = []
    for model in (plain, recomputing):
        with model.forced_routing(forced):
            losses.append(model(nano_batch).loss_sum)
    for router in recomputing.router_layers():
        router.e_score_correction_bias += torch.linspace(0, 5, nano.num_experts)
    for loss in losses:
        loss.backward()
    for mine, theirs in zip(plain.parameters(), recomputing.parameters(), strict=True):
        assert (mine.grad is None and theirs.grad is None) or torch.equal(mine.grad, theirs.grad)
