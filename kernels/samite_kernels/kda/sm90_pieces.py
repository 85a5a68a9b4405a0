"""Few heads, long documents: the forward cut into pieces that run beside each other, exact by the map of each piece.

A scan occupies two multiprocessors per chain, so few chains leave most of the device idle however fast one is. Here documents are cut into as
many pieces as multiprocessors take:

    prepare (all chunks)  ->  maps (M, b of each piece)  ->  fold (the state that enters each)  ->  scan (pieces as documents)

twice the steps of a scan, over as many chains at once as fit. `SAMITE_KERNELS_KDA_PIECES=1` switches it on where its serial steps are fewer;
unset or 0, `sm90_schedule` runs everything. Called by `sm90`.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from samite_kernels.kda import sm90_launch as kernels
from samite_kernels.kda.documents import Documents
from samite_kernels.kda.sm90_launch import CHUNK, Addresses, fill
from samite_kernels.kda.sm90_schedule import FORWARD_FACTORS, Numbers, States, Work
from samite_kernels.kda.sm90_segments import Segment, first_chunks
from samite_kernels.runtime.launch import num_multiprocessors
from samite_kernels.runtime.tables import shared_table

VARIABLE = "SAMITE_KERNELS_KDA_PIECES"
_BLOCKS_PER_CHAIN = 2
_LEAST_CHUNKS = 32
"""Of a piece: below, launches and the fold cost more than the steps that are saved."""
_LEAST_GAIN = 3
"""How many times shorter than the longest document a piece must be: its steps are made twice, and those of a map are slower."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pieces:
    """Where documents are cut, on the device. Every document has a piece, be it empty."""

    count: int
    first_chunk: Tensor
    """[count + 1] int32, counted through all documents."""
    first_piece: Tensor
    """[documents + 1] int32."""
    last_piece: Tensor
    """[documents] int64: whose state at the end is the document's."""


def wanted_pieces(documents: Documents, num_heads: int, device: torch.device) -> Pieces | None:
    """The pieces, where `VARIABLE` allows them and they pay."""
    switch = os.environ.get(VARIABLE, "0")
    if switch not in ("0", "1"):
        raise ValueError(f"{VARIABLE} must be 0 or 1, found {switch!r}")
    return pieces_of(documents, num_heads, device, num_multiprocessors(device)) if switch == "1" else None


@shared_table
def pieces_of(
    documents: Documents, num_heads: int, device: torch.device, multiprocessors: int, least_chunks: int = _LEAST_CHUNKS
) -> Pieces | None:
    """As many pieces as run at once, as even as chunks allow; None when that isn't worth two passes."""
    counts = documents.num_chunks(CHUNK)
    at_once = multiprocessors // (_BLOCKS_PER_CHAIN * num_heads)
    if at_once < max(_LEAST_GAIN, len(counts)):
        return None
    longest = max(counts) // _LEAST_GAIN
    lengths = range(max(least_chunks, -(-sum(counts) // at_once)), longest + 1)
    for length in lengths:
        pieces = tuple(max(1, -(-count // length)) for count in counts)
        if sum(pieces) <= at_once:
            break
    else:
        return None
    cuts = [count * i // n - count * (i - 1) // n for count, n in zip(counts, pieces, strict=True) for i in range(1, n + 1)]
    first_piece = first_chunks(pieces)
    return Pieces(
        count=len(cuts),
        first_chunk=first_chunks(cuts).to(device, torch.int32),
        first_piece=first_piece.to(device, torch.int32),
        last_piece=(first_piece[1:] - 1).to(device),
    )


def run_forward_in_pieces(
    pieces: Pieces, segment: Segment, inputs: Addresses, numbers: Numbers, states: States, *, prepared: Callable[[], None]
) -> None:
    """As `sm90_schedule.run_forward`; `segment` holds all chunks, `states` has none between."""
    work = Work((segment,), inputs, numbers, FORWARD_FACTORS, states)
    part = work.part(0, segment)
    work.prepare(part, segment)
    prepared()
    maps, ends, starts = (states.last.new_empty((pieces.count, *states.last.shape[1:])) for _ in range(3))
    part |= kernels.addresses_of({"maps": maps, "ends": ends, "starts": starts, "first_chunk": pieces.first_chunk})
    part |= kernels.addresses_of({"first_piece": pieces.first_piece, "initial_state": states.first})
    kernels.maps(fill(kernels.MapsArguments, part, num_pieces=pieces.count, num_heads=work.num_heads), work.device)
    kernels.fold(fill(kernels.FoldArguments, part, num_documents=segment.num_documents, num_heads=work.num_heads), work.device)
    # What the fold has read is free for the states in which the pieces end.
    scanned = part | kernels.addresses_of({"initial_state": starts, "final_state": ends})
    kernels.scan(fill(kernels.ScanArguments, scanned, num_documents=pieces.count, num_heads=work.num_heads), work.device)
    torch.index_select(ends, 0, pieces.last_piece, out=states.last)
