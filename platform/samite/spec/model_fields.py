"""The keys of `spec.model.overrides`: the fields of the workers' model configuration, known here without importing it.

`samite_workloads.config.ModelConfig` and `samite_workloads.presets` are the truth; a repository test keeps these tables equal to them, so
that `samite validate` refuses a wrong override in milliseconds instead of a worker minutes later.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelField:
    """One field of the model configuration. `values` holds each preset's value."""

    name: str
    type: Literal["int", "float", "bool", "text"]
    doc: str
    values: Mapping[str, Any]


def _field(name: str, kind: Literal["int", "float", "bool", "text"], tiny: Any, small: Any, doc: str) -> ModelField:
    return ModelField(name=name, type=kind, doc=doc, values={"tiny": tiny, "small": small})


_ALL = (
    _field("vocab_size", "int", 2048, 163_840, "Rows of the embedding and of the output head; at least the tokenizer's size."),
    _field("hidden_size", "int", 128, 1024, "Model width d."),
    _field("num_layers", "int", 6, 12, "Decoder layers, each an attention and a feed-forward sublayer."),
    _field("mla_period", "int", 4, 4, "Every `mla_period`-th layer is MLA, and the last one; the others are KDA (K3: 3 to 1)."),
    _field("attn_res_block_size", "int", 2, 2, "Layers (not sublayers) per block of block attention residuals."),
    _field("kda_num_heads", "int", 4, 12, "Heads of Kimi Delta Attention."),
    _field("kda_head_dim", "int", 32, 128, "Key and value width of a KDA head; also the rank of the decay projection."),
    _field("kda_conv_size", "int", 4, 4, "Taps of the causal short convolution on q, k and v."),
    _field("kda_lower_bound", "float", -5.0, -5.0, "Lowest log-decay per token; below -5 a 16-token tile leaves the range of float32."),
    _field(
        "kda_a_log_entries",
        "int",
        0,
        0,
        "Entries of A_log in exchanged weights, zero-padded behind the heads (K3 ships 128 for 96 heads); 0 means one per head.",
    ),
    _field("mla_num_heads", "int", 4, 12, "Heads of gated multi-head latent attention."),
    _field("mla_q_lora_rank", "int", 64, 384, "Width of the query latent."),
    _field("mla_kv_lora_rank", "int", 32, 256, "Width of the key-value latent."),
    _field("mla_nope_head_dim", "int", 32, 128, "Per-head part of a key."),
    _field("mla_rope_head_dim", "int", 16, 64, "Part of a key that all heads share; never rotated, the name is historical."),
    _field("mla_v_head_dim", "int", 32, 128, "Value width of an MLA head."),
    _field("dense_hidden_size", "int", 512, 4096, "Hidden width of the feed-forward network of the first, dense layers."),
    _field("num_dense_layers", "int", 1, 1, "Leading layers with a dense feed-forward network."),
    _field("num_experts", "int", 16, 128, "Routed experts per MoE layer."),
    _field(
        "experts_per_token",
        "int",
        2,
        8,
        "Routed experts that see a token; smaller than num_experts, because balancing looks at the next one too.",
    ),
    _field("latent_size", "int", 64, 512, "Width in which the routed experts work."),
    _field("expert_hidden_size", "int", 64, 512, "Hidden width of one routed expert."),
    _field("shared_hidden_size", "int", 128, 1024, "Hidden width of all shared experts together; they are one fused network."),
    _field(
        "routed_scaling_factor", "float", 1.0, 1.0, "Factor on the normalised routing weights; inert up to epsilon because a norm follows."
    ),
    _field("situ_beta", "float", 4.0, 4.0, "Bound of the gate side of SiTU-GLU."),
    _field("situ_linear_beta", "float", 25.0, 25.0, "Bound of the linear side of SiTU-GLU."),
    _field("balancing", "text", "Quantile", "Quantile", "Rule of the router bias update after each optimizer step."),
    _field("balancing_bins", "int", 1000, 1000, "Histogram bins per expert; the quantile is exact to one bin."),
    _field("balancing_sign_rate", "float", 1e-3, 1e-3, "Step of the bias under `Sign`."),
    _field("rms_norm_eps", "float", 1e-5, 1e-5, "Epsilon of every norm except the latent norms of MLA."),
    _field("mla_norm_eps", "float", 1e-6, 1e-6, "Epsilon of the query and key-value latent norms of MLA."),
    _field("initializer_range", "float", 0.02, 0.02, "Standard deviation of linear weights and embeddings at the start."),
    _field("vision_patch_size", "int", 4, 14, "Pixels along each side of a patch."),
    _field("vision_hidden_size", "int", 64, 384, "Width of the vision tower."),
    _field("vision_num_layers", "int", 2, 4, "Transformer layers of the vision tower."),
    _field("vision_num_heads", "int", 2, 6, "Attention heads of the vision tower."),
    _field("vision_head_dim", "int", 32, 64, "Width of a vision head; a multiple of 4, as rows and columns rotate alternate pairs."),
    _field("vision_mlp_size", "int", 256, 1536, "Hidden width of the vision MLP."),
    _field("vision_position_grid", "int", 8, 32, "Side of the learned position grid; other image sizes interpolate it."),
    _field("vision_rope_theta", "float", 10_000.0, 10_000.0, "Base of the two-dimensional rotary embedding of the vision tower."),
    _field(
        "loss_chunk_tokens",
        "int",
        1024,
        4096,
        "Rows of logits alive at a time in the cross entropy: memory is this times vocab_size times 4 bytes.",
    ),
    _field(
        "recompute_layers",
        "bool",
        False,
        True,
        "Recompute each decoder layer in the backward pass: activations of one layer at a time, for a third more arithmetic.",
    ),
)

MODEL_FIELDS: Mapping[str, ModelField] = {field.name: field for field in _ALL}
"""Every key that `spec.model.overrides` may hold."""

NOT_OVERRIDABLE: Mapping[str, str] = {"balancing": "spec.router.balancing"}
"""Fields that have their own place in the spec."""

MAY_BE_ZERO = frozenset({"num_dense_layers", "kda_a_log_entries"})
"""Counts that may be zero; the others are positive."""


def override_errors(preset: str, overrides: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """(key, wanted, found) for each override that the model would refuse, among the known keys. The same conditions as ModelConfig's own."""
    errors = [
        (key, wanted, repr_of(value))
        for key, value in overrides.items()
        if key in MODEL_FIELDS
        for wanted in _single(MODEL_FIELDS[key], value)
    ]
    if errors or preset not in {"tiny", "small"}:
        return errors
    shape = {field.name: overrides.get(field.name, field.values[preset]) for field in _ALL}
    pairs = (
        (shape["experts_per_token"] < shape["num_experts"], "experts_per_token", f"less than num_experts ({shape['num_experts']})"),
        (-5.0 <= shape["kda_lower_bound"] < 0.0, "kda_lower_bound", "a number from -5 up to, not including, 0: lower overflows a tile"),
        (
            not shape["kda_a_log_entries"] or shape["kda_a_log_entries"] >= shape["kda_num_heads"],
            "kda_a_log_entries",
            f"0, or at least kda_num_heads ({shape['kda_num_heads']})",
        ),
        (shape["num_dense_layers"] <= shape["num_layers"], "num_dense_layers", f"at most num_layers ({shape['num_layers']})"),
        (shape["vision_head_dim"] % 4 == 0, "vision_head_dim", "a multiple of 4"),
    )
    return [(key, wanted, repr_of(shape[key])) for holds, key, wanted in pairs if not holds]


def _single(field: ModelField, value: Any) -> list[str]:
    if field.type == "bool":
        return [] if isinstance(value, bool) else ["true or false"]
    if field.type == "text":
        return [] if isinstance(value, str) else ["text"]
    wanted = "an integer" if field.type == "int" else "a number"
    if isinstance(value, bool) or not isinstance(value, int if field.type == "int" else (int, float)):
        return [wanted]
    if field.name == "kda_lower_bound" or value > 0 or (value == 0 and field.name in MAY_BE_ZERO):
        return []
    return [f"{wanted}, {'0 or more' if field.name in MAY_BE_ZERO else 'above 0'}"]


def repr_of(value: Any) -> str:
    """A value as it would stand in YAML."""
    return f'"{value}"' if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)
