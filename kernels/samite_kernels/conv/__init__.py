"""Short causal depthwise convolution with SiLU, as KDA uses it on q, k and v."""

from samite_kernels.conv.qkv import Qkv, explain_qkv, short_conv_qkv
from samite_kernels.conv.reference import short_conv_reference
from samite_kernels.conv.short import short_conv

__all__ = ["Qkv", "explain_qkv", "short_conv", "short_conv_qkv", "short_conv_reference"]
