"""One decoder layer: an attention and a feed-forward sublayer between two readers of the block residuals.

Called by the decoder, wrapped whole by sharding (`fully_shard`) and by recomputation. Legend: T tokens, D model width.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from samite_workloads.config import AttentionKind, ModelConfig
from samite_workloads.model.kda import KdaAttention
from samite_workloads.model.linear import SituMlp
from samite_workloads.model.mla import MlaAttention
from samite_workloads.model.moe import LatentMoe
from samite_workloads.model.norm import RmsNorm
from samite_workloads.model.recompute import recomputed
from samite_workloads.model.residual import AttentionResidual, Source, source
from samite_workloads.model.row import RowLayout


class DecoderLayer(nn.Module):
    """Layer `index` (0-based): KDA or MLA, dense or latent MoE, and whether it opens a residual block."""

    def __init__(self, config: ModelConfig, index: int) -> None:
        super().__init__()
        self.sampling = False
        self.amax: Tensor | None = None
        """Largest magnitude of the output of the last sampled pass, fp32; taken by `ModelSamples`."""
        width, eps = config.hidden_size, config.rms_norm_eps
        is_kda = config.attention_kind(index) is AttentionKind.KDA
        self.eps, self.starts_block, self.recompute = eps, config.starts_block(index), config.recompute_layers
        self.self_attention_res = AttentionResidual(width, eps)
        self.input_layernorm = RmsNorm(width, eps)
        self.self_attn: KdaAttention | MlaAttention = KdaAttention(config) if is_kda else MlaAttention(config)
        self.mlp_res = AttentionResidual(width, eps)
        self.post_attention_layernorm = RmsNorm(width, eps)
        if config.is_moe(index):
            self.block_sparse_moe = LatentMoe(config, index)
        else:
            self.mlp = SituMlp(width, config.dense_hidden_size, beta=config.situ_beta, linear_beta=config.situ_linear_beta)

    def forward(self, partial_TD: Tensor, row: RowLayout, *frozen: Tensor) -> Tensor:
        """The new running sum [T, D]. `frozen` are the values, then the inverse norms, of the completed blocks.

        A layer that opens a block freezes `partial_TD` itself as the newest source and starts its sum at zero; the caller does the same.
        """
        again = self.recompute and torch.is_grad_enabled()
        summed_TD = recomputed(self._forward, partial_TD, row, *frozen) if again else self._forward(partial_TD, row, *frozen)
        if self.sampling:
            self.amax = torch.linalg.vector_norm(summed_TD.detach(), ord=torch.inf, dtype=torch.float32)
        return summed_TD

    def _forward(self, partial_TD: Tensor, row: RowLayout, *frozen: Tensor) -> Tensor:
        blocks = [Source(*pair) for pair in zip(frozen[: len(frozen) // 2], frozen[len(frozen) // 2 :], strict=True)]
        hidden_TD = self.self_attention_res(blocks, partial_TD) if blocks else partial_TD
        mixed_TD = self.self_attn(self.input_layernorm(hidden_TD), row)
        if self.starts_block:
            blocks = [*blocks, source(partial_TD, self.eps)]
            partial_TD = mixed_TD
        else:
            partial_TD = partial_TD + mixed_TD
        hidden_TD = self.post_attention_layernorm(self.mlp_res(blocks, partial_TD))
        return partial_TD + (self.block_sparse_moe(hidden_TD, row) if hasattr(self, "block_sparse_moe") else self.mlp(hidden_TD))


def frozen_tensors(blocks: Sequence[Source]) -> tuple[Tensor, ...]:
    """Blocks as the flat tensors that a layer takes: sharding and recomputation see them as ordinary inputs."""
    return (*(block.value_TD for block in blocks), *(block.inverse_rms_T1 for block in blocks))
