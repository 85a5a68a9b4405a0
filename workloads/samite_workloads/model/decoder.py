"""The whole model: tokens and images of a packed row in, sums of losses out.

    tokens -> embedding <- projector <- vision tower <- patches
           -> layers, reading block attention residuals -> last reader -> norm -> head -> chunked cross entropy

Called by the trainer, once per micro-batch. Legend: T tokens, D model width, V vocabulary, M merged patches.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils import _pytree

from samite_workloads.batch import PackedBatch
from samite_workloads.config import ModelConfig
from samite_workloads.model import init
from samite_workloads.model.islands import Float32Island
from samite_workloads.model.kda import KdaCore
from samite_workloads.model.layer import DecoderLayer, frozen_tensors
from samite_workloads.model.linear import Linear
from samite_workloads.model.loss import chunked_cross_entropy
from samite_workloads.model.moe import LatentMoe
from samite_workloads.model.norm import RmsNorm
from samite_workloads.model.residual import AttentionResidual, Source, source
from samite_workloads.model.router import Router
from samite_workloads.model.row import RowLayout
from samite_workloads.model.samples import ModelSamples
from samite_workloads.model.situ import widened
from samite_workloads.model.vision import MERGE, Projector, VisionTower


@dataclass(frozen=True, kw_only=True)
class ModelOutput:
    """Sums over the supervised tokens of one micro-batch; nothing has been synchronised with the host."""

    loss_sum: Tensor
    """0-dim float32: divide by the supervised tokens of all ranks and micro-batches, then call backward."""
    loss_sum_by_modality: Tensor
    """float32 [2] by `Modality`, without gradient."""
    num_supervised_by_modality: Tensor
    """int64 [2]."""
    logits_TV: Tensor | None = None
    """float32 [T, V] when asked for."""


# Sharding looks for the output tensors to hook the backward pass; it only sees through registered containers.
_pytree.register_dataclass(
    ModelOutput, field_names=["loss_sum", "loss_sum_by_modality", "num_supervised_by_modality", "logits_TV"], drop_field_names=[]
)


class MultimodalDecoder(nn.Module):
    """A K3-style model. `layers` are the units for sharding; the root owns embeddings, vision tower, last norm and head."""

    def __init__(self, config: ModelConfig, *, compute_dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.config, self.compute_dtype = config, compute_dtype
        # Given a weight, Embedding does not draw one: drawing on the meta device loads torch's compiler, 2 s at each start of a rank.
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, _weight=torch.empty(config.vocab_size, config.hidden_size))
        self.vision_tower = VisionTower(config)
        self.mm_projector = Projector(config)
        self.layers = nn.ModuleList(DecoderLayer(config, index) for index in range(config.num_layers))
        self.output_attn_res = AttentionResidual(config.hidden_size, config.rms_norm_eps)
        self.norm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = Linear(config.hidden_size, config.vocab_size)

    def forward(self, batch: PackedBatch, *, logits: bool = False) -> ModelOutput:
        """One micro-batch. `logits=True` also returns all logits, which cost T x V x 4 bytes.

        Raises ValueError when images and their positions do not fit together.
        """
        row = RowLayout.of(batch)
        hidden_TD = self._last_hidden(self._embed(batch), row)
        sums = chunked_cross_entropy(hidden_TD, self.lm_head.weight, batch.labels_T, batch.modality_T, chunk=self.config.loss_chunk_tokens)
        return ModelOutput(**sums._asdict(), logits_TV=widened(self.lm_head(hidden_TD)) if logits else None)

    def _embed(self, batch: PackedBatch) -> Tensor:
        """Token embeddings with the projector's rows at the image positions, [T, D]."""
        embedded_TD = functional.embedding(batch.tokens_T, self.embed_tokens.weight).to(self.compute_dtype)
        num_merged = batch.image_positions_M.shape[0]
        if batch.patches_PD.shape[0] != num_merged * MERGE**2:
            raise ValueError(
                f"images and their positions must fit: {batch.patches_PD.shape[0]} patches make "
                f"{batch.patches_PD.shape[0] // MERGE**2} merged ones, found {num_merged} positions"
            )
        patches, grids = batch.patches_PD.to(self.compute_dtype), [(r, c) for r, c in batch.image_grids_I2.tolist()]
        if not grids:
            # Every rank runs the tower on every micro-batch, or sharded ranks would wait for each other; no row of the dummy is used.
            patches, grids = embedded_TD.new_zeros(MERGE**2, self.config.vision_patch_dim), [(MERGE, MERGE)]
        rows_MD = self.mm_projector(self.vision_tower(patches, grids))[:num_merged]
        return embedded_TD.index_copy(0, batch.image_positions_M, rows_MD)

    def _last_hidden(self, partial_TD: Tensor, row: RowLayout) -> Tensor:
        """Block attention residuals through all layers (AttnRes paper; K3 report): [T, D] after the last norm."""
        blocks: list[Source] = []
        for layer in self.layers:
            frozen = frozen_tensors(blocks)
            if layer.starts_block:
                blocks.append(source(partial_TD, self.config.rms_norm_eps))
            partial_TD = layer(partial_TD, row, *frozen)
        return self.norm(self.output_attn_res(blocks, partial_TD))

    def init_weights(self, seed: int) -> None:
        """Every parameter and buffer from `seed` and its own name: the same numbers under any sharding and world size."""
        init.init_weights(self, seed)

    def router_layers(self) -> Iterator[Router]:
        """The routers from the first MoE layer to the last."""
        return (module for module in self.modules() if isinstance(module, Router))

    def float32_islands(self) -> Iterator[Float32Island]:
        """Modules to shard with a full-precision policy of their own when the rest is gathered in bfloat16."""
        return (module for module in self.modules() if isinstance(module, Float32Island))

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """Forward passes inside also fill the signals that `take_samples` returns."""
        modules = [module for module in self.modules() if isinstance(module, (KdaCore, Router, DecoderLayer))]
        for module in modules:
            module.sampling = True
        try:
            yield
        finally:
            for module in modules:
                module.sampling = False

    def take_samples(self) -> ModelSamples:
        """The signals of the last sampled forward pass by 0-based layer; empties the store."""
        return ModelSamples.take(self.layers)

    @contextmanager
    def forced_routing(self, chosen: Mapping[int, Tensor]) -> Iterator[None]:
        """Replays recorded choices: int64 [T, K] expert ids by 0-based layer. Weights still come from the scores.

        Raises ValueError for a layer that has no router.
        """
        routers = self._routers_by_layer()
        if unknown := sorted(set(chosen) - set(routers)):
            raise ValueError(f"routing can be forced in layers {sorted(routers)}, found {unknown}")
        for layer, chosen_TK in chosen.items():
            routers[layer].forced_TK = chosen_TK
        try:
            yield
        finally:
            for router in routers.values():
                router.forced_TK = None

    @contextmanager
    def recorded_routing(self) -> Iterator[dict[int, Tensor]]:
        """Yields a dict that holds, after the block, the choices of the last forward pass by 0-based layer."""
        routers, recorded = self._routers_by_layer(), dict[int, Tensor]()
        for router in routers.values():
            router.recording, router.recorded_TK = True, None
        try:
            yield recorded
        finally:
            for layer, router in routers.items():
                if router.recorded_TK is not None:
                    recorded[layer] = router.recorded_TK
                router.recording, router.recorded_TK = False, None

    def _routers_by_layer(self) -> dict[int, Router]:
        moe = (module for module in self.modules() if isinstance(module, LatentMoe))
        return {module.layer: module.gate for module in moe}


def build_model(config: ModelConfig, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> MultimodalDecoder:
    """The model on `device` ("meta" included), computing in `dtype`; parameters are float32 (float64 for float64).

    Parameters hold nothing useful before `init_weights` or a restore: on a real device they are NaN, so that a forgotten one shows.
    """
    with torch.device(device):
        model = MultimodalDecoder(config, compute_dtype=dtype)
    if dtype == torch.float64:
        model = model.double()
    if torch.device(device).type != "meta":
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(float("nan"))
    return model
