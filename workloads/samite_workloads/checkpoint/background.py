"""The manager's two background threads: one uploads snapshots in order, one watches for commits (rank 0 makes them).

    save() ──job──▶ upload: data objects, index ──▶ buffer free again
              └───▶ watch:  rank 0 waits for all indexes, commits, moves the hint, applies retention; others wait for MANIFEST or ABORTED

Every job ends by its deadline with a commit or a failure, whatever storage does; nothing here raises into training.
"""

import queue
import threading
import time
from dataclasses import dataclass, field
from functools import partial

from samite.checkpoint.catalog import Catalog
from samite.checkpoint.commit import CommitRequest, announce_abort, announce_failure, arrivals, build_manifest, commit, move_hint
from samite.checkpoint.layout import ABORTED, MANIFEST, checkpoint_key
from samite.checkpoint.retention import carry_out, plan_for
from samite.checkpoint.store import MissingKeyError, StorageFullError, Store
from samite.checkpoint.store.retry import RetryingStore
from samite.checkpoint.verify import Level
from samite.errors import SamiteError, TemporaryError
from samite_workloads.checkpoint.plan import WritePlan
from samite_workloads.checkpoint.results import CheckpointOptions, Committed, DeadlineExceededError, SaveFailure
from samite_workloads.checkpoint.staging import Buffer, BufferPool
from samite_workloads.checkpoint.writer import Description, write_rank

_GRACE_S = 5.0
"""Other ranks wait this much longer than the coordinator, so that its reason reaches them."""


@dataclass(kw_only=True, slots=True)
class SaveJob:
    """One save of this rank, from snapshot to its end."""

    request: CommitRequest
    plan: WritePlan
    description: Description
    buffer: Buffer
    began_s: float
    deadline_s: float
    snapshot_s: float
    stall_s: float
    upload_s: float = 0.0
    uploaded_at_s: float = 0.0
    retries: int = 0
    uploaded: threading.Event = field(default_factory=threading.Event)
    done: threading.Event = field(default_factory=threading.Event)


class BackgroundSaver:
    """Owns both threads. `submit` hands over a job and its buffer; results are collected by the manager."""

    def __init__(self, store: Store, rank: int, pool: BufferPool, options: CheckpointOptions) -> None:
        self._store = store
        self._rank = rank
        self._pool = pool
        self._options = options
        self._lock = threading.Lock()
        self._pending: list[SaveJob] = []
        self._committed: list[Committed] = []
        self._failures: list[SaveFailure] = []
        self._last_error = ""
        self._uploads: queue.SimpleQueue[SaveJob | None] = queue.SimpleQueue()
        self._wake = threading.Event()
        self._stopping = False
        self._threads: list[threading.Thread] = []

    def submit(self, job: SaveJob) -> None:
        """Upload and commit `job` in the background."""
        if not self._threads:
            for name, target in (("samite-upload", self._upload_loop), ("samite-commit", self._watch_loop)):
                thread = threading.Thread(target=target, name=name, daemon=True)
                thread.start()
                self._threads.append(thread)
        with self._lock:
            self._pending.append(job)
        self._uploads.put(job)
        self._wake.set()

    def pending(self) -> list[SaveJob]:
        """Jobs without an end yet, oldest first."""
        with self._lock:
            return list(self._pending)

    def take_committed(self) -> list[Committed]:
        """Commits since the last call."""
        with self._lock:
            taken, self._committed = self._committed, []
        return taken

    def take_failures(self) -> list[SaveFailure]:
        """Failures since the last call."""
        with self._lock:
            taken, self._failures = self._failures, []
        return taken

    def add_failure(self, failure: SaveFailure) -> None:
        """Report a save that ended before it became a job."""
        with self._lock:
            self._failures.append(failure)
            self._last_error = failure.reason

    @property
    def last_error(self) -> str:
        """The newest error, empty after a commit."""
        return self._last_error

    def stop(self, timeout_s: float) -> None:
        """End the threads; a job still in flight is left to its own end (they are daemons)."""
        self._stopping = True
        self._uploads.put(None)
        self._wake.set()
        for thread in self._threads:
            thread.join(timeout_s)

    def _upload_loop(self) -> None:
        while (job := self._uploads.get()) is not None:
            began_s = time.monotonic()
            try:
                write_rank(
                    RetryingStore(self._store, job.deadline_s, on_retry=partial(self._note_retry, job)),
                    job.request.checkpoint_id,
                    self._rank,
                    plan=job.plan,
                    description=job.description,
                    staged=job.buffer.view,
                    read_back=self._options.verify_on_save,
                )
            except SamiteError as error:
                self._withdraw(job, error)
            except Exception as error:  # noqa: BLE001  nothing may end this thread: the run would stop saving without a word
                self._withdraw(job, SamiteError(f"{type(error).__name__} while writing {job.request.checkpoint_id}: {error}"))
            finally:
                job.upload_s = time.monotonic() - began_s
                job.uploaded_at_s = time.monotonic()
                job.uploaded.set()
                self._pool.give_back(job.buffer)
                self._wake.set()

    def _watch_loop(self) -> None:
        pause_s = self._options.poll_s
        while not (self._stopping and not self.pending()):
            jobs = self.pending()
            if not jobs:
                self._wake.wait()
                self._wake.clear()
                pause_s = self._options.poll_s
                continue
            for job in jobs:
                self._look(job)
            if self._wake.wait(pause_s):
                self._wake.clear()
                pause_s = self._options.poll_s
            else:
                pause_s = min(pause_s * 1.5, self._options.longest_poll_s)

    def _look(self, job: SaveJob) -> None:
        try:
            if self._rank == 0:
                self._coordinate(job)
            else:
                self._follow(job)
        except TemporaryError as error:
            self._last_error = str(error)
            if isinstance(error, DeadlineExceededError | StorageFullError) or time.monotonic() > job.deadline_s + (
                _GRACE_S if self._rank else 0
            ):
                self._abandon(job, error)
        except SamiteError as error:
            self._abandon(job, error)
        except Exception as error:  # noqa: BLE001  as above
            self._abandon(job, SamiteError(f"{type(error).__name__} while committing {job.request.checkpoint_id}: {error}"))

    def _coordinate(self, job: SaveJob) -> None:
        """Rank 0: commit once everything is there."""
        request = job.request
        if not job.uploaded.is_set():
            self._check_deadline(job, "")
            return
        found = arrivals(self._store, request.checkpoint_id, request.world_size)
        if found.failed:
            rank, reason = min(found.failed.items())
            raise SamiteError(f"rank {rank} could not write its part: {reason}")
        missing = sorted(set(range(request.world_size)) - found.present)
        if missing:
            self._check_deadline(job, f"; nothing came from rank{'s' if len(missing) > 1 else ''} {_some(missing)}")
            return
        manifest = build_manifest(self._store, request)
        commit(RetryingStore(self._store, job.deadline_s), manifest, still_wanted=lambda: self._check_deadline(job, ""))
        self._finish(job, manifest.data_bytes)
        self._after_commit(request.checkpoint_id)

    def _follow(self, job: SaveJob) -> None:
        """Other ranks: see how it ends."""
        if job.uploaded.is_set():
            checkpoint_id = job.request.checkpoint_id
            if self._store.head(checkpoint_key(checkpoint_id, MANIFEST)) is not None:
                self._finish(job, Catalog(self._store).manifest(checkpoint_id).data_bytes)
                return
            try:
                reason = self._store.get(checkpoint_key(checkpoint_id, ABORTED)).decode(errors="replace")
            except MissingKeyError:
                pass
            else:
                self._end(job, SaveFailure(step=job.request.step, checkpoint_id=checkpoint_id, error=TemporaryError(reason)))
                return
        if time.monotonic() > job.deadline_s + _GRACE_S:
            self._check_deadline(job, "; no word from the coordinator")

    def _after_commit(self, checkpoint_id: str) -> None:
        """What makes life easier but is not part of the commit: failing here is only noted."""
        try:
            catalog = Catalog(self._store)
            if self._options.verify_on_save:
                catalog.mark_verified(checkpoint_id, Level.FULL)
            move_hint(self._store, checkpoint_id)
            if self._options.keep is not None:
                carry_out(catalog, plan_for(catalog, self._options.keep))
        except SamiteError as error:
            self._last_error = f"after the commit of {checkpoint_id}: {error}"

    def _check_deadline(self, job: SaveJob, detail: str) -> None:
        if time.monotonic() > job.deadline_s:
            waited_s = job.deadline_s - job.began_s
            cause = f"; last error: {self._last_error}" if self._last_error else ""
            stuck = "" if job.uploaded.is_set() else "; this rank's upload has not finished"
            raise DeadlineExceededError(f"{job.request.checkpoint_id} was not committed within {waited_s:.0f} s{stuck}{detail}{cause}")

    def _withdraw(self, job: SaveJob, error: SamiteError) -> None:
        """This rank's upload failed: tell the coordinator, so that nobody waits for the deadline."""
        if self._rank:
            announce_failure(self._store, job.request.checkpoint_id, self._rank, str(error))
        self._abandon(job, error)

    def _abandon(self, job: SaveJob, error: SamiteError) -> None:
        if self._rank == 0 and not job.done.is_set():
            announce_abort(self._store, job.request.checkpoint_id, str(error))
        self._end(job, SaveFailure(step=job.request.step, checkpoint_id=job.request.checkpoint_id, error=error))

    def _finish(self, job: SaveJob, data_bytes: int) -> None:
        now_s = time.monotonic()
        self._last_error = ""
        self._end(
            job,
            Committed(
                checkpoint_id=job.request.checkpoint_id,
                step=job.request.step,
                data_bytes=data_bytes,
                seconds=now_s - job.began_s,
                stall_s=job.stall_s,
                snapshot_s=job.snapshot_s,
                upload_s=job.upload_s,
                commit_s=now_s - job.uploaded_at_s,
                retries=job.retries,
                verified=self._options.verify_on_save,
            ),
        )

    def _end(self, job: SaveJob, result: Committed | SaveFailure) -> None:
        with self._lock:
            if job.done.is_set():
                return
            self._pending.remove(job)
            if isinstance(result, Committed):
                self._committed.append(result)
            else:
                self._failures.append(result)
                self._last_error = result.reason
            job.done.set()

    def _note_retry(self, job: SaveJob, error: TemporaryError) -> None:
        job.retries += 1
        self._last_error = str(error)


def _some(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
