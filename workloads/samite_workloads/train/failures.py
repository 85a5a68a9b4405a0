"""From an exception to a failure report: what kind it is, and whether it may be tried again.

A rank reports before it dies. When one rank dies, the others see a closed connection: what they report never counts as the cause while any other
report exists (`reports.first_cause`).
"""

import time
import traceback

import torch
import torch.distributed as dist

from samite.errors import SamiteError, SpecError, TemporaryError, UsageError, WaitTimeoutError
from samite.spec.attempt import FailureReport
from samite_workloads.train.numeric import NonFiniteError, SpikeError
from samite_workloads.train.reports import PEER_LOST

_LOST_PEER_WORDS = (
    "connection closed by peer",
    "connection reset by peer",
    "broken pipe",
    "connection refused",
    "socket closed",
    "socket timeout",
    "timed out waiting",
    "heartbeat",
    "remote process exited",
    "gloo",
)
_NUMERIC = (NonFiniteError, SpikeError)
_HOST_OOM_WORDS = ("can't allocate memory", "cannot allocate memory", "out of memory", "std::bad_alloc")


class HandoverMissingError(UsageError):
    """The stage needs the committed hand-over of the stage before it, and it is absent or another one. Not retried."""


def is_permanent(error: BaseException) -> bool:
    """Whether a restart can't help: exit code 93."""
    return isinstance(error, SamiteError) and not isinstance(error, (TemporaryError, WaitTimeoutError))


def failure_class(error: BaseException) -> str:
    """One of the classes of `FailureReport`."""
    if isinstance(error, _NUMERIC):
        return "numeric"
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)) or _says(error, _HOST_OOM_WORDS):
        return "oom"
    if is_lost_peer(error):
        return "infra"
    return "application"


def is_lost_peer(error: BaseException) -> bool:
    """Whether a collective failed because of another rank."""
    return isinstance(error, (dist.DistBackendError, dist.DistNetworkError)) or (
        isinstance(error, RuntimeError) and _says(error, _LOST_PEER_WORDS)
    )


def report_of(error: BaseException, *, rank: int, node: str, incarnation: int, step: int) -> FailureReport:
    """The report of `error` as this rank saw it. The traceback is the plain one: no local variables, so no secrets."""
    lost = is_lost_peer(error)
    return FailureReport(
        failure_class=failure_class(error),
        error_type=PEER_LOST if lost else _type(error),
        message=_message(error)[:4000],
        rank=rank,
        node=node,
        incarnation=incarnation,
        step=step,
        traceback="".join(traceback.format_exception(error))[-16_000:],
        time_unix_s=time.time(),
        data_window=error.rows if isinstance(error, _NUMERIC) else None,
        good_step=error.good_step if isinstance(error, _NUMERIC) else -1,
        restartable=not is_permanent(error),
    )


def _type(error: BaseException) -> str:
    return error.kind if isinstance(error, SpikeError) else type(error).__name__


def _message(error: BaseException) -> str:
    if isinstance(error, SpecError):
        return "; ".join(f"{p.path}: wanted {p.wanted}, found {p.found}" for p in error.problems)
    return str(error)


def _says(error: BaseException, words: tuple[str, ...]) -> bool:
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(word in text for word in words)
