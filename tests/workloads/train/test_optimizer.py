"""AdamW beside Muon: the reference's arithmetic, which parameter goes where, and steps that are refused."""

import pytest
import torch
from torch import nn

from samite_workloads.model import build_model
from samite_workloads.presets import preset
from samite_workloads.train.adamw import AdamW, Vector
from samite_workloads.train.groups import FAMILIES, group_parameters


def test_adamw_follows_the_reference():
    ours, theirs = (nn.Parameter(torch.linspace(-1, 1, 7)) for _ in range(2))
    adamw = AdamW(
        [Vector(name="w", parameter=ours, decay=True)], betas=(0.9, 0.95), epsilon=1e-8, weight_decay=0.1, device=torch.device("cpu")
    )
    reference = torch.optim.AdamW([theirs], lr=0.01, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    for step in range(5):
        ours.grad = torch.sin(torch.arange(7.0) + step)
        theirs.grad = ours.grad.clone()
        adamw.step(learning_rate=torch.tensor(0.01), accepted=torch.tensor(1.0))
        reference.step()
    assert torch.allclose(ours, theirs, atol=1e-6)


def test_a_refused_step_leaves_weights_moments_and_the_step_count_alone():
    parameter = nn.Parameter(torch.ones(3))
    adamw = AdamW(
        [Vector(name="w", parameter=parameter, decay=True)], betas=(0.9, 0.95), epsilon=1e-8, weight_decay=0.1, device=torch.device("cpu")
    )
    for accepted, gradient in ((0.0, 0.0), (1.0, 1.0), (0.0, 0.0)):
        before = {name: tensor.clone() for name, tensor in adamw.tensors().items()} | {"w": parameter.detach().clone()}
        parameter.grad = torch.full((3,), gradient)
        adamw.step(learning_rate=torch.tensor(0.1 * accepted), accepted=torch.tensor(accepted))
        after = adamw.tensors() | {"w": parameter.detach()}
        assert all(torch.equal(before[name], after[name]) for name in before) == (accepted == 0.0)
    assert adamw.tensors()["adamw/steps"].item() == 1.0


@pytest.fixture(scope="module")
def groups():
    config = preset("tiny")
    return group_parameters(build_model(config, device="meta").named_parameters(), config)


def test_every_parameter_has_exactly_one_optimizer(groups):
    names = sorted([m.name for m in groups.matrices] + [v.name for v in groups.vectors])
    assert names == sorted(groups.names)


@pytest.mark.parametrize(
    ("end", "block_rows", "parts"),
    [
        ("layers.0.self_attn.q_proj.weight", 32, (32,)),
        ("layers.3.self_attn.q_b_proj.weight", 48, (48,)),
        ("layers.3.self_attn.kv_b_proj.weight", 64, (32, 32)),
        ("layers.1.block_sparse_moe.experts.gate_up", 64, (64,)),
        ("layers.1.block_sparse_moe.experts.down", 64, (64,)),
        ("layers.0.self_attn.o_proj.weight", 128, (128,)),
        ("blocks.0.wqkv.weight", 32, (32,)),
    ],
)
def test_matrices_are_cut_by_head_and_by_expert(groups, end, block_rows, parts):
    found = [m for m in groups.matrices if m.name.endswith(end)]
    assert [(m.block_rows, m.parts) for m in found] == [(block_rows, parts)]


def test_embeddings_head_norms_gates_and_convolutions_go_to_adamw(groups):
    ends = (
        "embed_tokens.weight",
        "lm_head.weight",
        "A_log",
        "dt_bias",
        "q_conv",
        "norm.weight",
        "res.proj",
        "pos_emb",
        "patch_embed",
        "o_norm",
    )
    assert {end for end in ends if any(v.name.endswith(end) for v in groups.vectors)} == set(ends)
    assert not [m.name for m in groups.matrices if m.name.endswith(ends)]


def test_norms_gates_and_residual_queries_are_not_decayed(groups):
    decayed = {v.name for v in groups.vectors if v.decay}
    assert decayed == {"embed_tokens.weight", "lm_head.weight", "vision_tower.patch_embed"}


def test_every_family_of_the_gradient_norm_has_parameters(groups):
    assert {FAMILIES[index] for index in groups.families} == set(FAMILIES)


def test_adamw_alone_takes_everything():
    config = preset("tiny")
    alone = group_parameters(build_model(config, device="meta").named_parameters(), config, optimizer="AdamW")
    assert alone.matrices == ()
    assert len(alone.vectors) == len(alone.names)
    assert next(v for v in alone.vectors if v.name.endswith("o_proj.weight")).decay
