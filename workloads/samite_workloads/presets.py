"""The named model shapes: `tiny` for a laptop, `small` for one GPU, `k3` for planning and for checking exchanged weights.

Called by the entry point with the overrides of a run's spec.
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from difflib import get_close_matches
from typing import Any

from samite_workloads.config import ModelConfig

TINY = ModelConfig(
    vocab_size=2048,
    hidden_size=128,
    num_layers=6,
    attn_res_block_size=2,
    kda_num_heads=4,
    kda_head_dim=32,
    mla_num_heads=4,
    mla_q_lora_rank=64,
    mla_kv_lora_rank=32,
    mla_nope_head_dim=32,
    mla_rope_head_dim=16,
    mla_v_head_dim=32,
    dense_hidden_size=512,
    num_experts=16,
    experts_per_token=2,
    latent_size=64,
    expert_hidden_size=64,
    shared_hidden_size=128,
    vision_patch_size=4,
    vision_hidden_size=64,
    vision_num_layers=2,
    vision_num_heads=2,
    vision_head_dim=32,
    vision_mlp_size=256,
    vision_position_grid=8,
    loss_chunk_tokens=1024,
)
"""About 3 M parameters with every part of K3: trains on one CPU core."""

SMALL = ModelConfig(
    vocab_size=163_840,
    hidden_size=1024,
    num_layers=12,
    attn_res_block_size=2,
    kda_num_heads=12,
    mla_num_heads=12,
    mla_q_lora_rank=384,
    mla_kv_lora_rank=256,
    dense_hidden_size=4096,
    num_experts=128,
    experts_per_token=8,
    latent_size=512,
    expert_hidden_size=512,
    shared_hidden_size=1024,
    vision_hidden_size=384,
    vision_num_layers=4,
    vision_num_heads=6,
    vision_head_dim=64,
    vision_mlp_size=1536,
    vision_position_grid=32,
    recompute_layers=True,
)
"""1.59 B text parameters, 0.39 B active: one GPU of 80 GB or more."""

K3 = ModelConfig(
    vocab_size=163_840,
    hidden_size=7168,
    num_layers=93,
    kda_num_heads=96,
    kda_a_log_entries=128,
    mla_num_heads=96,
    mla_q_lora_rank=1536,
    mla_kv_lora_rank=512,
    dense_hidden_size=33_792,
    num_experts=896,
    experts_per_token=16,
    latent_size=3584,
    expert_hidden_size=3072,
    shared_hidden_size=6144,
    vision_hidden_size=1024,
    vision_num_layers=27,
    vision_num_heads=12,
    vision_head_dim=128,
    vision_mlp_size=4096,
    recompute_layers=True,
)
"""Kimi K3 as released: 2.78 T parameters, 104.2 B active."""

PRESETS: Mapping[str, ModelConfig] = {"tiny": TINY, "small": SMALL, "k3": K3}


def preset(name: str, overrides: Mapping[str, Any] | None = None) -> ModelConfig:
    """The preset `name` with some fields replaced. Raises ValueError for an unknown name, field or a bad combination."""
    if name not in PRESETS:
        raise ValueError(f"model preset must be one of {', '.join(PRESETS)}; found {name!r}{_did_you_mean(name, PRESETS)}")
    known = [field.name for field in fields(ModelConfig)]
    unknown = [key for key in overrides or {} if key not in known]
    if unknown:
        listed = "; ".join(f"{key!r}{_did_you_mean(key, known)}" for key in unknown)
        raise ValueError(f"model overrides must be fields of the model configuration; not known: {listed}")
    return replace(PRESETS[name], **dict(overrides or {}))


def _did_you_mean(word: str, known: Any) -> str:
    close = get_close_matches(word, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
