"""The error tree of Samite, and the exit code that each branch ends a command with.

Every message says what was wanted, what was found and what to do next. Temporary and permanent failures are different types,
so that callers retry by type and never by reading a message.

    SamiteError                      1   something we did not foresee, or a plain failure
    ├─ UsageError                    2   the command line does not make sense
    ├─ SpecError                     3   a spec does not validate; carries every problem at once
    ├─ NotAllowedError               4   credentials missing, or permission refused
    ├─ NotFoundError                 5   the named run, checkpoint or file does not exist
    ├─ ConflictError                 6   the name is taken, or a lock is held, by something else
    ├─ WaitTimeoutError              7   a wait ran out; the run itself was not touched
    ├─ RunFailedError                8   the run ended as failed
    ├─ TemporaryError               11   try again after `retry_after_s`
    │  └─ UnreachableError          11   cluster, dashboard or storage did not answer
    └─ CheckpointDamagedError       12   stored bytes are not what their manifest promises
"""

from dataclasses import dataclass


class SamiteError(Exception):
    """Base of every error that Samite raises on purpose. `exit_code` is what the CLI ends with."""

    exit_code = 1


class UsageError(SamiteError):
    """The command line contradicts itself or names something that cannot be."""

    exit_code = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """One thing wrong in a spec. `path` is dotted (`spec.stages[1].contextLength`); `line` is 1-based, None if unknown."""

    path: str
    wanted: str
    found: str
    hint: str = ""
    line: int | None = None


class SpecError(SamiteError):
    """A spec does not validate. `problems` holds all of them, in file order; `source` names the file."""

    exit_code = 3

    def __init__(self, problems: list[Problem], source: str = "<spec>") -> None:
        self.problems = problems
        self.source = source
        super().__init__(f"{source}: {len(problems)} problem{'s' if len(problems) != 1 else ''} found")


class NotAllowedError(SamiteError):
    """Credentials are missing, expired, or do not carry the permission; the message names it."""

    exit_code = 4


class NotFoundError(SamiteError):
    """The named run, checkpoint, stage or file does not exist."""

    exit_code = 5


class ConflictError(SamiteError):
    """Something else holds the name, the lock, the port or the storage prefix."""

    exit_code = 6


class WaitTimeoutError(SamiteError):
    """A wait ran out of time. Nothing was changed by waiting."""

    exit_code = 7


class RunFailedError(SamiteError):
    """The run that was waited for has failed."""

    exit_code = 8


class TemporaryError(SamiteError):
    """The same call may succeed after `retry_after_s` seconds."""

    exit_code = 11

    def __init__(self, message: str, *, retry_after_s: float = 5.0) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(message)


class UnreachableError(TemporaryError):
    """No answer from the cluster, the Ray dashboard or the storage. A missing answer is not a fact about the run."""


class CheckpointDamagedError(SamiteError):
    """Stored bytes differ from what their manifest promises; the message names the object and the difference."""

    exit_code = 12
