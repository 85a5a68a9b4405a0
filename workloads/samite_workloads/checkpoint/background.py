"""The manager's two background threads: one uploads snapshots in order, one watches for commits (rank 0 makes them).

    save() ──job──▶ upload: data objects, index ──▶ buffer free again
              └───▶ watch:  rank 0 waits for all indexes, commits, moves the hint, applies retention; others wait for MANIFEST or ABORTED

Every job ends by its deadline with a commit or a failure, whatever storage does; nothing here raises into training.
"""

import contextlib
import os
import queue
import sys
import threading
import time
import weakref
from functools import partial

from samite.checkpoint.catalog import Catalog
from samite.checkpoint.commit import announce_abort, announce_failure, arrivals, build_manifest, commit, move_hint
from samite.checkpoint.layout import ABORTED, MANIFEST, checkpoint_key
from samite.checkpoint.manifest import Manifest
from samite.checkpoint.retention import carry_out, plan_for
from samite.checkpoint.store import MissingKeyError, StorageFullError, Store
from samite.checkpoint.store.retry import RetryingStore
from samite.checkpoint.verify import Level
from samite.errors import SamiteError, TemporaryError
from samite_workloads.checkpoint.jobs import Ledger, SaveJob
from samite_workloads.checkpoint.results import CheckpointOptions, DeadlineExceededError
from samite_workloads.checkpoint.staging import BufferPool
from samite_workloads.checkpoint.writer import write_rank

_GRACE_S = 5.0
"""Other ranks wait this much longer than the coordinator, so that its reason reaches them."""

_ABORTED_EVERY = 2
"""Ranks look for the commit each time, and each so many times for word that there will be none."""

_NICE = 10
"""How far the upload stands back behind training where both want a processor."""


class BackgroundSaver:
    """Owns both threads. `submit` hands over a job and its buffer; how it ends stands in the ledger."""

    def __init__(self, store: Store, rank: int, pool: BufferPool, ledger: Ledger, options: CheckpointOptions) -> None:
        self._store = store
        self._rank = rank
        self._pool = pool
        self._ledger = ledger
        self._options = options
        self._uploads: queue.SimpleQueue[SaveJob | None] = queue.SimpleQueue()
        self._wake = threading.Event()
        self._stopping = False
        self._threads: list[threading.Thread] = []

    def submit(self, job: SaveJob) -> None:
        """Upload and commit `job`."""
        if not self._threads:
            for name, target in (("samite-upload", self._upload_loop), ("samite-commit", self._watch_loop)):
                thread = threading.Thread(target=target, name=name, daemon=True)
                thread.start()
                self._threads.append(thread)
        self._ledger.begin(job)
        self._uploads.put(job)
        self._wake.set()

    def end_with(self, owner: object) -> None:
        """Once `owner` is dropped without `stop`, the threads end after its last save. At exit they are daemons."""
        weakref.finalize(owner, self.stop, 0.0).atexit = False

    def stop(self, timeout_s: float) -> None:
        """End the threads; a job still in flight is left to its own end (they are daemons)."""
        self._stopping = True
        self._uploads.put(None)
        self._wake.set()
        deadline_s = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))

    def _upload_loop(self) -> None:
        _yield_to_training()
        while (job := self._uploads.get()) is not None:
            began_s = time.monotonic()
            try:
                skipped = None if job.agree is None else job.agree()
                if skipped is not None:
                    self._ledger.fail(job, skipped.error)
                    continue
                write_rank(
                    RetryingStore(self._store, job.upload_deadline_s, on_retry=partial(self._note_retry, job)),
                    job.checkpoint_id,
                    self._rank,
                    plan=job.plan,
                    description=job.description,
                    staged=job.buffer.view,
                    read_back=self._options.verify_on_save,
                )
            except SamiteError as error:
                self._withdraw(job, error)
            except Exception as error:  # noqa: BLE001  nothing may end this thread: the run would stop saving without a word
                self._withdraw(job, SamiteError(f"{type(error).__name__} while writing {job.checkpoint_id}: {error}"))
            finally:
                job.uploaded_at_s = time.monotonic()
                job.upload_s = job.uploaded_at_s - began_s
                job.uploaded.set()
                self._pool.give_back(job.buffer)
                self._wake.set()

    def _watch_loop(self) -> None:
        pause_s = self._options.poll_s
        while not (self._stopping and not self._ledger.pending()):
            jobs = self._ledger.pending()
            for job in jobs:
                self._look(job)
            if self._wake.wait(pause_s if jobs else None):
                self._wake.clear()
                pause_s = self._options.poll_s
            else:
                pause_s = min(pause_s * 1.5, self._options.longest_poll_s)

    def _look(self, job: SaveJob) -> None:
        """One look at one job; whatever goes wrong ends it at the latest by its deadline."""
        try:
            if self._rank == 0:
                self._coordinate(job)
            else:
                self._follow(job)
        except TemporaryError as error:
            self._ledger.last_error = str(error)
            late = time.monotonic() > job.deadline_s + (_GRACE_S if self._rank else 0.0)
            if late or isinstance(error, DeadlineExceededError | StorageFullError):
                self._abandon(job, error)
        except SamiteError as error:
            self._abandon(job, error)
        except Exception as error:  # noqa: BLE001  as above
            self._abandon(job, SamiteError(f"{type(error).__name__} while committing {job.checkpoint_id}: {error}"))

    def _coordinate(self, job: SaveJob) -> None:
        """Rank 0: commit once everything is there."""
        if not job.uploaded.is_set():
            job.check_deadline(last_error=self._ledger.last_error)
            return
        found = arrivals(self._store, job.checkpoint_id, job.request.world_size)
        if found.failed:
            rank, reason = min(found.failed.items())
            raise SamiteError(f"rank {rank} could not write its part: {reason}")
        missing = sorted(set(range(job.request.world_size)) - found.present)
        if missing:
            job.check_deadline(f"; nothing came from rank{'s' if len(missing) > 1 else ''} {_some(missing)}")
            return
        manifest = build_manifest(self._store, job.request)
        commit(RetryingStore(self._store, job.deadline_s), manifest, still_wanted=job.check_deadline)
        self._ledger.commit(job, data_bytes=manifest.data_bytes, verified=self._options.verify_on_save)
        self._after_commit(job.checkpoint_id)

    def _follow(self, job: SaveJob) -> None:
        """Other ranks: see how it ends."""
        if job.uploaded.is_set():
            job.looks += 1
            key = checkpoint_key(job.checkpoint_id, MANIFEST)
            try:
                manifest = Manifest.from_bytes(self._store.get(key), name=f"{self._store.uri}/{key}")
                self._ledger.commit(job, data_bytes=manifest.data_bytes, verified=self._options.verify_on_save)
                return
            except MissingKeyError:
                pass
            if job.looks % _ABORTED_EVERY == 0:
                with contextlib.suppress(MissingKeyError):
                    reason = self._store.get(checkpoint_key(job.checkpoint_id, ABORTED)).decode(errors="replace")
                    self._ledger.fail(job, TemporaryError(reason))
                    return
        if time.monotonic() > job.deadline_s + _GRACE_S:
            job.check_deadline("; no word from the coordinator", last_error=self._ledger.last_error)

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
            self._ledger.last_error = f"after the commit of {checkpoint_id}: {error}"

    def _withdraw(self, job: SaveJob, error: SamiteError) -> None:
        """This rank's upload failed: tell the coordinator, so that nobody waits for the deadline."""
        if self._rank:
            announce_failure(self._store, job.checkpoint_id, self._rank, str(error))
        self._abandon(job, error)

    def _abandon(self, job: SaveJob, error: SamiteError) -> None:
        if self._rank == 0 and not job.done.is_set():
            announce_abort(self._store, job.checkpoint_id, str(error))
        self._ledger.fail(job, error)

    def _note_retry(self, job: SaveJob, error: TemporaryError) -> None:
        job.retries += 1
        self._ledger.last_error = str(error)


def _yield_to_training() -> None:
    """This thread, and those it starts, get a processor when training leaves one. Linux alone has priorities of threads; elsewhere nothing changes."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)


def _some(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
