"""The names of the released K3 weights beside ours: one table that initialisation and the exchange of weights read.

Ours differ in two ways: routed experts are stacked in one tensor per layer, and what stays in float32 sits in an island of its own.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from samite_workloads.config import AttentionKind, ModelConfig
from samite_workloads.model.vision import MERGE

TEXT = "language_model."


@dataclass(frozen=True, kw_only=True, slots=True)
class Weight:
    """One tensor of a released checkpoint."""

    k3_name: str
    """Name in a checkpoint, e.g. `language_model.model.layers.3.block_sparse_moe.experts.5.w2.weight`."""
    name: str
    """Our parameter or buffer that holds it."""
    shape: tuple[int, ...]
    """Shape in a checkpoint."""
    index: tuple[int, ...] = ()
    """Leading indices of its place within our tensor: (expert,), or (expert, 0 for gate or 1 for up)."""
    float32: bool = False
    """Kept in float32 whatever the type of the others."""
    rows: int | None = None
    """Entries in use of a tensor that a checkpoint may pad with zeros (A_log); None when all are."""
    routed: bool = False
    """A matrix of a routed expert, which a checkpoint may hold packed in four bits."""


def weights(config: ModelConfig) -> Iterator[Weight]:
    """Every tensor of a checkpoint of this shape, in the order of the forward pass."""
    width = config.hidden_size
    yield _plain("model.embed_tokens.weight", "embed_tokens.weight", config.vocab_size, width)
    for layer in range(config.num_layers):
        yield from _layer(config, layer)
    yield _plain("model.output_attn_res_norm.weight", "output_attn_res.norm", width)
    yield _plain("model.output_attn_res_proj.weight", "output_attn_res.proj", 1, width)
    yield _plain("model.norm.weight", "norm.weight", width)
    yield _plain("lm_head.weight", "lm_head.weight", config.vocab_size, width)
    yield from _vision(config)


def _plain(k3_name: str, name: str, *shape: int, float32: bool = False) -> Weight:
    return Weight(k3_name=TEXT + k3_name, name=name, shape=shape, float32=float32)


def _layer(config: ModelConfig, layer: int) -> Iterator[Weight]:
    width, ours, theirs = config.hidden_size, f"layers.{layer}.", f"model.layers.{layer}."
    yield _plain(f"{theirs}input_layernorm.weight", f"{ours}input_layernorm.weight", width)
    yield _plain(f"{theirs}post_attention_layernorm.weight", f"{ours}post_attention_layernorm.weight", width)
    for reader in ("self_attention_res", "mlp_res"):
        yield _plain(f"{theirs}{reader}_norm.weight", f"{ours}{reader}.norm", width)
        yield _plain(f"{theirs}{reader}_proj.weight", f"{ours}{reader}.proj", 1, width)
    is_kda = config.attention_kind(layer) is AttentionKind.KDA
    yield from (_kda if is_kda else _mla)(config, f"{theirs}self_attn.", f"{ours}self_attn.")
    if config.is_moe(layer):
        yield from _moe(config, f"{theirs}block_sparse_moe.", f"{ours}block_sparse_moe.")
    else:
        yield from _mlp(width, config.dense_hidden_size, f"{theirs}mlp.", f"{ours}mlp.")


def _kda(config: ModelConfig, theirs: str, ours: str) -> Iterator[Weight]:
    width, all_heads, heads, head_dim = config.hidden_size, config.kda_width, config.kda_num_heads, config.kda_head_dim
    for name in ("q_proj", "k_proj", "v_proj", "g_proj"):
        yield _plain(f"{theirs}{name}.weight", f"{ours}{name}.weight", all_heads, width)
    yield _plain(f"{theirs}o_proj.weight", f"{ours}o_proj.weight", width, all_heads)
    yield _plain(f"{theirs}f_a_proj.weight", f"{ours}f_a_proj.weight", head_dim, width)
    yield _plain(f"{theirs}f_b_proj.weight", f"{ours}f_b_proj.weight", all_heads, head_dim)
    yield _plain(f"{theirs}b_proj.weight", f"{ours}b_proj.weight", heads, width)
    for letter in "qkv":
        conv = f"{theirs}{letter}_conv1d.weight"
        yield _plain(conv, f"{ours}core.{letter}_conv", all_heads, 1, config.kda_conv_size, float32=True)
    yield Weight(
        k3_name=f"{TEXT}{theirs}A_log",
        name=f"{ours}core.A_log",
        shape=(config.kda_a_log_entries or heads,),
        float32=True,
        rows=heads,
    )
    yield _plain(f"{theirs}dt_bias", f"{ours}core.dt_bias", all_heads, float32=True)
    yield _plain(f"{theirs}o_norm.weight", f"{ours}core.o_norm", head_dim, float32=True)


def _mla(config: ModelConfig, theirs: str, ours: str) -> Iterator[Weight]:
    width, heads, latent, queries = config.hidden_size, config.mla_num_heads, config.mla_kv_lora_rank, config.mla_q_lora_rank
    key, shared, value = config.mla_nope_head_dim, config.mla_rope_head_dim, config.mla_v_head_dim
    shapes = {
        "q_a_proj": (queries, width),
        "q_a_layernorm": (queries,),
        "q_b_proj": (heads * (key + shared), queries),
        "kv_a_proj_with_mqa": (latent + shared, width),
        "kv_a_layernorm": (latent,),
        "kv_b_proj": (heads * (key + value), latent),
        "g_proj": (heads * value, width),
        "o_proj": (width, heads * value),
    }
    for name, shape in shapes.items():
        yield _plain(f"{theirs}{name}.weight", f"{ours}{name}.weight", *shape)


def _moe(config: ModelConfig, theirs: str, ours: str) -> Iterator[Weight]:
    width, experts, latent, hidden = config.hidden_size, config.num_experts, config.latent_size, config.expert_hidden_size
    yield _plain(f"{theirs}gate.weight", f"{ours}gate.weight", experts, width)
    bias = "gate.e_score_correction_bias"
    yield _plain(theirs + bias, ours + bias, experts, float32=True)
    yield _plain(f"{theirs}routed_expert_down_proj.weight", f"{ours}routed_expert_down_proj.weight", latent, width)
    yield _plain(f"{theirs}routed_expert_up_proj.weight", f"{ours}routed_expert_up_proj.weight", width, latent)
    yield _plain(f"{theirs}routed_expert_norm.weight", f"{ours}routed_expert_norm.weight", latent)
    yield from _mlp(width, config.shared_hidden_size, f"{theirs}shared_experts.", f"{ours}shared_experts.")
    for expert in range(experts):
        their_expert = f"{TEXT}{theirs}experts.{expert}."
        for side, letter in enumerate(("w1", "w3")):
            yield Weight(
                k3_name=f"{their_expert}{letter}.weight",
                name=f"{ours}experts.gate_up",
                shape=(hidden, latent),
                index=(expert, side),
                routed=True,
            )
        yield Weight(k3_name=f"{their_expert}w2.weight", name=f"{ours}experts.down", shape=(latent, hidden), index=(expert,), routed=True)


def _mlp(width: int, hidden: int, theirs: str, ours: str) -> Iterator[Weight]:
    yield _plain(f"{theirs}gate_proj.weight", f"{ours}gate_proj.weight", hidden, width)
    yield _plain(f"{theirs}up_proj.weight", f"{ours}up_proj.weight", hidden, width)
    yield _plain(f"{theirs}down_proj.weight", f"{ours}down_proj.weight", width, hidden)


def _vision(config: ModelConfig) -> Iterator[Weight]:
    width, patch, side = config.vision_hidden_size, config.vision_patch_size, config.vision_position_grid
    attention, mlp, merged = config.vision_num_heads * config.vision_head_dim, config.vision_mlp_size, width * MERGE**2
    tower: dict[str, tuple[str, tuple[int, ...]]] = {
        "patch_embed.proj.weight": ("patch_embed", (width, 3, patch, patch)),
        "patch_embed.pos_emb.weight": ("pos_emb", (side, side, width)),
        "encoder.final_layernorm.weight": ("final_layernorm.weight", (width,)),
    }
    for block in range(config.vision_num_layers):
        shapes: dict[str, tuple[int, ...]] = {
            "wqkv": (3 * attention, width),
            "wo": (width, attention),
            "mlp.fc0": (mlp, width),
            "mlp.fc1": (width, mlp),
            "norm0": (width,),
            "norm1": (width,),
        }
        for name, shape in shapes.items():
            tower[f"encoder.blocks.{block}.{name}.weight"] = (f"blocks.{block}.{name.removeprefix('mlp.')}.weight", shape)
    for theirs, (ours, shape) in tower.items():
        yield Weight(k3_name=f"vision_tower.{theirs}", name=f"vision_tower.{ours}", shape=shape)
    projector: dict[str, tuple[str, tuple[int, ...]]] = {
        "proj.0": ("proj_0", (merged, merged)),
        "proj.2": ("proj_2", (config.hidden_size, merged)),
        "post_norm": ("post_norm", (config.hidden_size,)),
    }
    for theirs, (ours, shape) in projector.items():
        yield Weight(k3_name=f"mm_projector.{theirs}.weight", name=f"mm_projector.{ours}.weight", shape=shape)
