"""In what order the KDA kernels run: on one stream, or cut into segments so that the serial scan hides behind the parallel kernels.

A scan occupies two multiprocessors per chain, so a long document with few heads leaves most of the device idle. Long inputs are cut into
segments and the scan runs on a second stream of higher priority, one segment behind the kernel that feeds it:

    forward    main  P0 P1 P2 P3 ...          backward    main  B3 B2 G3 B1 G2 B0 G1 G0
               side     S0 S1 S2 ...                      side     R3 R2   R1   R0

P prepare, S scan, B rebuild, R reverse scan, G gradient. A backward that recomputes has P in the place of B and S R in that of R.

With few chains the forward scan leaves the outputs to a parallel kernel, in the place that the gradient has in the backward. Two segments
of factors exist at a time. Within one document the state passes from segment to segment in float32; several documents are cut between
documents. Called by `sm90`; both streams are joined before it returns.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from itertools import accumulate

import torch
from torch import Tensor

from samite_kernels.kda import sm90_launch as kernels
from samite_kernels.kda.sm90_counts import counting
from samite_kernels.kda.sm90_launch import HEAD_DIM, SQUARE_IMAGE, STATE_IMAGE, TOKEN_IMAGE, Addresses, fill
from samite_kernels.kda.sm90_segments import Segment

Numbers = Mapping[str, float]
FORWARD_FACTORS = ("minus_w", "q_grown", "k_kept", "scores", "u_transposed", "keep")
BACKWARD_FACTORS = ("minus_w", "q_grown", "k_kept", "scores", "inverse", "d_states", "d_v_new", "keep")
KEPT = ("states", "v_new", "inverse", "scores")
"""What the forward keeps for the backward unless that is to recompute it."""
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
_WHOLE = (*KEPT, "d_a_log_parts", "d_dt_bias_parts")
"""Arrays over all tiles, where they are not made anew for each segment."""
_BYTES_PER_CHUNK_ROW = 16
_SLOTS = 2
_FEW_CHAINS = 12
"""Documents times heads of a segment up to which a scan is bound by its own latency and not by what it shares with other kernels."""


@dataclass(frozen=True, kw_only=True, slots=True)
class States:
    """The states at both ends of the documents in the direction of the scan, and those that pass from segment to segment."""

    first: Tensor | None
    last: Tensor
    between: Tensor
    """[segments - 1, heads, K, V] for one document, else nothing."""

    @classmethod
    def passing(cls, segments: tuple[Segment, ...], first: Tensor | None, last: Tensor) -> "States":
        """With new memory for what passes."""
        count = len(segments) - 1 if segments[-1].first_document == 0 else 0
        return cls(first=first, last=last, between=last.new_empty((count, *last.shape[1:])))


def run_forward(
    segments: tuple[Segment, ...], inputs: Addresses, numbers: Numbers, states: States, *, prepared: Callable[[], None]
) -> None:
    """Prepare and scan. `inputs` holds everything but factors and states; fills `o`, the states, and those of `KEPT` that are given.

    `prepared` is called for what may follow on the main stream once all factors are made.
    """
    chains = segments[-1].num_documents * int(numbers["num_heads"])
    if chains <= _FEW_CHAINS:
        _run_forward_apart(segments, inputs, numbers, states)
        prepared()
        return
    work = Work(segments, inputs, numbers, FORWARD_FACTORS, states)
    scanned: list[torch.cuda.Event | None] = []
    for index, segment in enumerate(segments):
        if index >= _SLOTS:
            work.lane.main_waits(scanned[index - _SLOTS])
        part = work.part(index, segment)
        work.prepare(part, segment)
        work.pass_state(part, index, segment, "initial_state", "final_state")
        with work.lane.behind_main():
            kernels.scan(fill(kernels.ScanArguments, part, **work.chains(segment)), work.device)
        scanned.append(work.lane.mark())
    prepared()
    work.lane.join()


def _run_forward_apart(segments: tuple[Segment, ...], inputs: Addresses, numbers: Numbers, states: States) -> None:
    """The same with outputs made by a kernel of their own, from saved states."""
    kept = () if inputs.get("states") else ("states", "v_new")
    work = Work(segments, inputs, numbers, FORWARD_FACTORS + kept, states)
    waiting: tuple[Addresses, Segment, torch.cuda.Event | None] | None = None
    for index, segment in enumerate(segments):
        part = work.part(index, segment)
        work.prepare(part, segment)
        work.pass_state(part, index, segment, "initial_state", "final_state")
        with work.lane.behind_main():
            kernels.scan(fill(kernels.ScanArguments, part | {"o": 0}, **work.chains(segment)), work.device)
        if waiting is not None:
            _run_output(work, *waiting)
        waiting = (part, segment, work.lane.mark())
    if waiting is not None:
        _run_output(work, *waiting)


def _run_output(work: "Work", part: Addresses, segment: Segment, scanned: torch.cuda.Event | None) -> None:
    work.lane.main_waits(scanned)
    sizes = {"num_chunks": segment.stop - segment.start, "num_heads": work.num_heads}
    kernels.output(fill(kernels.OutputArguments, part, **sizes), work.device)


def run_backward(
    segments: tuple[Segment, ...], inputs: Addresses, numbers: Numbers, states: States, *, forward: States | None = None
) -> None:
    """Fills the gradients by their names and the parts of those of A_log and dt_bias. `states` are those of the reverse scan.

    `forward`, of which `last` stays untouched: what the forward kept is not in `inputs` and is recomputed, a segment at a time.
    """
    factors = BACKWARD_FACTORS if forward is None else (*BACKWARD_FACTORS, "u_transposed", "states", "v_new")
    work = Work(segments, inputs, numbers, factors, states)
    waiting: tuple[Addresses, Segment, torch.cuda.Event | None] | None = None
    for index, segment in enumerate(reversed(segments)):
        part = work.part(index, segment)
        if forward is None:
            kernels.rebuild(fill(kernels.RebuildArguments, part, **work.sizes(segment)), work.device)
        else:
            work.prepare(part, segment)
        work.pass_state(part, index, segment, "d_final_state", "d_initial_state")
        with work.lane.behind_main():
            if forward is not None:
                scanned = part | {"o": 0, "initial_state": _start(forward, len(segments) - 1 - index, segment)}
                kernels.scan(fill(kernels.ScanArguments, scanned, **work.chains(segment)), work.device)
            kernels.reverse_scan(fill(kernels.ReverseScanArguments, part, **work.chains(segment)), work.device)
        if waiting is not None:
            _run_gradient(work, *waiting)
        waiting = (part, segment, work.lane.mark())
    if waiting is not None:
        _run_gradient(work, *waiting)


def _start(states: States, index: int, segment: Segment) -> int:
    """Address of the state that enters a segment in the direction of the scan, 0 for none."""
    if index > 0 and states.between.shape[0]:
        return states.between[index - 1].data_ptr()
    return 0 if states.first is None else states.first.data_ptr() + segment.first_document * states.first[0].numel() * 4


def _run_gradient(work: "Work", part: Addresses, segment: Segment, scanned: torch.cuda.Event | None) -> None:
    work.lane.main_waits(scanned)
    kernels.gradient(fill(kernels.GradientArguments, part, **work.sizes(segment)), work.device)


class Work:
    """The memory of factors, in slots that segments take in turn, and where each segment finds everything."""

    def __init__(
        self, segments: tuple[Segment, ...], inputs: Addresses, numbers: Numbers, factors: tuple[str, ...], states: States
    ) -> None:
        self.inputs = inputs
        self.numbers = numbers
        self.states = states
        self.count = len(segments)
        self.device = states.last.device
        self.num_heads = int(numbers["num_heads"])
        self.lane = _Lane(self.device, len(segments) > 1)
        factors = tuple(name for name in factors if name not in inputs)
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
            for name in _WHOLE:
                if name in self.inputs:
                    part[name] += segment.start * self.num_heads * _BYTES_PER_TILE[name]
        return part

    def pass_state(self, part: Addresses, index: int, segment: Segment, came: str, leaves: str) -> None:
        """Sets the states that come into a segment and leave it, by their fields; `index` counts in the direction of the scan."""
        start = _start(self.states, index, segment)
        if start:
            part[came] = start
        if index + 1 < self.count and self.states.between.shape[0]:
            part[leaves] = self.states.between[index].data_ptr()
        else:
            part[leaves] = self.states.last.data_ptr() + segment.first_document * self.num_heads * HEAD_DIM * HEAD_DIM * 4

    def prepare(self, part: Addresses, segment: Segment) -> None:
        """All factors of a segment on the main stream."""
        numbers = self.sizes(segment)
        numbers |= counting(self.numbers["lower_bound"]) if part.get("counts") else {}
        kernels.prepare(fill(kernels.PrepareArguments, part, **numbers), self.device)

    def sizes(self, segment: Segment) -> dict[str, float]:
        """The numbers of a kernel that is parallel over chunks."""
        return {**self.numbers, "num_chunks": segment.stop - segment.start}

    def chains(self, segment: Segment) -> dict[str, int]:
        """The numbers of a scan."""
        return {"num_documents": segment.num_documents, "num_heads": self.num_heads}


class _Lane:
    """The second stream, or the main one when there is nothing to hide."""

    def __init__(self, device: torch.device, apart: bool) -> None:
        self.main = torch.cuda.current_stream(device) if apart else None
        self.side = _side_stream(device) if apart else None

    def behind_main(self) -> AbstractContextManager[object]:
        """Runs its body on the side stream after all that the main stream has been given so far."""
        if self.side is None or self.main is None:
            return nullcontext()
        self.side.wait_event(self.main.record_event())
        return torch.cuda.stream(self.side)

    def mark(self) -> torch.cuda.Event | None:
        """What the side stream has been given so far, for `main_waits`."""
        return None if self.side is None else self.side.record_event()

    def main_waits(self, event: torch.cuda.Event | None) -> None:
        """Holds the main stream until the side stream has come to `event`."""
        if event is not None and self.main is not None:
            self.main.wait_event(event)

    def join(self) -> None:
        """Holds the main stream for all of the side stream."""
        self.main_waits(self.mark())


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device, priority=-1)
