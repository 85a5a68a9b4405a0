"""The Kimi Delta Attention layer of K3: bounded decay, short convolutions, full-rank output gate.

    x -> W_q W_k W_v -> conv + SiLU -> L2 norm --+
    x -> W_fa -> W_fb -> + dt_bias -> log-decay --+-> delta recurrence -> head norm -> * sigmoid(W_g x) -> W_o
    x -> W_b -> sigmoid --------------------------+

Legend: T tokens, D model width, H heads, K head width, P = H * K. Kimi Linear and K3 reports, section on KDA.
"""

import torch
from torch import Tensor, nn

from samite_kernels.conv import short_conv_qkv
from samite_kernels.kda import DecayCounts, chunk_kda, counted_chunk_kda
from samite_workloads.config import ModelConfig
from samite_workloads.model.islands import Float32Island
from samite_workloads.model.linear import Linear
from samite_workloads.model.norm import rms_norm
from samite_workloads.model.recompute import is_recomputing
from samite_workloads.model.row import RowLayout
from samite_workloads.model.situ import widened
from samite_workloads.signals.decay import StateSample


class KdaAttention(nn.Module):
    """Projections around the float32 core."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width, rank, all_heads = config.hidden_size, config.kda_head_dim, config.kda_width
        self.q_proj = Linear(width, all_heads)
        self.k_proj = Linear(width, all_heads)
        self.v_proj = Linear(width, all_heads)
        self.f_a_proj = Linear(width, rank)
        self.f_b_proj = Linear(rank, all_heads)
        self.b_proj = Linear(width, config.kda_num_heads)
        self.g_proj = Linear(width, all_heads)
        self.o_proj = Linear(all_heads, width)
        self.core = KdaCore(config)

    def forward(self, x_TD: Tensor, row: RowLayout) -> Tensor:
        """x [T, D] -> [T, D]."""
        qkv_T3P = torch.cat([self.q_proj(x_TD), self.k_proj(x_TD), self.v_proj(x_TD)], -1)
        decay_TP = self.f_b_proj(self.f_a_proj(x_TD))
        # The write strength is a float32 quantity: its logits are too, whatever the activations are.
        beta_TH = nn.functional.linear(widened(x_TD), widened(self.b_proj.weight))
        return self.o_proj(self.core(qkv_T3P, decay_TP, beta_TH, self.g_proj(x_TD), row))


class KdaCore(Float32Island):
    """Everything of the layer that K3 keeps in float32: convolutions, decay parameters, recurrence, output norm."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.num_heads, self.head_dim = config.kda_num_heads, config.kda_head_dim
        self.lower_bound, self.eps = config.kda_lower_bound, config.rms_norm_eps
        conv_shape = config.kda_width, 1, config.kda_conv_size
        self.q_conv = nn.Parameter(torch.empty(conv_shape))
        self.k_conv = nn.Parameter(torch.empty(conv_shape))
        self.v_conv = nn.Parameter(torch.empty(conv_shape))
        self.A_log = nn.Parameter(torch.empty(config.kda_num_heads))
        self.dt_bias = nn.Parameter(torch.empty(config.kda_width))
        self.o_norm = nn.Parameter(torch.empty(config.kda_head_dim))
        self.sampling = False
        self.sample: DecayCounts | None = None
        self.state_sample: StateSample | None = None

    def forward(self, qkv_T3P: Tensor, decay_TP: Tensor, beta_TH: Tensor, gate_TP: Tensor, row: RowLayout) -> Tensor:
        """Mixes the tokens of each document. Returns the gated heads [T, P] in the type of `gate_TP`."""
        q, k, v = qkv_T3P.unsqueeze(0).chunk(3, -1)
        mixed, _ = short_conv_qkv(q, k, v, (self.q_conv, self.k_conv, self.v_conv), cu_seqlens=row.cu_seqlens_host)
        inputs = (*(self._heads(x) for x in mixed), self._heads(decay_TP.unsqueeze(0)), beta_TH.unsqueeze(0), self.A_log, self.dt_bias)
        lower_bound, cu_seqlens = self.lower_bound, row.cu_seqlens_host
        if self.sampling and not is_recomputing():
            o, state, self.sample = counted_chunk_kda(*inputs, lower_bound=lower_bound, cu_seqlens=cu_seqlens, output_final_state=True)
        else:
            o, state = chunk_kda(*inputs, lower_bound=lower_bound, cu_seqlens=cu_seqlens, output_final_state=self.sampling)
        if state is not None and not is_recomputing():
            self.state_sample = StateSample.of(state, self.A_log)
        normed = rms_norm(widened(o[0]), self.o_norm, self.eps)
        gated_THK = normed * widened(self._heads(gate_TP)).sigmoid()
        return gated_THK.flatten(-2).to(gate_TP.dtype)

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.num_heads, self.head_dim))
