"""What one attempt is told: the file an engine writes before it submits, and the trainer reads before it does anything else.

Written by `samite.engines`, read by `samite_workloads.entrypoint`. Plain JSON, so that a person can read it and start one rank by hand:
`python -m samite_workloads.entrypoint --attempt attempt.json`. Where engine and driver share no file system, the same document travels packed in
the driver's environment.

Paths of one attempt, all below `run_folder`:

    attempts/<submission id>/attempt.json    this file
    attempts/<submission id>/result.json     how the attempt ended (`AttemptResult`), written once by the driver or by rank 0
    attempts/<submission id>/failures/*.json one `FailureReport` for each failing rank and incarnation
    attempts/<submission id>/logs/rank-<r>.log
    heartbeats/rank-<r>.json                 `Heartbeat`, replaced atomically at each step and phase change
    metrics/rank-<r>.jsonl                   metric records (samite.telemetry.jsonlines)
    events.jsonl                             events of engine and trainer, appended with one write per line
    control/*.json                           requests to the trainer: checkpoint now, stop after checkpoint
"""

import base64
import binascii
import json
import math
import os
import zlib
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from samite.telemetry import jsonlines

ATTEMPT_VARIABLE = "SAMITE_ATTEMPT"
"""Holds `AttemptSpec.packed()` for a driver that is started with `--attempt-env`."""


class _JsonFile:
    """JSON in and out for the frozen dataclasses below. Unknown keys are ignored, so that an older reader meets a newer writer in peace."""

    __slots__ = ()

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Parse `text`; raises ValueError (with the key) if a required field is missing or is a number that JSON does not have."""
        document = {key: value for key, value in json.loads(text).items() if not isinstance(value, float) or math.isfinite(value)}
        known = {f.name for f in fields(cls)}  # type: ignore[arg-type]
        try:
            return cls(**{key: value for key, value in document.items() if key in known})
        except TypeError as error:
            raise ValueError(f"{cls.__name__}: {error}") from error

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read one document from `path`."""
        return cls.from_json(path.read_text(encoding="utf-8"))

    def to_json(self) -> str:
        """One line of strict JSON. A number that JSON does not have (a loss nobody knows yet) is left out, and is its default again when read."""
        document = asdict(self)  # type: ignore[call-overload]
        known = {key: value for key, value in document.items() if not isinstance(value, float) or math.isfinite(value)}
        return jsonlines.encode(known).decode("ascii").rstrip("\n")

    def write(self, path: Path) -> None:
        """Replace `path` atomically: a reader sees the old document or the new one, never a part."""
        write_atomically(path, self.to_json() + "\n")


def write_atomically(path: Path, text: str) -> None:
    """Write `text` beside `path` and rename it into place. The directory must exist."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptSpec(_JsonFile):
    """One attempt at one stage of a run."""

    run: dict[str, Any]
    """The whole TrainingRun document, validated and with every default filled in."""
    run_uid: str
    stage_index: int
    attempt: int
    """1-based and growing over the whole run; it is the fencing token of storage commits."""
    submission_id: str
    """`<run>-s<NN>-a<attempt>`, deterministic: submitting twice is refused by Ray."""
    run_folder: str
    num_workers: int
    """Ranks of this attempt: workers x (GPUs per worker, at least 1)."""
    checkpoint_uri: str
    """Resolved absolute URI of the run's checkpoints."""
    worker_group_restarts: int = 0
    """L1: how often the worker group may restart inside this submission before the attempt counts as failed."""
    resume: str = "latest"
    """`latest` (newest checkpoint that verifies), `none` (start from scratch; only when no checkpoint was ever committed), or a checkpoint id."""
    handover: str = ""
    """Content hash of the committed hand-over this stage starts from; empty in the first stage. The trainer refuses to start without a match."""
    skip_data_windows: tuple[tuple[int, int], ...] = ()
    """Half-open ranges of global sequence-row indices to leave out, after a numeric roll-back."""
    environment: dict[str, str] = field(default_factory=dict)
    """Extra environment of the ranks. Never secrets."""
    trace_parent: str = ""

    def packed(self) -> str:
        """The attempt as one printable word, for the environment variable `ATTEMPT_VARIABLE` where no file can be left for the driver."""
        return base64.b64encode(zlib.compress(self.to_json().encode("ascii"), 9)).decode("ascii")

    @classmethod
    def unpack(cls, text: str) -> Self:
        """What `packed` made. Raises ValueError for anything else."""
        try:
            return cls.from_json(zlib.decompress(base64.b64decode(text, validate=True)).decode("ascii"))
        except (binascii.Error, zlib.error, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise ValueError(f"{ATTEMPT_VARIABLE}: wanted base64 of zlib of an attempt's JSON; {error}") from error


@dataclass(frozen=True, kw_only=True, slots=True)
class Heartbeat(_JsonFile):
    """A rank's sign of progress. Ages are computed from `monotonic_s`, which all processes of one machine share; never from wall clocks."""

    rank: int
    node: str
    pid: int
    submission_id: str
    incarnation: int
    """0 for the first worker group of a submission, then one more after each L1 restart."""
    step: int
    """Optimizer steps finished, counted over the whole run."""
    tokens: int
    """Tokens trained over the whole run, global."""
    phase: str
    """starting | loading | first_step | training | evaluating | saving | finishing"""
    monotonic_s: float
    time_unix_s: float
    step_median_s: float = 0.0
    """Median duration of the last steps of this attempt; 0 until known. The hang limit is learnt from it."""
    tokens_per_s: float = 0.0
    """Over this attempt only."""
    loss: float = float("nan")
    stage_step: int = 0
    checkpoint_step: int = -1
    """Step of the newest checkpoint this rank has seen committed; -1 if none."""
    save_s: float = 0.0
    """How long that checkpoint took from the call to its commit, as this rank saw it. Unit: seconds. 0: not written by this attempt."""
    save_stall_s: float = 0.0
    """How long of that training waited on this rank. Unit: seconds."""
    compute_s: float = 0.0
    """Median compute time of a step on this rank, without waiting for others; 0 until known. Stragglers are found by it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FailureReport(_JsonFile):
    """One rank's failure, written by the rank itself when it can, else by the driver from what Ray says."""

    failure_class: str
    """infra | preemption | application | hang | numeric | oom | operator | user"""
    error_type: str
    """Low-cardinality: exception class name, signal name or code."""
    message: str
    rank: int = -1
    node: str = ""
    incarnation: int = 0
    step: int = -1
    traceback: str = ""
    time_unix_s: float = 0.0
    data_window: tuple[int, int] | None = None
    """Global sequence rows of the steps that failed, for a numeric roll-back."""
    good_step: int = -1
    """Last step before the numbers went wrong: no later checkpoint is resumed from. -1: nothing is known of that."""
    restartable: bool = True
    """False: no restart can help (a bad spec, a missing hand-over, refused permissions); the driver ends with exit code 93."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptResult(_JsonFile):
    """How an attempt ended."""

    outcome: str
    """stage_complete | stopped (asked to, checkpoint committed) | failed"""
    submission_id: str
    step: int
    tokens: int
    checkpoint_id: str = ""
    """The final committed checkpoint, for stage_complete and stopped."""
    failure: dict[str, Any] | None = None
    """A `FailureReport` as a mapping, for failed."""
    recomputed_steps: int = 0
    incarnations: int = 1
