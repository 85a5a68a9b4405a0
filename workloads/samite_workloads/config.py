"""What shape a model has: one frozen value, checked when it is made, that the model, the planner and the state dict read.

Names are ours, the meaning is the K3 configuration's; `model/k3_config.py` translates. Imports nothing heavy.
"""

from dataclasses import dataclass, fields
from enum import StrEnum


class Balancing(StrEnum):
    """How the router bias follows the load of the experts."""

    QUANTILE = "Quantile"
    """Exact dual step from a histogram of all tokens of the step (K3 report, quantile balancing); no learning rate."""
    SIGN = "Sign"
    """Fixed step up for underloaded and down for overloaded experts; the baseline."""
    NONE = "None"
    """The bias stays as it is: fine-tuning with a frozen router bias, or the control of an experiment."""


class AttentionKind(StrEnum):
    """What mixes tokens in a layer."""

    KDA = "KDA"
    MLA = "MLA"


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """A K3-style decoder with a vision tower. Raises ValueError with every problem at once.

    Widths are in elements, counts in units; every default is K3's own value where K3 has one value for all sizes.
    """

    vocab_size: int
    """Rows of the embedding and of the output head; at least the tokenizer's size."""
    hidden_size: int
    """Model width d."""
    num_layers: int
    """Decoder layers, each an attention and a feed-forward sublayer."""
    mla_period: int = 4
    """Every `mla_period`-th layer is MLA, and the last one; the others are KDA (K3: 3 to 1)."""
    attn_res_block_size: int = 12
    """Layers (not sublayers) per block of block attention residuals."""

    kda_num_heads: int
    """Heads of Kimi Delta Attention."""
    kda_head_dim: int = 128
    """Key and value width of a KDA head; also the rank of the decay projection."""
    kda_conv_size: int = 4
    """Taps of the causal short convolution on q, k and v."""
    kda_lower_bound: float = -5.0
    """Lowest log-decay per token; below -5 a 16-token tile leaves the range of float32."""
    kda_a_log_entries: int = 0
    """Entries of A_log in exchanged weights, zero-padded behind the heads (K3 ships 128 for 96 heads); 0 means one per head."""

    mla_num_heads: int
    """Heads of gated multi-head latent attention."""
    mla_q_lora_rank: int
    """Width of the query latent."""
    mla_kv_lora_rank: int
    """Width of the key-value latent."""
    mla_nope_head_dim: int = 128
    """Per-head part of a key."""
    mla_rope_head_dim: int = 64
    """Part of a key that all heads share; never rotated, the name is historical."""
    mla_v_head_dim: int = 128
    """Value width of an MLA head."""

    dense_hidden_size: int
    """Hidden width of the feed-forward network of the first, dense layers."""
    num_dense_layers: int = 1
    """Leading layers with a dense feed-forward network."""
    num_experts: int
    """Routed experts per MoE layer."""
    experts_per_token: int
    """Routed experts that see a token; smaller than num_experts, because balancing looks at the next one too."""
    latent_size: int
    """Width in which the routed experts work."""
    expert_hidden_size: int
    """Hidden width of one routed expert."""
    shared_hidden_size: int
    """Hidden width of all shared experts together; they are one fused network."""
    routed_scaling_factor: float = 1.0
    """Factor on the normalised routing weights; inert up to epsilon because a norm follows."""
    situ_beta: float = 4.0
    """Bound of the gate side of SiTU-GLU."""
    situ_linear_beta: float = 25.0
    """Bound of the linear side of SiTU-GLU."""

    balancing: Balancing = Balancing.QUANTILE
    """Rule of the router bias update after each optimizer step."""
    balancing_bins: int = 1000
    """Histogram bins per expert; the quantile is exact to one bin."""
    balancing_sign_rate: float = 1e-3
    """Step of the bias under `Sign`."""

    rms_norm_eps: float = 1e-5
    """Epsilon of every norm except the latent norms of MLA."""
    mla_norm_eps: float = 1e-6
    """Epsilon of the query and key-value latent norms of MLA."""
    initializer_range: float = 0.02
    """Standard deviation of linear weights and embeddings at the start."""

    vision_patch_size: int = 14
    """Pixels along each side of a patch."""
    vision_hidden_size: int
    """Width of the vision tower."""
    vision_num_layers: int
    """Transformer layers of the vision tower."""
    vision_num_heads: int
    """Attention heads of the vision tower."""
    vision_head_dim: int
    """Width of a vision head; a multiple of 4, as rows and columns rotate alternate pairs."""
    vision_mlp_size: int
    """Hidden width of the vision MLP."""
    vision_position_grid: int = 64
    """Side of the learned position grid; other image sizes interpolate it."""
    vision_rope_theta: float = 10_000.0
    """Base of the two-dimensional rotary embedding of the vision tower."""

    loss_chunk_tokens: int = 4096
    """Rows of logits alive at a time in the cross entropy: memory is this times vocab_size times 4 bytes."""
    recompute_layers: bool = False
    """Recompute each decoder layer in the backward pass: activations of one layer at a time, for a third more arithmetic."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "balancing", Balancing(self.balancing))
        problems = [*self._not_positive(), *self._contradictions()]
        if problems:
            raise ValueError("the model configuration does not fit together:\n" + "\n".join(f"  - {p}" for p in problems))

    def _not_positive(self) -> list[str]:
        may_be_zero = {"num_dense_layers", "kda_a_log_entries"}
        problems = []
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type is not int and field.type is not float:
                continue
            if isinstance(value, bool) or not isinstance(value, int if field.type is int else (int, float)):
                problems.append(f"{field.name} must be {'a whole' if field.type is int else 'a'} number, found {value!r}")
            elif field.name != "kda_lower_bound" and (value < 0 or (value == 0 and field.name not in may_be_zero)):
                problems.append(f"{field.name} must be positive, found {value}")
        return problems

    def _contradictions(self) -> list[str]:
        problems = []
        if isinstance(self.experts_per_token, int) and self.experts_per_token >= self.num_experts:
            problems.append(f"experts_per_token must be smaller than num_experts ({self.num_experts}), found {self.experts_per_token}")
        if not -5.0 <= self.kda_lower_bound < 0.0:
            problems.append(f"kda_lower_bound must lie in [-5, 0), found {self.kda_lower_bound}: lower overflows a tile")
        if self.kda_a_log_entries and self.kda_a_log_entries < self.kda_num_heads:
            problems.append(f"kda_a_log_entries must be 0 or at least kda_num_heads ({self.kda_num_heads}), found {self.kda_a_log_entries}")
        if self.num_dense_layers > self.num_layers:
            problems.append(f"num_dense_layers must be at most num_layers ({self.num_layers}), found {self.num_dense_layers}")
        if self.vision_head_dim % 4:
            problems.append(f"vision_head_dim must be a multiple of 4, found {self.vision_head_dim}")
        return problems

    def attention_kind(self, layer: int) -> AttentionKind:
        """Kind of the 0-based `layer`: MLA at every `mla_period`-th and at the last, KDA elsewhere."""
        if (layer + 1) % self.mla_period == 0 or layer == self.num_layers - 1:
            return AttentionKind.MLA
        return AttentionKind.KDA

    def is_moe(self, layer: int) -> bool:
        """Whether the feed-forward sublayer of the 0-based `layer` is a mixture of experts."""
        return layer >= self.num_dense_layers

    def starts_block(self, layer: int) -> bool:
        """Whether block attention residuals freeze the running sum before the 0-based `layer`."""
        return layer % self.attn_res_block_size == 0

    @property
    def kda_width(self) -> int:
        """All KDA heads together."""
        return self.kda_num_heads * self.kda_head_dim

    @property
    def vision_patch_dim(self) -> int:
        """Numbers in one patch: three channels of patch x patch pixels."""
        return 3 * self.vision_patch_size**2
