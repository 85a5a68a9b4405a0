"""The seam between commands and engines: what a person at a terminal needs of runs, wherever they live.

The CLI is written against `RunClient` alone. Two engines fit behind it, and they share nothing below it:

    local      a run is a folder of this machine; asking is a file, a supervisor process answers
    kuberay    a run is a TrainingRun of an API server; asking is a patch, the operator answers; records lie in object storage

That is the reason for the seam: the same verbs, phases, words and exit codes for both, and one place to look when they differ.
"""

import getpass
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from samite.checkpoint import Store
from samite.lifecycle import Memory, RequestKind
from samite.telemetry.events import EventRecord

TERMINAL_PHASES = frozenset({"Succeeded", "Failed", "Cancelled"})
"""Phases that a run never leaves."""


class RunHandle(Protocol):
    """What an engine gives out for a run: opaque to commands but for its name."""

    @property
    def name(self) -> str:
        """The run's name."""
        ...


Handle = TypeVar("Handle", bound=RunHandle)
Made_co = TypeVar("Made_co", bound=RunHandle, covariant=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class Submitted(Generic[Made_co]):
    """A run that exists now. `existed` is true if the very same document was submitted before."""

    run: Made_co
    existed: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class LogChoice:
    """Which logs of a run are wanted."""

    source: str = "all"
    """rank, driver, node, supervisor, operator or all."""
    ranks: frozenset[int] = frozenset()
    """Empty: every rank."""
    attempt: int | None = None
    """None: the newest; 0: all."""
    previous: bool = False
    """The attempt before the newest, and of a pod the container that ran before the one that runs now."""

    def of_attempts(self, numbers: Sequence[int]) -> frozenset[int]:
        """Those of `numbers` that are chosen."""
        in_order = sorted(set(numbers))
        if self.previous:
            return frozenset(in_order[-2:-1])
        return frozenset(in_order[-1:] if self.attempt is None else [number for number in in_order if self.attempt in {0, number}])


class LogStream(Protocol):
    """One log, read as it grows."""

    @property
    def label(self) -> str:
        """What marks its lines: `a2 rank-1`, `node-2`, `supervisor`."""
        ...

    def drain(self, *, last: bool = False) -> Iterator[str]:
        """Whole lines that came since the last call; with `last`, an unfinished one too."""
        ...


class Logs(Protocol):
    """The chosen logs of a run."""

    def streams(self, *, last: bool = False) -> Sequence[LogStream]:
        """Those that exist now, in the order of attempts. A stream is the same object in every call, so that draining goes on.

        `last`: the run is over, and this is the last call.
        """
        ...


class EventFeed(Protocol):
    """The events of a run, as they come."""

    def poll(self) -> list[EventRecord]:
        """Events that were not given before, oldest first; the first call gives all there are."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Blow:
    """One thing to break on purpose (`samite chaos`)."""

    kind: str
    """kill-node, kill-head, kill-rank, stop-rank, kill-driver, kill-supervisor, or a fault of the trainer: nan, exception, sleep, slow."""
    node: str = ""
    """Of kill-node; empty: the last worker."""
    rank: int = 0
    step: int = -1
    """Optimizer step of the run to strike at; -1: the next one."""
    times: int = 1
    seconds: float = 600.0
    factor: float = 2.0


class RunClient(Protocol[Handle]):
    """The runs of one place. Every method may raise a SamiteError, and nothing else."""

    @property
    def place(self) -> str:
        """Where it looks, for messages: `this machine`, `namespace team of context prod`."""
        ...

    @property
    def flags(self) -> tuple[str, ...]:
        """What a samite command needs to look in the same place, such as `--context prod`; for suggestions."""
        ...

    @property
    def refresh_s(self) -> float:
        """Pause between two looks of a live screen, in seconds."""
        ...

    def submit(self, document: dict[str, Any], source: str) -> Submitted[Handle]:
        """Make the run. The same name with the same document is no error; with another it is a ConflictError with ways out."""
        ...

    def find(self, name: str) -> Handle:
        """An existing run: by name, or the only active one if `name` is empty. Raises NotFoundError naming those that exist, UsageError."""
        ...

    def runs(self) -> Sequence[Handle]:
        """Every run, by name."""
        ...

    def status(self, run: Handle) -> dict[str, Any]:
        """The newest status document (`samite.lifecycle.Status`, camelCase) with name, engine, stages, totalSteps and settled."""
        ...

    def record(self, run: Handle) -> dict[str, Any]:
        """`uid`, `submittedAt` (seconds since the epoch) and `run`, the document with every default."""
        ...

    def memory(self, run: Handle) -> Memory:
        """What the lifecycle remembers of the run; empty if nobody has looked at it yet. SamiteError if it is damaged."""
        ...

    def details(self, run: Handle) -> dict[str, Any]:
        """What else `samite describe` shows: `attempts`, `checkpoints` (URI), `attended`, and places by their name."""
        ...

    def attended(self, run: Handle) -> bool | None:
        """Whether a living supervisor or operator looks after the run. None: cannot be told."""
        ...

    def attend(self, run: Handle) -> None:
        """See to it that somebody looks after the run, as far as that is the client's business."""
        ...

    def wish(self, run: Handle, *, suspend: bool | None = None, cancel: bool | None = None) -> None:
        """Change what is wanted of the run as a whole. A cancelled run cannot be un-cancelled."""
        ...

    def ask(self, run: Handle, kind: RequestKind, *, argument: str = "", by: str = "", windows: tuple[tuple[int, int], ...] = ()) -> str:
        """Leave one request, answered once; returns its id."""
        ...

    def events(self, run: Handle) -> EventFeed:
        """The events of engine, trainer and people, also after everything that told them is gone."""
        ...

    def logs(self, run: Handle, choice: LogChoice) -> Logs:
        """What ranks, driver, nodes and supervisor or operator printed, also after they are gone."""
        ...

    def store(self, run: Handle) -> Store:
        """Where the run's checkpoints are. Makes no request."""
        ...

    def records(self, run: Handle) -> AbstractContextManager[Path]:
        """A folder laid out as a local run's, with everything that is known of the run. Kept or removed on leaving, as the engine likes."""
        ...

    def strike(self, run: Handle, blow: Blow) -> str:
        """Break something, announced in the run's events; returns what was done. NotFoundError if there is nothing to hit."""
        ...

    def delete(self, run: Handle) -> None:
        """Remove a run that is over, and its record. ConflictError while it is not over."""
        ...


def who() -> str:
    """The person at the terminal, as far as the system knows."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"
