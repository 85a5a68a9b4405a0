"""In what order the KDA kernels run: on one stream, or cut into segments so that the serial scan hides behind the parallel kernels.

A scan occupies two multiprocessors per chain, so a long document with few heads leaves most of the device idle. Long inputs are cut into
segments and the scan runs on a second stream of higher priority, one segment behind the kernel that feeds it:

    forward    main  P0 P1 P2 P3 ...          backward    main  P3 P2 G3 P1 G2 P0 G1 G0
               side     S0 S1 S2 ...                      side     R3 R2   R1   R0

With few chains the forward scan leaves the outputs to a parallel kernel, in the place that the gradient has in the backward. Two segments
of factors exist at a time. Within one document the state passes from segment to segment in float32; several documents are cut between
documents. Called by `sm90`; both streams are joined before it returns.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from samite_kernels.kda import sm90_launch as kernels
from samite_kernels.kda.documents import Documents
from samite_kernels.kda.sm90_launch import CHUNK, HEAD_DIM, SQUARE_IMAGE, STATE_IMAGE, TOKEN_IMAGE, Addresses, fill

Numbers = Mapping[str, float]
FORWARD_FACTORS = ("minus_w", "q_grown", "k_kept", "scores", "u_transposed", "keep")
BACKWARD_FACTORS = ("minus_w", "q_grown", "k_kept", "scores", "inverse", "d_states", "d_v_new", "keep")
_BYTES_PER_TILE = {
    "minus_w": 2 * TOKEN_IMAGE,
    "q_grown": 2 * TOKEN_IMAGE,
    "k_kept": 2 * TOKEN_IMAGE,
    "u_transposed": 2 * TOKEN_IMAGE,
    "v_new": 2 * TOKEN_IMAGE,
    "d_v_new": 2 * TOKEN_IMAGE,
    "scores": 2 * SQUARE_IMAGE,
    "inverse": 2 * SQUARE_IMAGE,
    "states": 2 * STATE_IMAGE,
    "d_states": 2 * STATE_IMAGE,
    "keep": 4 * HEAD_DIM,
    "d_dt_bias_parts": 4 * HEAD_DIM,
    "d_a_log_parts": 4,
}
_KEPT = ("states", "v_new", "d_a_log_parts", "d_dt_bias_parts")
_BYTES_PER_CHUNK_ROW = 16
_SLOTS = 2
_FEW_CHAINS = 12
"""Documents times heads of a segment up to which a scan is bound by its own latency and not by what it shares with other kernels."""
_SHARES: tuple[tuple[tuple[int, ...], int], ...] = (((1, 2, 2, 2, 2, 2, 2, 1), 16384), ((1, 2, 2, 1), 4096))
"""Relative sizes of the segments, finest first, and the tiles (chunks times heads) from which they pay for their launches."""
_LEAST_CHUNKS = 256


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
def segments_of(documents: Documents, num_heads: int, device: torch.device) -> tuple[Segment, ...]:
    """One segment for short inputs, else several. Those at the ends are small: there a kernel runs alone."""
    counts = documents.num_chunks(CHUNK)
    total = sum(counts)
    shares = next((shares for shares, tiles in _SHARES if total >= _LEAST_CHUNKS and total * num_heads >= tiles), (1,))
    wanted = len(shares)
    if documents.count == 1:
        bounds = [total * share // sum(shares) for share in accumulate(shares, initial=0)]
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


def run_forward(
    segments: tuple[Segment, ...], inputs: Addresses, numbers: Numbers, *, initial_state: Tensor | None, final_state: Tensor
) -> None:
    """Prepare and scan. `inputs` holds everything but factors and states; fills `o`, `final_state`, and `states`, `v_new` if given."""
    chains = segments[-1].num_documents * int(numbers["num_heads"])
    if chains <= _FEW_CHAINS:
        _run_forward_apart(segments, inputs, numbers, initial_state=initial_state, final_state=final_state)
        return
    work = _Work(segments, inputs, numbers, FORWARD_FACTORS, final_state)
    state = initial_state
    scanned: list[torch.cuda.Event | None] = []
    for index, segment in enumerate(segments):
        if index >= _SLOTS:
            work.lane.main_waits(scanned[index - _SLOTS])
        part = work.part(index, segment)
        kernels.prepare_forward(fill(kernels.PrepareArguments, part, **work.sizes(segment)), work.device)
        state = work.pass_state(part, segment, ("initial_state", "final_state"), state, last=index == len(segments) - 1)
        with work.lane.behind_main():
            kernels.scan(fill(kernels.ScanArguments, part, **work.chains(segment)), work.device)
        scanned.append(work.lane.mark())
    work.lane.join()


def _run_forward_apart(
    segments: tuple[Segment, ...], inputs: Addresses, numbers: Numbers, *, initial_state: Tensor | None, final_state: Tensor
) -> None:
    """The same with outputs made by a kernel of their own, from saved states."""
    kept = () if inputs.get("states") else ("states", "v_new")
    work = _Work(segments, inputs, numbers, FORWARD_FACTORS + kept, final_state)
    state = initial_state
    waiting: tuple[Addresses, Segment, torch.cuda.Event | None] | None = None
    for index, segment in enumerate(segments):
        part = work.part(index, segment)
        kernels.prepare_forward(fill(kernels.PrepareArguments, part, **work.sizes(segment)), work.device)
        state = work.pass_state(part, segment, ("initial_state", "final_state"), state, last=index == len(segments) - 1)
        with work.lane.behind_main():
            kernels.scan(fill(kernels.ScanArguments, part | {"o": 0}, **work.chains(segment)), work.device)
        if waiting is not None:
            _run_output(work, *waiting)
        waiting = (part, segment, work.lane.mark())
    if waiting is not None:
        _run_output(work, *waiting)


def _run_output(work: "_Work", part: Addresses, segment: Segment, scanned: torch.cuda.Event | None) -> None:
    work.lane.main_waits(scanned)
    sizes = {"num_chunks": segment.stop - segment.start, "num_heads": work.num_heads}
    kernels.output(fill(kernels.OutputArguments, part, **sizes), work.device)


def run_backward(
    segments: tuple[Segment, ...], inputs: Addresses, numbers: Numbers, *, d_final_state: Tensor | None, d_initial_state: Tensor
) -> None:
    """Prepare, reverse scan, gradient: fills the gradients by their names and the parts of those of A_log and dt_bias."""
    work = _Work(segments, inputs, numbers, BACKWARD_FACTORS, d_initial_state)
    state = d_final_state
    waiting: tuple[Addresses, Segment, torch.cuda.Event | None] | None = None
    for index, segment in enumerate(reversed(segments)):
        part = work.part(index, segment)
        kernels.prepare_backward(fill(kernels.PrepareArguments, part, **work.sizes(segment)), work.device)
        state = work.pass_state(part, segment, ("d_final_state", "d_initial_state"), state, last=index == len(segments) - 1)
        with work.lane.behind_main():
            kernels.reverse_scan(fill(kernels.ReverseScanArguments, part, **work.chains(segment)), work.device)
        if waiting is not None:
            _run_gradient(work, *waiting)
        waiting = (part, segment, work.lane.mark())
    if waiting is not None:
        _run_gradient(work, *waiting)


def _run_gradient(work: "_Work", part: Addresses, segment: Segment, scanned: torch.cuda.Event | None) -> None:
    work.lane.main_waits(scanned)
    kernels.gradient(fill(kernels.GradientArguments, part, **work.sizes(segment)), work.device)


class _Work:
    """The memory of factors, in slots that segments take in turn, and where each segment finds everything."""

    def __init__(
        self, segments: tuple[Segment, ...], inputs: Addresses, numbers: Numbers, factors: tuple[str, ...], end_state: Tensor
    ) -> None:
        self.inputs = inputs
        self.numbers = numbers
        self.end_state = end_state
        self.device = end_state.device
        self.num_heads = int(numbers["num_heads"])
        self.single_document = segments[-1].first_document == 0
        self.lane = _Lane(self.device, len(segments) > 1)
        self.passed: list[Tensor] = []
        tiles = max(segment.stop - segment.start for segment in segments) * self.num_heads
        slots = min(_SLOTS, len(segments))
        sizes = [_BYTES_PER_TILE[name] * tiles for name in factors]
        self.memory = torch.empty(slots * sum(sizes), dtype=torch.uint8, device=self.device)
        starts = list(accumulate(sizes, initial=0))
        self.slots = [
            {name: self.memory.data_ptr() + slot * starts[-1] + start for name, start in zip(factors, starts, strict=False)}
            for slot in range(slots)
        ]

    def part(self, index: int, segment: Segment) -> Addresses:
        """The addresses as the segment sees them: a slot for factors, kept images and the chunk table from its start on."""
        part = self.inputs | self.slots[index % _SLOTS]
        part["first_chunk"] = segment.first_chunk.data_ptr()
        if segment.start > 0:
            part["chunks"] += segment.start * _BYTES_PER_CHUNK_ROW
            for name in _KEPT:
                if name in self.inputs:
                    part[name] += segment.start * self.num_heads * _BYTES_PER_TILE[name]
        return part

    def pass_state(
        self, part: Addresses, segment: Segment, fields: tuple[str, str], incoming: Tensor | None, *, last: bool
    ) -> Tensor | None:
        """Sets a segment's incoming and outgoing state, by their fields, and returns what the next one receives."""
        came, leaves = fields
        following: Tensor | None
        if self.single_document:
            outgoing = self.end_state if last else torch.empty_like(self.end_state)
            self.passed.append(outgoing)
            offset, following = 0, outgoing
        else:
            outgoing, following = self.end_state, incoming
            offset = segment.first_document * self.num_heads * HEAD_DIM * HEAD_DIM * 4
        part[leaves] = outgoing.data_ptr() + offset
        if incoming is not None:
            part[came] = incoming.data_ptr() + offset
        return following

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

    def behind_main(self) -> AbstractContextManager[object]:
        """Runs its body on the side stream after all that the main stream has been given so far."""
        if self.side is None:
            return nullcontext()
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
