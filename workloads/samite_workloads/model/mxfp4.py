"""MXFP4, the four-bit form in which K3's routed experts are released.

Values {0, .5, 1, 1.5, 2, 3, 4, 6} with the sign in bit 3; two per byte, the low nibble is the even column; one scale 2^(byte - 127) per 32
inputs along a row. Called by the exchange of weights.
"""

from itertools import pairwise

import torch
from torch import Tensor

BLOCK = 32
"""Inputs that share a scale."""
_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_BIAS = 127


def unpack(packed: Tensor, scale: Tensor) -> Tensor:
    """uint8 packed [O, I/2] and scale [O, I/32] -> float32 [O, I]. Raises ValueError when they do not fit together."""
    rows, columns = packed.shape[0], packed.shape[1] * 2
    if packed.dtype != torch.uint8 or scale.dtype != torch.uint8 or tuple(scale.shape) != (rows, columns // BLOCK):
        raise ValueError(
            f"packed weights must be uint8 [O, I/2] with uint8 scales [O, I/{BLOCK}], "
            f"found {packed.dtype} {list(packed.shape)} and {scale.dtype} {list(scale.shape)}"
        )
    codes = torch.stack([packed & 0xF, packed >> 4], -1).flatten(1)
    magnitudes = torch.tensor(_MAGNITUDES, device=packed.device)
    values = magnitudes[(codes & 0x7).long()] * torch.where(codes > 0x7, -1.0, 1.0)
    factors = torch.ldexp(torch.ones_like(scale, dtype=torch.float32), scale.int() - _BIAS)
    return (values.unflatten(1, (-1, BLOCK)) * factors.unsqueeze(-1)).flatten(1)


def pack(weight: Tensor, scale: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """float [O, I] -> (packed [O, I/2], scale [O, I/32]), both uint8, to the nearest value, ties to the even code.

    Give the scales that the weights came with to get the same bytes back; else each block gets the smallest power of two that holds its largest
    value. Raises ValueError when I is not a multiple of 32.
    """
    if weight.shape[1] % BLOCK:
        raise ValueError(f"rows must be a multiple of {BLOCK} long, found {weight.shape[1]}")
    blocks = weight.float().unflatten(1, (-1, BLOCK))
    if scale is None:
        scale = _smallest_scale(blocks.abs().amax(-1))
    scaled = torch.ldexp(blocks, _BIAS - scale.int().unsqueeze(-1))
    magnitude = scaled.abs()
    middles = torch.tensor([(low + high) / 2 for low, high in pairwise(_MAGNITUDES)])
    middles = middles.to(weight.device)
    below = torch.bucketize(magnitude, middles, right=False)
    above = torch.bucketize(magnitude, middles, right=True)
    code = torch.where(below % 2 == 0, below, above)
    code = (code + torch.where(torch.signbit(scaled), 8, 0)).flatten(1).to(torch.uint8)
    return code[:, 0::2] | (code[:, 1::2] << 4), scale


def _smallest_scale(largest: Tensor) -> Tensor:
    """Exponent byte such that the largest magnitude is at most 6 times the scale; 127 (a scale of one) for a block of zeros."""
    mantissa, exponent = torch.frexp(largest / _MAGNITUDES[-1])
    exponent = torch.where(mantissa == 0.5, exponent - 1, exponent)
    return torch.where(largest > 0, exponent + _BIAS, _BIAS).clamp(0, 254).to(torch.uint8)
