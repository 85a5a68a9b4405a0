"""Initial weights: decided by seed and name alone."""

import math
from dataclasses import replace

import pytest
import torch

from samite_workloads.model import build_model


def test_the_same_seed_gives_the_same_bits_and_another_seed_others(nano, make_model):
    first, again, other = make_model(nano), make_model(nano), make_model(nano, seed=1)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert not torch.equal(first.lm_head.weight, other.lm_head.weight)


def test_more_layers_or_experts_do_not_change_the_weights_of_the_others(nano, make_model):
    small, large = make_model(nano), make_model(replace(nano, num_layers=11, num_experts=10))
    for name, parameter in small.named_parameters():
        if "layers.8." in name:  # the last layer is MLA, in a longer model another one is
            continue
        twin = large.get_parameter(name)
        if ".experts." in name:
            assert torch.equal(parameter, twin[:8]), name
        elif not name.endswith("block_sparse_moe.gate.weight"):
            assert torch.equal(parameter, twin), name


def test_a_meta_model_is_filled_after_to_empty_and_refused_before(nano, make_model):
    model = build_model(nano, "meta")
    with pytest.raises(ValueError, match=r"on the meta device: call model\.to_empty"):
        model.init_weights(0)
    model.to_empty(device="cpu")
    model.init_weights(0)
    wanted = make_model(nano).state_dict()
    assert all(torch.equal(value, wanted[name]) for name, value in model.state_dict().items())
    assert all(router.counts_EB1.abs().max() == 0 for router in model.router_layers())


def test_a_forgotten_initialisation_shows_as_nan(nano, make_batch):
    assert build_model(nano)(make_batch(nano, [8])).loss_sum.isnan()


def test_every_kind_of_weight_starts_as_its_source_says(nano, make_model):
    config = replace(nano, hidden_size=128, vision_hidden_size=64)
    model = make_model(config)
    for name, parameter in model.named_parameters():
        value = parameter.detach()
        if "norm" in name.rsplit(".", 2)[-1] or name.rsplit(".", 2)[-2].endswith(("norm", "norm0", "norm1")):
            assert torch.equal(value, torch.ones_like(value)), name
        elif name.endswith((".proj", "A_log")):
            assert value.abs().max() == 0, name
        elif "vision" in name or "mm_projector" in name:
            std = 1.0 if name.endswith("pos_emb") else 0.88 * math.sqrt(2 / value[0].numel())
            assert value.std().item() == pytest.approx(std, rel=0.1), name
        elif not name.endswith(("conv", "dt_bias")):
            assert value.std().item() == pytest.approx(0.02, rel=0.15), name
    assert all(router.e_score_correction_bias.abs().max() == 0 for router in model.router_layers())
