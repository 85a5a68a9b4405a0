"""Samite's operators: each one a plain-torch reference beside the kernels that make it fast.

Imports torch and the standard library only; GPU compilers and other kernel packages are looked up when first needed.
Public families: `samite_kernels.kda` (delta attention), `samite_kernels.conv` (short causal convolution).
"""
