"""Reads a released K3 `config.json` into a `ModelConfig`.

Called by the import of weights and by planning. Refuses what the model does not do instead of approximating it: another activation, rotary
positions, group-limited routing, other attention patterns. The model is recognised by the top-level type: the text part calls itself
`kimi_linear`, like an older model.
"""

from collections.abc import Mapping
from typing import Any

from samite_workloads.config import AttentionKind, ModelConfig

_REQUIRED: Mapping[str, Any] = {
    "hidden_act": "situ",
    "mla_use_nope": True,
    "mla_use_output_gate": True,
    "latent_moe_use_norm": True,
    "moe_renormalize": True,
    "moe_router_activation_func": "sigmoid",
    "num_expert_group": 1,
    "topk_group": 1,
    "moe_layer_freq": 1,
    "num_nextn_predict_layers": 0,
}


def from_k3_config(document: Mapping[str, Any], *, kda_a_log_entries: int = 0) -> ModelConfig:
    """`document` is the parsed config.json. `kda_a_log_entries`: padded length of A_log in the weights (128 in the release), 0 when unpadded.

    Raises ValueError with everything the model cannot follow; KeyError for a size that is not there.
    """
    text, vision = document["text_config"], document["vision_config"]
    linear = text["linear_attn_config"]
    problems = [
        f"{name} must be {wanted!r}, found {text[name]!r}" for name, wanted in _REQUIRED.items() if text.get(name, wanted) != wanted
    ]
    if document.get("model_type") != "kimi_k3":
        problems.append(f"model_type must be 'kimi_k3', found {document.get('model_type')!r}")
    if not linear.get("use_full_rank_gate", True):
        problems.append("linear_attn_config.use_full_rank_gate must be true")
    config = ModelConfig(
        vocab_size=text["vocab_size"],
        hidden_size=text["hidden_size"],
        num_layers=text["num_hidden_layers"],
        attn_res_block_size=text["attn_res_block_size"],
        kda_num_heads=linear["num_heads"],
        kda_head_dim=linear["head_dim"],
        kda_conv_size=linear["short_conv_kernel_size"],
        # Small public configurations leave the bound out; every model of this type is bounded.
        kda_lower_bound=linear.get("gate_lower_bound", -5.0),
        kda_a_log_entries=kda_a_log_entries,
        mla_num_heads=text["num_attention_heads"],
        mla_q_lora_rank=text["q_lora_rank"],
        mla_kv_lora_rank=text["kv_lora_rank"],
        mla_nope_head_dim=text["qk_nope_head_dim"],
        mla_rope_head_dim=text["qk_rope_head_dim"],
        mla_v_head_dim=text["v_head_dim"],
        dense_hidden_size=text["intermediate_size"],
        num_dense_layers=text["first_k_dense_replace"],
        num_experts=text["num_experts"],
        experts_per_token=text["num_experts_per_token"],
        latent_size=text["routed_expert_hidden_size"],
        expert_hidden_size=text["moe_intermediate_size"],
        shared_hidden_size=text["num_shared_experts"] * text["moe_intermediate_size"],
        routed_scaling_factor=text["routed_scaling_factor"],
        situ_beta=text["activation_situ_beta"],
        situ_linear_beta=text["activation_situ_linear_beta"],
        rms_norm_eps=text["rms_norm_eps"],
        initializer_range=text["initializer_range"],
        vision_patch_size=vision["patch_size"],
        vision_hidden_size=vision["vt_hidden_size"],
        vision_num_layers=vision["vt_num_hidden_layers"],
        vision_num_heads=vision["vt_num_attention_heads"],
        vision_head_dim=vision["qkv_hidden_size"] // vision["vt_num_attention_heads"],
        vision_mlp_size=vision["vt_intermediate_size"],
        vision_position_grid=vision["init_pos_emb_height"],
        recompute_layers=True,
    )
    pattern = [layer + 1 for layer in range(config.num_layers) if config.attention_kind(layer) is AttentionKind.MLA]
    if list(linear["full_attn_layers"]) != pattern:
        problems.append(f"full_attn_layers must be every fourth layer and the last, {pattern}; found {linear['full_attn_layers']}")
    if problems:
        raise ValueError("this configuration asks for what the model does not do:\n" + "\n".join(f"  - {p}" for p in problems))
    return config
