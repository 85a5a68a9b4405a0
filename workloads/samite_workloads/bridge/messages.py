"""What travels between a rank's bridge and the collector, by pickle inside Ray: greetings and pushes one way, welcomes and answers the other."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """Growth of one file. `offset` is where it begins in the sender's file, `advance` how many bytes of that file it stands for.

    `advance` is longer than `data` where the middle of a log was left out.
    """

    name: str
    """Path below the run folder."""
    offset: int
    advance: int
    data: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Greeting:
    """First words of a rank's process. `sizes` are those of growing files before this process writes anything."""

    folder_id: str
    rank: int
    sizes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Welcome:
    """What a rank of one machine would find in the run folder."""

    shared: bool
    """The rank's folder is the collector's own: nothing needs to travel."""
    documents: Mapping[str, str] = field(default_factory=dict)
    taken: Mapping[str, int] = field(default_factory=dict)
    """How many bytes of the sender's growing files the collector has."""
    control: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Push:
    """What is new on a rank since the last answer."""

    folder_id: str
    rank: int
    session: str
    """One process of a rank."""
    sent_at_s: float
    """The sender's monotonic clock."""
    documents: Mapping[str, str] = field(default_factory=dict)
    pieces: tuple[Piece, ...] = ()
    cpu_share: float | None = None
    cpu_window_s: float = 0.0
    answered: str = ""
    """The newest `stacks.json` request that this process has answered."""
    control_digest: str = ""
    """Of the control documents that the sender has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What the collector has now, and the control documents if they differ from those of the sender (None: they don't)."""

    taken: Mapping[str, int] = field(default_factory=dict)
    control: Mapping[str, str] | None = None
