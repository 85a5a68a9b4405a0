"""What each parameter is to the optimizer and to the metrics: update rule, blocks for the orthogonalisation, weight decay, group.

Matrices take Muon, everything else AdamW (K2 and K3 reports). Per-Head Muon splits the query, key and value projections by head. Called by the
trainer; decided by name, so it holds for sharded and for meta models.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from torch import nn

from samite_workloads.config import ModelConfig


class Update(StrEnum):
    """Which optimizer moves a parameter."""

    MUON = "Muon"
    ADAMW = "AdamW"


class Group(StrEnum):
    """Groups of the gradient norm metric."""

    ATTENTION = "attention"
    EXPERT = "expert"
    ROUTER = "router"
    EMBEDDING = "embedding"
    VISION = "vision"
    OTHER = "other"


@dataclass(frozen=True, kw_only=True, slots=True)
class Role:
    """One parameter."""

    name: str
    parameter: nn.Parameter
    update: Update
    group: Group
    weight_decay: bool
    """Whether weight decay applies: not to norms, vectors, A_log, dt_bias, convolutions and residual readers."""
    row_blocks: tuple[int, ...] = ()
    """Rows of the blocks that are orthogonalised alone, repeated over the rows of the matrix; () is the whole matrix.

    A parameter with more than two dims is a stack of matrices in its last two.
    """


def roles(model: nn.Module, config: ModelConfig) -> Iterator[Role]:
    """The role of every parameter, in the order of `named_parameters`."""
    for name, parameter in model.named_parameters():
        is_matrix = parameter.dim() >= 2 and not name.endswith(_NOT_MATRICES)
        yield Role(
            name=name,
            parameter=parameter,
            update=Update.MUON if is_matrix else Update.ADAMW,
            group=_group(name),
            weight_decay=is_matrix or name in {"embed_tokens.weight", "lm_head.weight", "vision_tower.patch_embed"},
            row_blocks=_row_blocks(name, config) if is_matrix else (),
        )


_NOT_MATRICES = (
    "embed_tokens.weight",
    "lm_head.weight",
    "_res.proj",
    "q_conv",
    "k_conv",
    "v_conv",
    "vision_tower.patch_embed",
    "vision_tower.pos_emb",
)


def _row_blocks(name: str, config: ModelConfig) -> tuple[int, ...]:
    if name.endswith(("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight")):
        return (config.kda_head_dim,)
    if name.endswith("self_attn.q_b_proj.weight"):
        return (config.mla_nope_head_dim + config.mla_rope_head_dim,)
    if name.endswith("self_attn.kv_b_proj.weight"):
        return (config.mla_nope_head_dim, config.mla_v_head_dim)
    if name.endswith("wqkv.weight"):
        return (config.vision_head_dim,)
    return ()


def _group(name: str) -> Group:
    if name.startswith(("vision_tower.", "mm_projector.")):
        return Group.VISION
    if name.startswith(("embed_tokens.", "lm_head.")):
        return Group.EMBEDDING
    for part, group in ((".self_attn.", Group.ATTENTION), (".block_sparse_moe.gate.", Group.ROUTER), (".experts.", Group.EXPERT)):
        if part in name:
            return group
    return Group.OTHER
