"""Products of row groups with one matrix per group: the only place that knows how they are computed.

torch's grouped product in float32 and bfloat16, a loop over the non-empty groups otherwise (float64). Two properties of torch's are
handled here and by the caller: rows past the last end are not written (never read them), and the weight gradient of an empty group is not written
(set to zero here).
"""

from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional


def grouped_product(rows_RI: Tensor, weight_EIO: Tensor, ends_E: Tensor) -> Tensor:
    """rows of group e times weight[e]: [R, O]. Rows at or past ends[-1] hold anything, NaN included."""
    if _has_kernel(rows_RI) and weight_EIO.shape[-1] * weight_EIO.element_size() % 16 == 0:
        return functional.grouped_mm(rows_RI, weight_EIO, offs=ends_E)
    out_RO = rows_RI.new_empty(rows_RI.shape[0], weight_EIO.shape[-1])
    for expert, (start, end) in _non_empty(ends_E):
        torch.mm(rows_RI[start:end], weight_EIO[expert], out=out_RO[start:end])
    return out_RO


def grouped_weight_gradient(left_RO: Tensor, right_RI: Tensor, ends_E: Tensor) -> Tensor:
    """left^T right within each group: [E, O, I], zero for a group without rows."""
    if _has_kernel(left_RO) and _has_kernel(right_RI):
        gradient_EOI = functional.grouped_mm(left_RO.t(), right_RI, offs=ends_E)
        starts_E = torch.cat([ends_E.new_zeros(1), ends_E[:-1]])
        return gradient_EOI.masked_fill_((ends_E == starts_E).view(-1, 1, 1), 0.0)
    gradient_EOI = left_RO.new_zeros(ends_E.shape[0], left_RO.shape[1], right_RI.shape[1])
    for expert, (start, end) in _non_empty(ends_E):
        torch.mm(left_RO[start:end].t(), right_RI[start:end], out=gradient_EOI[expert])
    return gradient_EOI


def _has_kernel(rows: Tensor) -> bool:
    """Rows must be a multiple of 16 bytes long; a GPU groups bfloat16 only."""
    kinds = (torch.bfloat16,) if rows.is_cuda else (torch.float32, torch.bfloat16)
    return rows.dtype in kinds and rows.shape[1] * rows.element_size() % 16 == 0


def _non_empty(ends_E: Tensor) -> list[tuple[int, tuple[int, int]]]:
    return [(e, span) for e, span in enumerate(pairwise([0, *ends_E.tolist()])) if span[1] > span[0]]
