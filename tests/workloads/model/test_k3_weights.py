"""Exchange of weights under the released names: key table, bits, refusals, four-bit experts, counts of whole models."""

from dataclasses import replace

import pytest
import torch

from samite_workloads.model import build_model, mxfp4
from samite_workloads.model.k3_config import from_k3_config
from samite_workloads.model.state_dict import from_k3, key_table, to_k3
from samite_workloads.presets import K3, SMALL, TINY

ISLANDS = ("A_log", "dt_bias", "conv1d.weight", "o_norm.weight", "e_score_correction_bias")


def counts(config):
    """(text, vision, active without the input embedding), from the parameters of a model on the meta device."""
    model = build_model(config, "meta")
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    vision = sum(size for name, size in sizes.items() if name.startswith(("vision_tower.", "mm_projector.")))
    experts = sum(size for name, size in sizes.items() if ".experts." in name)
    text = sum(sizes.values()) - vision
    active = text - sizes["embed_tokens.weight"] - experts + experts * config.experts_per_token // config.num_experts
    return text, vision, active


def test_k3_has_2_78_trillion_parameters_of_which_104_2_billion_are_active():
    text, vision, active = counts(K3)
    assert (text, active) == (2_779_484_393_568, 104_189_530_208)
    assert f"{text / 1e12:.4f} {active / 1e9:.2f}" == "2.7795 104.19"
    assert f"{vision / 1e6:.1f}" == "447.4"


def test_k3_parts_have_the_sizes_that_the_shapes_say():
    model = build_model(replace(K3, num_layers=4), "meta")
    size = lambda module: sum(parameter.numel() for parameter in module.parameters())  # noqa: E731
    moe = model.layers[1].block_sparse_moe
    assert f"{size(model.layers[0].self_attn) / 1e6:.1f}" == "443.7"
    assert f"{size(model.layers[3].self_attn) / 1e6:.1f}" == "232.2"
    assert f"{size(moe.experts) / 896 / 1e6:.2f}" == "33.03"
    assert f"{size(moe.shared_experts) / 1e6:.1f}" == "132.1"
    assert f"{(size(moe.routed_expert_down_proj) + size(moe.routed_expert_up_proj)) / 1e6:.1f}" == "51.4"
    assert f"{size(model.vision_tower) / 1e6:.1f} {size(model.mm_projector) / 1e6:.1f}" == "401.2 46.1"


def test_small_has_1_59_billion_parameters_of_which_0_39_billion_are_active():
    assert counts(SMALL) == (1_593_719_916, 11_633_536, 387_857_516)


def test_tiny_has_about_three_million_parameters():
    text, vision, _ = counts(TINY)
    assert 2_500_000 < text + vision < 3_500_000


# The table of the release, written a second time from its description.
PER_KDA_LAYER = {
    **{f"{n}_proj.weight": (12288, 7168) for n in "qkvg"},
    **{f"{n}_conv1d.weight": (12288, 1, 4) for n in "qkv"},
    "o_proj.weight": (7168, 12288),
    "f_a_proj.weight": (128, 7168),
    "f_b_proj.weight": (12288, 128),
    "b_proj.weight": (96, 7168),
    "A_log": (128,),
    "dt_bias": (12288,),
    "o_norm.weight": (128,),
}
PER_MLA_LAYER = {
    "q_a_proj.weight": (1536, 7168),
    "q_a_layernorm.weight": (1536,),
    "q_b_proj.weight": (18432, 1536),
    "kv_a_proj_with_mqa.weight": (576, 7168),
    "kv_a_layernorm.weight": (512,),
    "kv_b_proj.weight": (24576, 512),
    "g_proj.weight": (12288, 7168),
    "o_proj.weight": (7168, 12288),
}
PER_LAYER = {
    **{f"{n}.weight": (7168,) for n in ("input_layernorm", "post_attention_layernorm", "self_attention_res_norm", "mlp_res_norm")},
    **{f"{n}.weight": (1, 7168) for n in ("self_attention_res_proj", "mlp_res_proj")},
}
PER_MOE = {
    "gate.weight": (896, 7168),
    "gate.e_score_correction_bias": (896,),
    "routed_expert_down_proj.weight": (3584, 7168),
    "routed_expert_up_proj.weight": (7168, 3584),
    "routed_expert_norm.weight": (3584,),
    **{f"shared_experts.{n}_proj.weight": (6144, 7168) for n in ("gate", "up")},
    "shared_experts.down_proj.weight": (7168, 6144),
}
PER_EXPERT = {
    **{f"{n}.weight_packed": (3072, 1792) for n in ("w1", "w3")},
    **{f"{n}.weight_scale": (3072, 112) for n in ("w1", "w3")},
    "w2.weight_packed": (3584, 1536),
    "w2.weight_scale": (3584, 96),
}
PER_VISION_BLOCK = {
    "wqkv.weight": (4608, 1024),
    "wo.weight": (1024, 1536),
    "mlp.fc0.weight": (4096, 1024),
    "mlp.fc1.weight": (1024, 4096),
    "norm0.weight": (1024,),
    "norm1.weight": (1024,),
}
ONCE = {
    "language_model.model.embed_tokens.weight": (163840, 7168),
    "language_model.lm_head.weight": (163840, 7168),
    "language_model.model.norm.weight": (7168,),
    "language_model.model.output_attn_res_norm.weight": (7168,),
    "language_model.model.output_attn_res_proj.weight": (1, 7168),
    "vision_tower.patch_embed.proj.weight": (1024, 3, 14, 14),
    "vision_tower.patch_embed.pos_emb.weight": (64, 64, 1024),
    "vision_tower.encoder.final_layernorm.weight": (1024,),
    "mm_projector.proj.0.weight": (4096, 4096),
    "mm_projector.proj.2.weight": (7168, 4096),
    "mm_projector.post_norm.weight": (7168,),
}


def test_the_key_table_of_k3_is_that_of_the_release():
    wanted = dict(ONCE)
    for layer in range(93):
        prefix = f"language_model.model.layers.{layer}."
        attention = PER_MLA_LAYER if layer + 1 in [*range(4, 93, 4), 93] else PER_KDA_LAYER
        wanted |= {prefix + name: shape for name, shape in PER_LAYER.items()}
        wanted |= {f"{prefix}self_attn.{name}": shape for name, shape in attention.items()}
        if layer == 0:
            wanted |= {f"{prefix}mlp.{n}_proj.weight": (33792, 7168) for n in ("gate", "up")}
            wanted[f"{prefix}mlp.down_proj.weight"] = (7168, 33792)
            continue
        wanted |= {f"{prefix}block_sparse_moe.{name}": shape for name, shape in PER_MOE.items()}
        for expert in range(896):
            wanted |= {f"{prefix}block_sparse_moe.experts.{expert}.{name}": shape for name, shape in PER_EXPERT.items()}
    for block in range(27):
        wanted |= {f"vision_tower.encoder.blocks.{block}.{name}": shape for name, shape in PER_VISION_BLOCK.items()}
    table = key_table(K3, packed=True)
    assert {name: shape for name, (shape, _) in table.items()} == wanted
    assert {name for name, (_, dtype) in table.items() if dtype == torch.float32} == {n for n in wanted if n.endswith(ISLANDS)}
    assert {name for name, (_, dtype) in table.items() if dtype == torch.uint8} == {n for n in wanted if n.endswith(("_packed", "_scale"))}


def test_a_model_exports_exactly_the_key_table(nano):
    for config in (nano, SMALL, replace(nano, kda_a_log_entries=5)):
        exported = to_k3(build_model(config, "meta"), dtype=torch.bfloat16)
        assert {name: (tuple(value.shape), value.dtype) for name, value in exported.items()} == key_table(config)


def test_weights_survive_the_exchange_bit_for_bit(nano, make_model):
    config = replace(nano, kda_a_log_entries=5)
    model, other = make_model(config, spread=0.1), make_model(config, seed=9)
    exported = to_k3(model)
    assert exported["language_model.model.layers.0.self_attn.A_log"][2:].tolist() == [0.0, 0.0, 0.0]
    from_k3(other, {name: value.clone() for name, value in exported.items()})
    mine, theirs = model.state_dict(), other.state_dict()
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


@pytest.mark.parametrize("export_dtype", [torch.bfloat16, torch.float32])
def test_islands_keep_every_bit_through_import_cast_and_export(nano, make_model, export_dtype):
    source = to_k3(make_model(nano, spread=0.1))
    model = make_model(nano, seed=4)
    from_k3(model, source)
    model.to(torch.bfloat16)
    exported = to_k3(model, dtype=export_dtype)
    for name, value in exported.items():
        if name.endswith(ISLANDS):
            assert value.dtype == torch.float32
            assert torch.equal(value, source[name]), name
        else:
            assert value.dtype == export_dtype, name
            assert torch.allclose(value.float(), source[name], rtol=2**-8, atol=0), name


def test_a_padded_a_log_is_narrowed_and_one_with_more_heads_refused(nano, make_model):
    weights = dict(to_k3(make_model(nano)))
    name = "language_model.model.layers.0.self_attn.A_log"
    weights[name] = torch.tensor([0.5, 0.25, 0.0, 0.0, 0.0])
    model = make_model(nano)
    from_k3(model, weights)
    assert model.layers[0].self_attn.core.A_log.tolist() == [0.5, 0.25]
    weights[name] = torch.tensor([0.5, 0.25, 0.0, 0.1])
    with pytest.raises(ValueError, match=r"A_log must have shape \[2\], found \[4\]"):
        from_k3(model, weights)


def test_all_that_is_wrong_is_said_at_once_and_nothing_is_loaded(nano, make_model):
    model = make_model(nano)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    weights = dict(to_k3(make_model(nano, seed=1)))
    del weights["language_model.lm_head.weight"]
    weights["language_model.model.norm.weight"] = torch.ones(31)
    weights["language_model.model.layers.0.self_attn.A_log"] = torch.zeros(2, dtype=torch.bfloat16)
    weights["language_model.model.layers.1.block_sparse_moe.gate.weight"] = torch.zeros(8, 32, dtype=torch.int8)
    weights["language_model.model.rope.weight"] = torch.zeros(1)
    with pytest.raises(ValueError, match="nothing was loaded") as caught:
        from_k3(model, weights)
    message = str(caught.value)
    for part in (
        "language_model.lm_head.weight is missing",
        "language_model.model.norm.weight must have shape [32], found [31]",
        "layers.0.self_attn.A_log must be float32, found torch.bfloat16: its bits are gone",
        "gate.weight must hold floating-point numbers, found torch.int8",
        "language_model.model.rope.weight is not a tensor of this model",
    ):
        assert part in message
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_rounded_island_can_be_accepted_on_purpose(nano, make_model):
    weights = {name: value.to(torch.bfloat16) for name, value in to_k3(make_model(nano)).items()}
    model = make_model(nano, seed=3)
    from_k3(model, weights, allow_rounded_islands=True)
    loaded = to_k3(model)
    assert all(torch.equal(loaded[name].float(), value.float()) for name, value in weights.items())


def test_four_bit_experts_are_read(nano, make_model):
    config = replace(nano, latent_size=32, expert_hidden_size=64)
    source, model = make_model(config), make_model(config, seed=3)
    weights, expected = {}, {}
    for name, value in to_k3(source).items():
        if ".experts." in name and ".w" in name:
            packed, scale = mxfp4.pack(value)
            weights[name + "_packed"], weights[name + "_scale"] = packed, scale
            expected[name] = mxfp4.unpack(packed, scale)
        else:
            weights[name] = value
    assert weights.keys() == key_table(config, packed=True).keys()
    from_k3(model, weights)
    loaded = to_k3(model)
    assert all(torch.equal(loaded[name], value) for name, value in expected.items())
    weights.pop(next(name for name in weights if name.endswith("w3.weight_scale")))
    with pytest.raises(ValueError, match=r"w3\.weight_scale is missing"):
        from_k3(model, weights)


def test_every_four_bit_code_has_its_value_and_the_low_nibble_comes_first():
    packed = torch.zeros(1, 16, dtype=torch.uint8)
    packed[0, :8] = torch.tensor([0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE])
    values = mxfp4.unpack(packed, torch.tensor([[128]], dtype=torch.uint8))
    positive = [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0]
    assert values[0, :16].tolist() == [*positive, *[-x for x in positive]]


def test_packing_with_the_source_scales_gives_the_source_bytes():
    generator = torch.Generator().manual_seed(0)
    packed = torch.randint(0, 256, (8, 64), generator=generator, dtype=torch.uint8)
    scale = torch.randint(100, 140, (8, 4), generator=generator, dtype=torch.uint8)
    again, same = mxfp4.pack(mxfp4.unpack(packed, scale), scale)
    assert torch.equal(same, scale)
    assert torch.equal(again, packed)


def test_packing_takes_the_nearest_value_and_never_clips():
    weight = torch.randn(16, 96, generator=torch.Generator().manual_seed(0))
    weight[0, :32] = 0.0
    packed, scale = mxfp4.pack(weight)
    error = (mxfp4.unpack(packed, scale) - weight).abs().unflatten(1, (3, 32))
    step = torch.ldexp(torch.ones(16, 3), scale.int() - 127)
    assert (error.amax(-1) <= step).all()
    assert (weight.abs().unflatten(1, (3, 32)).amax(-1) <= 6 * step).all()


K3_JSON = {
    "model_type": "kimi_k3",
    "text_config": {
        "model_type": "kimi_linear",
        "vocab_size": 163840,
        "hidden_size": 7168,
        "num_hidden_layers": 93,
        "num_attention_heads": 96,
        "num_key_value_heads": 96,
        "intermediate_size": 33792,
        "hidden_act": "situ",
        "activation_situ_beta": 4.0,
        "activation_situ_linear_beta": 25.0,
        "rms_norm_eps": 1e-5,
        "initializer_range": 0.02,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "mla_use_nope": True,
        "mla_use_output_gate": True,
        "num_experts": 896,
        "num_experts_per_token": 16,
        "num_shared_experts": 2,
        "moe_intermediate_size": 3072,
        "routed_expert_hidden_size": 3584,
        "latent_moe_use_norm": True,
        "moe_router_activation_func": "sigmoid",
        "moe_renormalize": True,
        "routed_scaling_factor": 1.0,
        "num_expert_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "attn_res_block_size": 12,
        "num_nextn_predict_layers": 0,
        "linear_attn_config": {
            "num_heads": 96,
            "head_dim": 128,
            "short_conv_kernel_size": 4,
            "gate_lower_bound": -5.0,
            "use_full_rank_gate": True,
            "full_attn_layers": [*range(4, 93, 4), 93],
        },
    },
    "vision_config": {
        "patch_size": 14,
        "init_pos_emb_height": 64,
        "init_pos_emb_width": 64,
        "vt_hidden_size": 1024,
        "vt_intermediate_size": 4096,
        "vt_num_hidden_layers": 27,
        "vt_num_attention_heads": 12,
        "qkv_hidden_size": 1536,
    },
}


def test_the_released_configuration_is_the_k3_preset():
    assert from_k3_config(K3_JSON, kda_a_log_entries=128) == K3


def test_a_configuration_without_a_bound_is_still_bounded():
    text = K3_JSON["text_config"]
    linear = {name: value for name, value in text["linear_attn_config"].items() if name != "gate_lower_bound"}
    document = K3_JSON | {"text_config": text | {"linear_attn_config": linear}}
    assert from_k3_config(document).kda_lower_bound == -5.0


def test_a_configuration_that_asks_for_something_else_is_refused_with_every_reason():
    text = K3_JSON["text_config"]
    linear = text["linear_attn_config"] | {"full_attn_layers": [1, 2]}
    document = {
        "model_type": "kimi_linear",
        "text_config": text | {"hidden_act": "silu", "mla_use_nope": False, "linear_attn_config": linear},
        "vision_config": K3_JSON["vision_config"],
    }
    with pytest.raises(ValueError, match="asks for what the model does not do") as caught:
        from_k3_config(document)
    for part in ("hidden_act must be 'situ', found 'silu'", "mla_use_nope must be True", "model_type must be 'kimi_k3'", "found [1, 2]"):
        assert part in str(caught.value)
