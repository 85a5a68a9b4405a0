"""In what order the KDA kernels run: on one stream, or cut into segments so that the serial scan hides behind the parallel kernels.

A scan occupies two multiprocessors per chain, so a long document with few heads leaves most of the device idle. Long inputs are cut into
segments and the scan runs on a second stream of higher priority, one segment behind the kernel that feeds it:

    forward    main  P0 P1 P2 P3 ...          backward    main  P3 P2 G3 P1 G2 P0 G1 G0
               side     S0 S1 S2 ...                      side     R3 R2   R1   R0

Two segments of factors exist at a time. Within one document the state passes from segment to segment in float32; several documents are
cut between documents. Called by `sm90`; both streams are joined before it returns.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise

import torch
from torch import Tensor

from samite_kernels.kda import sm90_launch as kernels
from samite_kernels.kda.documents import Documents
from samite_kernels.kda.sm90_launch import CHUNK, SQUARE_IMAGE, STATE_IMAGE, TOKEN_IMAGE, fill

Tensors = dict[str, Tensor]
Numbers = Mapping[str, float]
FORWARD_FACTORS = {
    "minus_w": TOKEN_IMAGE,
    "q_grown": TOKEN_IMAGE,
    "k_kept": TOKEN_IMAGE,
    "scores": SQUARE_IMAGE,
    "u_transposed": TOKEN_IMAGE,
}
BACKWARD_FACTORS = {
    "minus_w": TOKEN_IMAGE,
    "q_grown": TOKEN_IMAGE,
    "k_kept": TOKEN_IMAGE,
    "scores": SQUARE_IMAGE,
    "inverse": SQUARE_IMAGE,
    "d_states": STATE_IMAGE,
    "d_v_new": TOKEN_IMAGE,
}
_KEPT_PER_TILE = frozenset({"states", "v_new", "d_a_log_parts", "d_dt_bias_parts"})
_SLOTS = 2
_MAX_SEGMENTS = 8
_LEAST_CHUNKS = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """Chunks `start` to `stop`, which belong to `num_documents` documents from `first_document` on."""

    start: int
    stop: int
    first_document: int
    num_documents: int
    first_chunk: Tensor
    """[num_documents + 1] int32 on the device: where each document begins, counted from `start`."""


@lru_cache(maxsize=128)
def segments_of(documents: Documents, device: torch.device) -> tuple[Segment, ...]:
    """One segment for short inputs, else several of about equal size."""
    counts = documents.num_chunks(CHUNK)
    total = sum(counts)
    wanted = max(1, min(_MAX_SEGMENTS, total // _LEAST_CHUNKS))
    if documents.count == 1:
        bounds = [total * index // wanted for index in range(wanted + 1)]
        return tuple(_segment(start, stop, 0, (stop - start,), device) for start, stop in pairwise(bounds))
    segments: list[Segment] = []
    start = first = chunks = 0
    for document, count in enumerate(counts):
        chunks += count
        if chunks * wanted >= total or document == documents.count - 1:
            segments.append(_segment(start, start + chunks, first, counts[first : document + 1], device))
            start, first, chunks = start + chunks, document + 1, 0
    return tuple(segments)


def _segment(start: int, stop: int, first_document: int, counts: tuple[int, ...], device: torch.device) -> Segment:
    first_chunk = torch.zeros(len(counts) + 1, dtype=torch.int64)
    first_chunk[1:] = torch.tensor(counts).cumsum(0)
    return Segment(
        start=start,
        stop=stop,
        first_document=first_document,
        num_documents=len(counts),
        first_chunk=first_chunk.to(device, torch.int32),
    )


def run_forward(segments: tuple[Segment, ...], tensors: Tensors, numbers: Numbers) -> None:
    """Prepare and scan. `tensors` by the field names of the argument blocks; fills `o`, `final_state`, and `states`, `v_new` if given."""
    work = _Work(segments, tensors, numbers, FORWARD_FACTORS)
    carry = tensors.get("initial_state")
    scanned: list[torch.cuda.Event | None] = []
    for index, segment in enumerate(segments):
        if index >= _SLOTS:
            work.lane.main_waits(scanned[index - _SLOTS])
        part = work.part(index, segment)
        kernels.prepare_forward(fill(kernels.PrepareArguments, part, **work.sizes(segment)), work.device)
        carry = work.pass_state(part, segment, "initial_state", "final_state", carry, last=index == len(segments) - 1)
        with work.lane.behind_main():
            kernels.scan(fill(kernels.ScanArguments, part, **work.chains(segment)), work.device)
        scanned.append(work.lane.mark())
    work.lane.join()


def run_backward(segments: tuple[Segment, ...], tensors: Tensors, numbers: Numbers) -> None:
    """Prepare, reverse scan, gradient: fills the gradients by their names and the parts of those of A_log and dt_bias."""
    work = _Work(segments, tensors, numbers, BACKWARD_FACTORS)
    carry = tensors.get("d_final_state")
    waiting: tuple[Tensors, Segment, torch.cuda.Event | None] | None = None
    for index, segment in enumerate(reversed(segments)):
        part = work.part(index, segment)
        kernels.prepare_backward(fill(kernels.PrepareArguments, part, **work.sizes(segment)), work.device)
        carry = work.pass_state(part, segment, "d_final_state", "d_initial_state", carry, last=index == len(segments) - 1)
        with work.lane.behind_main():
            kernels.reverse_scan(fill(kernels.ReverseScanArguments, part, **work.chains(segment)), work.device)
        if waiting is not None:
            _run_gradient(work, *waiting)
        waiting = (part, segment, work.lane.mark())
    if waiting is not None:
        _run_gradient(work, *waiting)


def _run_gradient(work: "_Work", part: Tensors, segment: Segment, scanned: torch.cuda.Event | None) -> None:
    work.lane.main_waits(scanned)
    kernels.gradient(fill(kernels.GradientArguments, part, **work.sizes(segment)), work.device)


class _Work:
    """The memory of factors, in slots that segments take in turn, and each segment's view of every tensor."""

    def __init__(self, segments: tuple[Segment, ...], tensors: Tensors, numbers: Numbers, factors: Mapping[str, int]) -> None:
        self.tensors = tensors
        self.numbers = numbers
        self.device = tensors["q"].device
        self.num_heads = int(numbers["num_heads"])
        self.single_document = len(segments) > 0 and segments[-1].first_document == 0
        self.lane = _Lane(self.device, len(segments) > 1)
        slots = min(_SLOTS, len(segments))
        tiles = max((segment.stop - segment.start for segment in segments), default=0) * self.num_heads
        self.slots = [
            {name: torch.empty(tiles, size, dtype=torch.bfloat16, device=self.device) for name, size in factors.items()}
            | {"keep": torch.empty(tiles, TOKEN_IMAGE // CHUNK, dtype=torch.float32, device=self.device)}
            for _ in range(slots)
        ]

    def part(self, index: int, segment: Segment) -> Tensors:
        """The tensors as the segment sees them: a slot for factors, per-tile tensors and the chunk table from its start on."""
        tile = segment.start * self.num_heads
        part = {name: tensor[tile:] if name in _KEPT_PER_TILE else tensor for name, tensor in self.tensors.items()}
        return part | self.slots[index % _SLOTS] | {"chunks": self.tensors["chunks"][segment.start :], "first_chunk": segment.first_chunk}

    def pass_state(
        self, part: Tensors, segment: Segment, incoming: str, outgoing: str, carry: Tensor | None, *, last: bool
    ) -> Tensor | None:
        """Sets a segment's incoming and outgoing state and returns what the next one receives."""
        part.pop(incoming, None)
        if self.single_document:
            part[outgoing] = self.tensors[outgoing] if last else torch.empty_like(self.tensors[outgoing])
            if carry is not None:
                part[incoming] = carry
            return part[outgoing]
        documents = slice(segment.first_document, segment.first_document + segment.num_documents)
        part[outgoing] = self.tensors[outgoing][documents]
        if carry is not None:
            part[incoming] = carry[documents]
        return carry

    def sizes(self, segment: Segment) -> dict[str, float]:
        """The numbers of a kernel that is parallel over chunks."""
        return {**self.numbers, "num_chunks": segment.stop - segment.start}

    def chains(self, segment: Segment) -> dict[str, int]:
        """The numbers of a scan."""
        return {"num_documents": segment.num_documents, "num_heads": self.num_heads}


class _Lane:
    """The second stream, or the main one when there is nothing to hide."""

    def __init__(self, device: torch.device, apart: bool) -> None:
        self.main = torch.cuda.current_stream(device)
        self.side = _side_stream(device) if apart else None

    def behind_main(self) -> torch.cuda.StreamContext:
        """Runs its body on the side stream after all that the main stream has been given so far."""
        if self.side is None:
            return torch.cuda.stream(self.main)
        self.side.wait_event(self.main.record_event())
        return torch.cuda.stream(self.side)

    def mark(self) -> torch.cuda.Event | None:
        """What the side stream has been given so far, for `main_waits`."""
        return None if self.side is None else self.side.record_event()

    def main_waits(self, event: torch.cuda.Event | None) -> None:
        """Holds the main stream until the side stream has come to `event`."""
        if event is not None:
            self.main.wait_event(event)

    def join(self) -> None:
        """Holds the main stream for all of the side stream."""
        self.main_waits(self.mark())


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device, priority=-1)
