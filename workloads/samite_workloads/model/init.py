"""Initial weights: each tensor from the seed and its released name alone, so that no sharding, world size or layer order changes a number.

Rules (K3 report; AttnRes paper; the released code where the papers are silent): linear weights and embeddings N(0, 0.02), norms one, A_log zero,
readers of the block residuals zero (a plain mean at the start), router bias zero, dt_bias such that softplus would give steps log-uniform in
[0.001, 0.1], convolutions as torch's own, vision and projector truncated normal with variance 2 / fan-in, vision positions N(0, 1).
"""

import hashlib
import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from samite_workloads.config import ModelConfig
from samite_workloads.model.names import Weight, weights
from samite_workloads.model.router import Router
from samite_workloads.model.shard import assign, holds

if TYPE_CHECKING:
    from samite_workloads.model.decoder import MultimodalDecoder

_DT_MIN, _DT_MAX, _DT_FLOOR = 0.001, 0.1, 1e-4


def init_weights(model: "MultimodalDecoder", seed: int) -> None:
    """Fills parameters and buffers in place, plain or sharded, also after `to_empty`. Raises ValueError on the meta device."""
    tensors: dict[str, Tensor] = dict(model.named_parameters())
    tensors |= dict(model.named_buffers())
    if any(tensor.is_meta for tensor in tensors.values()):
        raise ValueError("the model is on the meta device: call model.to_empty(device=...) before init_weights")
    for weight in weights(model.config):
        target = tensors[weight.name]
        if holds(target, weight.index):
            assign(target, weight.index, initial_value(weight, model.config, seed))
    for module in model.modules():
        if isinstance(module, Router):
            module.counts_EB1.zero_()


def initial_value(weight: Weight, config: ModelConfig, seed: int) -> Tensor:
    """The full tensor of `weight` as our model holds it (without padding), float32 on the CPU."""
    shape = weight.shape if weight.rows is None else (weight.rows,)
    value = torch.empty(shape, device="cpu")
    generator = torch.Generator().manual_seed(_seed_of(weight.k3_name, seed))
    leaf = weight.k3_name.removesuffix(".weight").rsplit(".", 1)[-1]
    if leaf.endswith("res_proj") or leaf in {"A_log", "e_score_correction_bias"}:
        return value.zero_()
    if "norm" in leaf:
        return value.fill_(1.0)
    if leaf == "dt_bias":
        return _dt_bias(value, generator)
    if leaf.endswith("conv1d"):
        bound = 1.0 / math.sqrt(shape[-1])
        return value.uniform_(-bound, bound, generator=generator)
    if leaf == "pos_emb":
        return value.normal_(0.0, 1.0, generator=generator)
    if weight.k3_name.startswith(("vision_tower.", "mm_projector.")):
        std = math.sqrt(2.0 / value[0].numel())
        return torch.nn.init.trunc_normal_(value, std=std, a=-2.0 * std, b=2.0 * std, generator=generator)
    return value.normal_(0.0, config.initializer_range, generator=generator)


def _dt_bias(value: Tensor, generator: torch.Generator) -> Tensor:
    """Inverse softplus of a step drawn log-uniformly (Mamba-2 and Kimi Linear; constants of the released code)."""
    low, high = math.log(_DT_MIN), math.log(_DT_MAX)
    step = value.uniform_(0.0, 1.0, generator=generator).mul_(high - low).add_(low).exp_().clamp_(min=_DT_FLOOR)
    return step + torch.log(-torch.expm1(-step))


def _seed_of(name: str, seed: int) -> int:
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
