"""K3's latent mixture of experts: routed experts in a narrow width with a norm after the combine, beside a shared network.

    y = W_up rms( sum_k p_k expert_k( W_down x ) ) + shared(x)

The norm sits after the weighted combine and before W_up (K3 report): it makes the routed branch free of scale and keeps the chain of four
products from exploding. Legend: T tokens, D model width, L latent width, K experts per token, E experts, F expert hidden width.
"""

import torch
from torch import Tensor, nn

from samite_workloads.config import ModelConfig
from samite_workloads.model.experts import dispatch, mix_experts
from samite_workloads.model.linear import Linear, SituMlp
from samite_workloads.model.norm import RmsNorm
from samite_workloads.model.router import Router
from samite_workloads.model.row import RowLayout


class LatentMoe(nn.Module):
    """Router, routed experts and shared experts of the 0-based `layer`."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.gate = Router(config)
        self.experts = Experts(config)
        self.routed_expert_down_proj = Linear(config.hidden_size, config.latent_size)
        self.routed_expert_norm = RmsNorm(config.latent_size, config.rms_norm_eps)
        self.routed_expert_up_proj = Linear(config.latent_size, config.hidden_size)
        self.shared_experts = SituMlp(
            config.hidden_size, config.shared_hidden_size, beta=config.situ_beta, linear_beta=config.situ_linear_beta
        )

    def forward(self, x_TD: Tensor, row: RowLayout) -> Tensor:
        """x [T, D] -> [T, D]; padding gets the shared network only."""
        chosen_TK, weight_TK = self.gate(x_TD, row.is_padding_T)
        mixed_TL = self.experts(self.routed_expert_down_proj(x_TD), chosen_TK, weight_TK)
        return self.routed_expert_up_proj(self.routed_expert_norm(mixed_TL)) + self.shared_experts(x_TD)


class Experts(nn.Module):
    """All routed experts of a layer, stacked: one tensor for gate and up, one for down."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        experts, hidden, latent = config.num_experts, config.expert_hidden_size, config.latent_size
        self.gate_up = nn.Parameter(torch.empty(experts, 2, hidden, latent))
        self.down = nn.Parameter(torch.empty(experts, latent, hidden))
        self.beta, self.linear_beta = config.situ_beta, config.situ_linear_beta

    def forward(self, latent_TL: Tensor, chosen_TK: Tensor, weight_TK: Tensor) -> Tensor:
        """Weighted sum over each token's experts, [T, L]."""
        plan = dispatch(chosen_TK, self.gate_up.shape[0])
        return mix_experts(latent_TL, weight_TK, self.gate_up, self.down, plan, beta=self.beta, linear_beta=self.linear_beta)
