"""The CUDA entry points of KDA as Python calls: argument blocks, chunk tables, one function per kernel.

Called by `sm90`, which owns memory and autograd. The structures mirror csrc/include/arguments.cuh; a test compares them.
"""

import ctypes
from collections.abc import Mapping

import torch
from torch import Tensor

from samite_kernels.kda.documents import Documents
from samite_kernels.runtime.launch import declare
from samite_kernels.runtime.tables import shared_table

CHUNK = 64
HEAD_DIM = 128
TOKEN_IMAGE = CHUNK * HEAD_DIM
SQUARE_IMAGE = CHUNK * CHUNK
STATE_IMAGE = HEAD_DIM * HEAD_DIM
_MOST_TOKENS = 2**31 - 1


class Block(ctypes.Structure):
    """An argument block. `names` are its pointer fields, in order."""

    names: tuple[str, ...] = ()


def block(name: str, pointers: str, integers: str, floats: str = "") -> type[Block]:
    """A block type: pointers, then int32, then float fields, as the header lays them out."""
    names = tuple(pointers.split())
    fields: list[tuple[str, type]] = [(field, ctypes.c_void_p) for field in names]
    fields += [(field, ctypes.c_int32) for field in integers.split()]
    fields += [(field, ctypes.c_float) for field in floats.split()]
    return type(name, (Block,), {"_fields_": fields, "names": names})


PrepareArguments = block(
    "PrepareArguments",
    "q k v g beta a_log dt_bias chunks minus_w q_grown k_kept u_transposed inverse scores keep counts",
    "num_chunks num_heads idle_count",
    "scale lower_bound saturated_logit open_logit",
)
RebuildArguments = block(
    "RebuildArguments",
    "q k g beta a_log dt_bias chunks inverse minus_w q_grown k_kept keep",
    "num_chunks num_heads",
    "scale lower_bound",
)
ScanArguments = block(
    "ScanArguments",
    "minus_w q_grown k_kept u_transposed scores keep chunks first_chunk initial_state final_state o states v_new",
    "num_documents num_heads",
)
OutputArguments = block("OutputArguments", "q_grown scores states v_new chunks o", "num_chunks num_heads")
MapsArguments = block("MapsArguments", "minus_w k_kept u_transposed keep first_chunk maps ends", "num_pieces num_heads")
FoldArguments = block("FoldArguments", "maps ends initial_state first_piece starts", "num_documents num_heads")
ReverseScanArguments = block(
    "ReverseScanArguments",
    "minus_w q_grown k_kept scores keep chunks first_chunk d_o d_final_state d_initial_state d_states d_v_new",
    "num_documents num_heads",
)
GradientArguments = block(
    "GradientArguments",
    "q k v g beta a_log dt_bias chunks d_o states d_states v_new d_v_new inverse d_q d_k d_v d_g d_beta d_a_log_parts d_dt_bias_parts",
    "num_chunks num_heads",
    "scale lower_bound",
)
TallyArguments = block("TallyArguments", "rows sums extremes", "num_heads")
ReduceArguments = block("ReduceArguments", "d_a_log_parts d_dt_bias_parts d_a_log d_dt_bias", "num_chunks num_heads")

prepare = declare("sm90_kda_prepare")
rebuild = declare("sm90_kda_rebuild")
scan = declare("sm90_kda_scan")
output = declare("sm90_kda_output")
maps = declare("sm90_kda_maps")
fold = declare("sm90_kda_fold")
reverse_scan = declare("sm90_kda_reverse_scan")
gradient = declare("sm90_kda_gradient")
reduce = declare("sm90_kda_reduce")


class ChunkTable:
    """Where each chunk of the documents lies, on the device: `chunks` [C, 4] int32, a row (first token, rows, document, place within it)."""

    def __init__(self, documents: Documents, device: torch.device, chunk_size: int = CHUNK) -> None:
        if documents.num_tokens > _MOST_TOKENS:
            raise ValueError(f"the kernels count tokens in 32 bits, at most {_MOST_TOKENS}, found {documents.num_tokens}: cut the call")
        counts = torch.tensor(documents.num_chunks(chunk_size), dtype=torch.int64)
        first = torch.zeros(documents.count + 1, dtype=torch.int64)
        first[1:] = counts.cumsum(0)
        self.num_chunks = int(first[-1])
        document = torch.repeat_interleave(torch.arange(documents.count), counts)
        offsets = torch.tensor(documents.offsets, dtype=torch.int64)
        position = torch.arange(self.num_chunks) - first[document]
        start = offsets[document] + position * chunk_size
        rows = torch.minimum(offsets[document + 1] - start, torch.tensor(chunk_size))
        self.chunks = torch.stack([start, rows, document, position], 1).to(device, torch.int32)


@shared_table
def chunk_table(documents: Documents, device: torch.device, chunk_size: int = CHUNK) -> ChunkTable:
    """Built once per set of documents and device."""
    return ChunkTable(documents, device, chunk_size)


Addresses = dict[str, int]
"""Device addresses by the field names of the argument blocks. Who makes one keeps the memory alive."""


def addresses_of(tensors: Mapping[str, Tensor | None]) -> Addresses:
    """Where the given tensors begin; absent ones are left out and become null pointers."""
    return {name: tensor.data_ptr() for name, tensor in tensors.items() if tensor is not None}


def fill(kind: type[Block], addresses: Mapping[str, int], **numbers: float) -> Block:
    """An argument block from addresses by field name, of which it takes those that it has."""
    return kind(*map(addresses.get, kind.names), **numbers)
