"""Gated multi-head latent attention without positions: K3's full-attention layer.

    x -> W_qa -> rms -> W_qb                          -> q [T, H, nope + rope]
    x -> W_kva -> (latent | shared key); latent -> rms -> W_kvb -> (keys | values) per head
    key = (per-head part | shared part), never rotated;   softmax over the document's past;   * sigmoid(W_g x) -> W_o

Legend: T tokens, D model width, H heads, K key width (nope + rope), V value width. The output of the softmax is kept in float32 until it has
been gated (K3 report: avoids a biased rounding).
"""

import torch
from torch import Tensor, nn

from samite_workloads.config import ModelConfig
from samite_workloads.model.attention import document_attention
from samite_workloads.model.linear import Linear
from samite_workloads.model.norm import RmsNorm
from samite_workloads.model.row import RowLayout
from samite_workloads.model.situ import widened


class MlaAttention(nn.Module):
    """Causal within each document."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width, heads = config.hidden_size, config.mla_num_heads
        self.num_heads = heads
        self.nope_dim, self.rope_dim, self.value_dim = config.mla_nope_head_dim, config.mla_rope_head_dim, config.mla_v_head_dim
        self.latent_dim = config.mla_kv_lora_rank
        self.q_a_proj = Linear(width, config.mla_q_lora_rank)
        self.q_a_layernorm = RmsNorm(config.mla_q_lora_rank, config.mla_norm_eps)
        self.q_b_proj = Linear(config.mla_q_lora_rank, heads * (self.nope_dim + self.rope_dim))
        self.kv_a_proj_with_mqa = Linear(width, self.latent_dim + self.rope_dim)
        self.kv_a_layernorm = RmsNorm(self.latent_dim, config.mla_norm_eps)
        self.kv_b_proj = Linear(self.latent_dim, heads * (self.nope_dim + self.value_dim))
        self.g_proj = Linear(width, heads * self.value_dim)
        self.o_proj = Linear(heads * self.value_dim, width)

    def forward(self, x_TD: Tensor, row: RowLayout) -> Tensor:
        """x [T, D] -> [T, D]."""
        q_THK = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x_TD))).unflatten(-1, (self.num_heads, -1))
        latent_TC, shared_TR = self.kv_a_proj_with_mqa(x_TD).split([self.latent_dim, self.rope_dim], -1)
        keys_values = self.kv_b_proj(self.kv_a_layernorm(latent_TC)).unflatten(-1, (self.num_heads, -1))
        key_THN, v_THV = keys_values.split([self.nope_dim, self.value_dim], -1)
        k_THK = torch.cat([key_THN, shared_TR.unsqueeze(1).expand(-1, self.num_heads, -1)], -1)
        attended_THV = document_attention(q_THK, k_THK, v_THV, offsets=row.offsets, cu_seqlens=row.cu_seqlens, causal=True)
        gated = widened(attended_THV.flatten(1)) * widened(self.g_proj(x_TD)).sigmoid()
        return self.o_proj(gated.to(x_TD.dtype))
