"""A MoonViT-style vision tower for images of any even patch grid, packed behind each other without padding.

    patches -> linear -> + interpolated grid positions -> N x [ rms, 2-D rotary attention, rms, tanh-GELU MLP ] -> rms -> 2x2 merge

Attention is full within an image. K3 report and released weights (vision section). Videos (time embedding, pooling over frames) are not covered:
the packed batch carries still images. Legend: P patches of all images, I images, D tower width, H heads, K head width, M merged patches (P/4).
"""

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn
from torch.nn import functional

from samite_workloads.config import ModelConfig
from samite_workloads.model.attention import document_attention
from samite_workloads.model.linear import Linear
from samite_workloads.model.norm import RmsNorm
from samite_workloads.model.situ import widened

MERGE = 2
"""Patches along each side of a merged patch."""

Grid = tuple[int, int]
"""Patch rows and columns of an image, both even."""


class VisionTower(nn.Module):
    """Patches in, groups of four encoded patches out."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width, patch, side = config.vision_hidden_size, config.vision_patch_size, config.vision_position_grid
        self.patch_embed = nn.Parameter(torch.empty(width, 3, patch, patch))
        self.pos_emb = nn.Parameter(torch.empty(side, side, width))
        self.blocks = nn.ModuleList(VisionBlock(config) for _ in range(config.vision_num_layers))
        self.final_layernorm = RmsNorm(width, config.rms_norm_eps)
        self.head_dim, self.rope_theta = config.vision_head_dim, config.vision_rope_theta

    def forward(self, patches_PC: Tensor, grids: Sequence[Grid]) -> Tensor:
        """patches [P, 3 * patch * patch] in the wanted type -> [M, 4 * D], merged patches row by row, image after image.

        Raises ValueError when the grids do not add up to P or a side is odd.
        """
        check_grids(grids, patches_PC.shape[0])
        x_PD = functional.linear(patches_PC, self.patch_embed.flatten(1).to(patches_PC.dtype))
        x_PD = x_PD + torch.cat([interpolated_positions(self.pos_emb, grid) for grid in grids]).to(x_PD.dtype)
        exact_PK = torch.cat([rotation(grid, self.head_dim, self.rope_theta) for grid in grids])
        rotation_PK = exact_PK.to(x_PD.device, torch.complex128 if x_PD.dtype == torch.float64 else torch.complex64)
        offsets = (0, *accumulate(rows * columns for rows, columns in grids))
        cu_seqlens = torch.tensor(offsets, dtype=torch.int32, device=x_PD.device)
        for block in self.blocks:
            x_PD = block(x_PD, rotation_PK, offsets, cu_seqlens)
        return merge_patches(self.final_layernorm(x_PD), grids)


class VisionBlock(nn.Module):
    """Pre-norm attention and MLP without biases."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width, self.num_heads, self.head_dim = config.vision_hidden_size, config.vision_num_heads, config.vision_head_dim
        self.norm0 = RmsNorm(width, config.rms_norm_eps)
        self.norm1 = RmsNorm(width, config.rms_norm_eps)
        self.wqkv = Linear(width, 3 * self.num_heads * self.head_dim)
        self.wo = Linear(self.num_heads * self.head_dim, width)
        self.fc0 = Linear(width, config.vision_mlp_size)
        self.fc1 = Linear(config.vision_mlp_size, width)

    def forward(self, x_PD: Tensor, rotation_PK: Tensor, offsets: Sequence[int], cu_seqlens: Tensor) -> Tensor:
        """x [P, D] -> [P, D]."""
        q_PHK, k_PHK, v_PHK = self.wqkv(self.norm0(x_PD)).unflatten(-1, (3, self.num_heads, self.head_dim)).unbind(1)
        attended_PHK = document_attention(
            rotate(q_PHK, rotation_PK), rotate(k_PHK, rotation_PK), v_PHK, offsets=offsets, cu_seqlens=cu_seqlens, causal=False
        )
        x_PD = x_PD + self.wo(attended_PHK.flatten(1))
        return x_PD + self.fc1(functional.gelu(self.fc0(self.norm1(x_PD)), approximate="tanh"))


class Projector(nn.Module):
    """`patchmergerv2`: merged patches to the width of the decoder, with a norm at the end."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        merged = config.vision_hidden_size * MERGE**2
        self.proj_0 = Linear(merged, merged)
        self.proj_2 = Linear(merged, config.hidden_size)
        self.post_norm = RmsNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, merged_MC: Tensor) -> Tensor:
        """[M, 4 * tower width] -> [M, decoder width]."""
        return self.post_norm(self.proj_2(functional.gelu(self.proj_0(merged_MC))))


def check_grids(grids: Sequence[Grid], num_patches: int) -> None:
    """Raises ValueError when a grid has an odd or empty side, or the grids do not cover the patches."""
    for index, (rows, columns) in enumerate(grids):
        if rows < MERGE or columns < MERGE or rows % MERGE or columns % MERGE:
            raise ValueError(f"image {index} must have an even number of patch rows and columns, found {rows} x {columns}: pad it")
    covered = sum(rows * columns for rows, columns in grids)
    if covered != num_patches:
        raise ValueError(f"the image grids must cover all patches: they cover {covered}, the batch holds {num_patches}")


def interpolated_positions(grid_SSD: Tensor, grid: Grid) -> Tensor:
    """The learned [S, S, D] position grid at `grid` points, bilinear, [rows * columns, D]; itself when the size is the same.

    Two small products instead of an image operator: their gradient needs no atomics.
    """
    rows, columns = grid
    if (rows, columns) == tuple(grid_SSD.shape[:2]):
        return grid_SSD.flatten(0, 1)
    down_RS = _interpolation(grid_SSD.shape[0], rows).to(grid_SSD)
    across_CS = _interpolation(grid_SSD.shape[1], columns).to(grid_SSD)
    return torch.einsum("rs,sud,cu->rcd", down_RS, grid_SSD, across_CS).flatten(0, 1)


def _interpolation(size: int, points: int) -> Tensor:
    """[points, size] weights of bilinear interpolation with half-pixel centres, clamped at the edges."""
    centre = ((torch.arange(points, dtype=torch.float64) + 0.5) * size / points - 0.5).clamp(0, size - 1)
    below = centre.floor().long()
    above = (below + 1).clamp(max=size - 1)
    weights = torch.zeros(points, size, dtype=torch.float64)
    weights.scatter_add_(1, below.unsqueeze(1), (1 - (centre - below)).unsqueeze(1))
    return weights.scatter_add_(1, above.unsqueeze(1), (centre - below).unsqueeze(1))


def rotation(grid: Grid, head_dim: int, theta: float) -> Tensor:
    """complex128 [rows * columns, head_dim / 2]: unit rotations, pairs alternate between column (x) and row (y) angles."""
    rows, columns = grid
    frequency = theta ** (-torch.arange(0, head_dim, 4, dtype=torch.float64) / head_dim)
    x = torch.arange(columns, dtype=torch.float64).repeat(rows)
    y = torch.arange(rows, dtype=torch.float64).repeat_interleave(columns)
    angle = torch.stack([torch.outer(x, frequency), torch.outer(y, frequency)], -1).flatten(1)
    return torch.polar(torch.ones_like(angle), angle)


def rotate(x_PHK: Tensor, rotation_PK: Tensor) -> Tensor:
    """Rotates neighbouring pairs of x [P, H, K], in float32, back in the type of x."""
    pairs = torch.view_as_complex(widened(x_PHK).unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * rotation_PK.unsqueeze(1)).flatten(-2).to(x_PHK.dtype)


def merge_patches(x_PD: Tensor, grids: Sequence[Grid]) -> Tensor:
    """[P, D] -> [P / 4, 4 * D]: each 2 x 2 neighbourhood side by side (row by row), neighbourhoods row by row."""
    merged = []
    for image_PD, (rows, columns) in zip(x_PD.split([r * c for r, c in grids]), grids, strict=True):
        squares = image_PD.unflatten(0, (rows // MERGE, MERGE, columns // MERGE, MERGE))
        merged.append(squares.permute(0, 2, 1, 3, 4).flatten(2).flatten(0, 1))
    return torch.cat(merged)
