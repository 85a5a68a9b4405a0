"""What the model tests share: small shapes, packed batches, and the independent oracle."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from samite_workloads.batch import PackedBatch
from samite_workloads.config import ModelConfig
from samite_workloads.model import build_model
from samite_workloads.presets import TINY


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def oracle():
    """The naive float64 forward pass, `k3_oracle.py` beside this file."""
    spec = importlib.util.spec_from_file_location("k3_oracle", Path(__file__).with_name("k3_oracle.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def nano() -> ModelConfig:
    """All parts of K3 in 9 layers, small enough for loops."""
    return replace(
        TINY,
        vocab_size=64,
        hidden_size=32,
        num_layers=9,
        kda_num_heads=2,
        kda_head_dim=16,
        mla_num_heads=2,
        mla_q_lora_rank=24,
        mla_kv_lora_rank=16,
        mla_nope_head_dim=16,
        mla_rope_head_dim=8,
        mla_v_head_dim=12,
        dense_hidden_size=48,
        num_experts=8,
        latent_size=16,
        expert_hidden_size=24,
        shared_hidden_size=32,
        vision_patch_size=2,
        vision_hidden_size=16,
        vision_head_dim=8,
        vision_mlp_size=32,
        vision_position_grid=4,
        loss_chunk_tokens=16,
    )


@pytest.fixture
def make_model():
    """build(config, seed=0, dtype=float32, spread=0): an initialised model; `spread` adds noise so that nothing sits at a special value."""

    def build(config, *, seed=0, dtype=torch.float32, spread=0.0):
        model = build_model(config, dtype=dtype)
        model.init_weights(seed)
        if spread:
            generator = torch.Generator().manual_seed(seed + 1)
            with torch.no_grad():
                for tensor in [*model.parameters(), *(router.e_score_correction_bias for router in model.router_layers())]:
                    tensor.add_(torch.randn(tensor.shape, generator=generator), alpha=spread)
        return model

    return build


@pytest.fixture
def make_batch():
    """build(config, lengths, grids=(), padding=0, seed=0): one packed row; images lie at the start of the first documents."""

    def build(config, lengths, *, grids=(), padding=0, seed=0):
        generator = torch.Generator().manual_seed(seed)
        lengths = [*lengths, padding] if padding else list(lengths)
        total = sum(lengths)
        cu_seqlens = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)
        tokens = torch.randint(0, config.vocab_size, (total,), generator=generator)
        labels = torch.randint(0, config.vocab_size, (total,), generator=generator)
        modality = torch.zeros(total, dtype=torch.uint8)
        positions = []
        for document, (rows, columns) in enumerate(grids):
            start, count = int(cu_seqlens[document]), rows * columns // 4
            assert count < lengths[document]
            positions.append(torch.arange(start, start + count))
            modality[start : int(cu_seqlens[document + 1])] = 1
        positions = torch.cat(positions) if positions else torch.empty(0, dtype=torch.long)
        is_padding = torch.zeros(total, dtype=torch.bool)
        is_padding[total - padding :] = True
        labels[positions] = -100
        labels[is_padding] = -100
        return PackedBatch(
            tokens_T=tokens,
            labels_T=labels,
            modality_T=modality,
            is_padding_T=is_padding,
            cu_seqlens_N1=cu_seqlens,
            patches_PD=torch.randn(sum(r * c for r, c in grids), config.vision_patch_dim, generator=generator),
            image_grids_I2=torch.tensor(list(grids), dtype=torch.long).view(-1, 2),
            image_positions_M=positions,
            max_seqlen=max(lengths),
        )

    return build


@pytest.fixture
def relative():
    """Frobenius norm of the difference over that of the reference."""

    def error(found, wanted):
        found, wanted = found.detach().double(), wanted.detach().double()
        return ((found - wanted).norm() / wanted.norm().clamp(min=1e-300)).item()

    return error
