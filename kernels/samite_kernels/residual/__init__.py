"""Block attention residual: the mixture of earlier blocks that a sublayer reads, fused with its norm; one gradient buffer for each block."""

from samite_kernels.residual.mixture import Frozen, attention_residual, explain_residual, freeze
from samite_kernels.residual.reference import attention_residual_reference

__all__ = ["Frozen", "attention_residual", "attention_residual_reference", "explain_residual", "freeze"]
