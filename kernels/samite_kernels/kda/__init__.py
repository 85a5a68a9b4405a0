"""Kimi Delta Attention (KDA): linear attention with a delta rule and a per-channel, lower-bounded decay.

`chunk_kda` is what a layer calls; `recurrent_kda` is decode and the definition; `chunk_kda_core` takes prepared inputs;
`segment_map` and `fold_segments` are the context-parallel message; `decay_counts` are the numerical health signals, which
`counted_chunk_kda` returns beside its outputs;
`explain` and `explain_decode` say which backend would run and why.
"""

from samite_kernels.kda.chunk import chunk_kda, chunk_kda_core, counted_chunk_kda
from samite_kernels.kda.context import compose_segments, fold_segments, segment_map
from samite_kernels.kda.decode import explain_decode, recurrent_kda
from samite_kernels.kda.dispatch import Choice, explain
from samite_kernels.kda.signals import DecayCounts, decay_counts, log_decay_counts

__all__ = [
    "Choice",
    "DecayCounts",
    "chunk_kda",
    "chunk_kda_core",
    "compose_segments",
    "counted_chunk_kda",
    "decay_counts",
    "explain",
    "explain_decode",
    "fold_segments",
    "log_decay_counts",
    "recurrent_kda",
    "segment_map",
]
