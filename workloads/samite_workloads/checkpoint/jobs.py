"""Saves under way and how they ended: the one place that both background threads and the training thread look at."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from samite.checkpoint.commit import CommitRequest
from samite.errors import SamiteError
from samite_workloads.checkpoint.plan import WritePlan
from samite_workloads.checkpoint.results import Committed, DeadlineExceededError, SaveFailure
from samite_workloads.checkpoint.staging import Buffer
from samite_workloads.checkpoint.writer import Description

LAST_WORDS_S = 2.0
"""A rank that cannot write gives up this much before the deadline, at most a fifth of it."""

LAST_RESORT_S = 15.0
"""How long after its deadline a save ends here even if storage holds every background thread."""


@dataclass(kw_only=True, slots=True)
class SaveJob:
    """One save of this rank, from snapshot to its end. Times are on the monotonic clock."""

    request: CommitRequest
    plan: WritePlan
    description: Description
    buffer: Buffer
    began_s: float
    deadline_s: float
    snapshot_s: float
    stall_s: float
    agree: Callable[[], SaveFailure | None] | None = None
    """Waits for the other ranks' answers, where training did not: a failure if not all of them save. Raises if they cannot mean the same save."""
    upload_s: float = 0.0
    uploaded_at_s: float = 0.0
    retries: int = 0
    looks: int = 0
    """How often this rank has looked how it ended."""
    uploaded: threading.Event = field(default_factory=threading.Event)
    done: threading.Event = field(default_factory=threading.Event)
    failure: SaveFailure | None = None

    @property
    def upload_deadline_s(self) -> float:
        """Until when this rank repeats its requests: a little earlier, so that its reason reaches the coordinator before all is given up."""
        return self.deadline_s - min(LAST_WORDS_S, 0.2 * (self.deadline_s - self.began_s))

    @property
    def checkpoint_id(self) -> str:
        """What it will be if it is committed."""
        return self.request.checkpoint_id

    def check_deadline(self, detail: str = "", *, last_error: str = "") -> None:
        """Raise DeadlineExceededError if its time is over, with what was still missing."""
        if time.monotonic() > self.deadline_s:
            stuck = "" if self.uploaded.is_set() else "; this rank's upload has not finished"
            cause = f"; last error: {last_error}" if last_error else ""
            waited_s = self.deadline_s - self.began_s
            raise DeadlineExceededError(f"{self.checkpoint_id} was not committed within {waited_s:.0f} s{stuck}{detail}{cause}")


class Ledger:
    """Jobs without an end, and the ends nobody has taken yet. Thread-safe; each job ends exactly once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pending: list[SaveJob] = []
        self._committed: list[Committed] = []
        self._failures: list[SaveFailure] = []
        self.last_error = ""
        """The newest error of storage, empty after a commit."""

    def begin(self, job: SaveJob) -> None:
        """A save is under way."""
        with self._lock:
            self._pending.append(job)

    def pending(self) -> list[SaveJob]:
        """Jobs without an end yet, oldest first; one whose time is long past ends here."""
        with self._lock:
            pending = list(self._pending)
        overdue = [job for job in pending if time.monotonic() > job.deadline_s + LAST_RESORT_S]
        for job in overdue:
            self.fail(job, DeadlineExceededError(f"{job.checkpoint_id}: storage has not answered since its deadline; it is given up"))
        return [job for job in pending if job not in overdue]

    def commit(self, job: SaveJob, *, data_bytes: int, verified: bool) -> None:
        """`job` has become a checkpoint."""
        now_s = time.monotonic()
        committed = Committed(
            checkpoint_id=job.checkpoint_id,
            step=job.request.step,
            data_bytes=data_bytes,
            seconds=now_s - job.began_s,
            stall_s=job.stall_s,
            snapshot_s=job.snapshot_s,
            upload_s=job.upload_s,
            commit_s=now_s - job.uploaded_at_s,
            retries=job.retries,
            verified=verified,
        )
        with self._lock:
            if not job.done.is_set():
                self._pending.remove(job)
                self._committed.append(committed)
                self.last_error = ""
                job.done.set()

    def fail(self, job: SaveJob, error: SamiteError) -> None:
        """`job` will not become a checkpoint."""
        failure = SaveFailure(step=job.request.step, checkpoint_id=job.checkpoint_id, error=error)
        with self._lock:
            if not job.done.is_set():
                self._pending.remove(job)
                self._failures.append(failure)
                self.last_error = failure.reason
                job.failure = failure
                job.done.set()

    def skip(self, failure: SaveFailure) -> None:
        """A save ended before it became a job."""
        with self._lock:
            self._failures.append(failure)
            self.last_error = failure.reason

    def forget(self, failure: SaveFailure) -> None:
        """Its caller raises it: it need not be reported again."""
        with self._lock:
            if failure in self._failures:
                self._failures.remove(failure)

    def take_committed(self) -> list[Committed]:
        """Commits since the last call."""
        with self._lock:
            taken, self._committed = self._committed, []
        return taken

    def take_failures(self) -> list[SaveFailure]:
        """Failures since the last call."""
        self.pending()
        with self._lock:
            taken, self._failures = self._failures, []
        return taken
