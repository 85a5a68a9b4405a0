"""Which parameter gets which optimizer, decided by its name and shape.

Muon takes every matrix except embeddings, output head, convolutions and single-row projections; those, and all vectors, go to AdamW. Queries, keys and
values are cut by head (K3 report), experts by expert. Names are those of the K3 state dict (`model/state_dict.py`), read from their ends.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from torch import nn

from samite_workloads.config import ModelConfig
from samite_workloads.train.adamw import Vector
from samite_workloads.train.muon import Matrix

FAMILIES = ("attention", "expert", "dense", "router", "embedding", "vision", "other")
"""Families of the gradient norm, in the order of the reduced vector."""

_NEVER_MATRICES = ("embed_tokens.weight", "lm_head.weight", "patch_embed", "pos_emb", "_conv", "res.proj")

_DECAYED_BY_ADAMW = ("embed_tokens.weight", "lm_head.weight", "patch_embed")
"""Norms, gates, convolutions, positions and residual queries have no weight decay."""


@dataclass(frozen=True, slots=True)
class ParameterGroups:
    """The split of all trainable parameters. `families[i]` indexes FAMILIES for the i-th of `names`."""

    names: tuple[str, ...]
    parameters: tuple[nn.Parameter, ...]
    families: tuple[int, ...]
    layer_names: tuple[str, ...]
    """As `layer_of` names them, each once."""
    layers: tuple[int, ...]
    """Like `families`, of `layer_names`."""
    matrices: tuple[Matrix, ...]
    vectors: tuple[Vector, ...]


def group_parameters(named: Iterable[tuple[str, nn.Parameter]], config: ModelConfig, *, optimizer: str = "Muon") -> ParameterGroups:
    """Split `named` parameters for `optimizer` (Muon, or AdamW for everything)."""
    trainable = [(name, parameter) for name, parameter in named if parameter.requires_grad]
    matrices, vectors = [], []
    for name, parameter in trainable:
        if optimizer == "Muon" and is_matrix(name, parameter):
            block_rows, parts = blocks_of(name, parameter, config)
            matrices.append(Matrix(name=name, parameter=parameter, block_rows=block_rows, parts=parts))
        else:
            vectors.append(Vector(name=name, parameter=parameter, decay=name.endswith(_DECAYED_BY_ADAMW) or is_matrix(name, parameter)))
    layers = [layer_of(name) for name, _ in trainable]
    layer_names = tuple(dict.fromkeys(layers))
    return ParameterGroups(
        names=tuple(name for name, _ in trainable),
        layer_names=layer_names,
        layers=tuple(layer_names.index(layer) for layer in layers),
        parameters=tuple(parameter for _, parameter in trainable),
        families=tuple(FAMILIES.index(family_of(name)) for name, _ in trainable),
        matrices=tuple(matrices),
        vectors=tuple(vectors),
    )


def is_matrix(name: str, parameter: nn.Parameter) -> bool:
    """Whether Muon orthogonalises it: a matrix, or a stack of expert matrices."""
    return parameter.dim() > 1 and min(parameter.shape[-2:]) > 1 and not name.endswith(_NEVER_MATRICES)


def blocks_of(name: str, parameter: nn.Parameter, config: ModelConfig) -> tuple[int, tuple[int, ...]]:
    """Rows of one block and how a block is cut: heads for queries, keys and values, experts for stacks, else the whole matrix."""
    leaf = name.rsplit(".", 2)[-2] if name.endswith(".weight") else name.rsplit(".", 1)[-1]
    if parameter.dim() > 2:
        return parameter.shape[-2], (parameter.shape[-2],)
    if leaf in ("q_proj", "k_proj", "v_proj"):
        return config.kda_head_dim, (config.kda_head_dim,)
    if leaf == "q_b_proj":
        rows = config.mla_nope_head_dim + config.mla_rope_head_dim
        return rows, (rows,)
    if leaf == "kv_b_proj":
        return config.mla_nope_head_dim + config.mla_v_head_dim, (config.mla_nope_head_dim, config.mla_v_head_dim)
    if leaf == "wqkv":
        return config.vision_head_dim, (config.vision_head_dim,)
    return parameter.shape[0], (parameter.shape[0],)


def layer_of(name: str) -> str:
    """Where in the model a parameter is: "3" of the decoder, "vision 1" of the tower, else its first word ("lm_head")."""
    words = name.split(".")
    numbered = next((index for index, word in enumerate(words) if word.isdigit()), None)
    if numbered is None:
        return words[0]
    return words[numbered] if words[0] == "layers" else f"{words[0].removesuffix('_tower')} {words[numbered]}"


def family_of(name: str) -> str:
    """Family of the gradient norm, one of FAMILIES."""
    if name.startswith(("vision_tower", "mm_projector")):
        return "vision"
    if name.endswith(("embed_tokens.weight", "lm_head.weight")):
        return "embedding"
    if ".gate.weight" in name:
        return "router"
    if ".experts." in name or "routed_expert" in name:
        return "expert"
    if ".self_attn." in name:
        return "attention"
    if ".mlp." in name or ".shared_experts." in name:
        return "dense"
    return "other"
