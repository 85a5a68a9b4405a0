"""CheckpointManager: what a training loop calls. Save without waiting, learn what was committed, restore onto any number of ranks.

    manager = CheckpointManager(uri, run_uid="r1", epoch=1, rank=rank, world_size=world_size)
    restored = manager.restore("latest", tensors)          # in place; None only if nothing was ever committed
    ...
    manager.save(step, tensors, extra)                      # snapshot taken on return
    for commit in manager.poll(): ...                       # never raises
    for failure in manager.take_failures(): ...             # training goes on; the previous checkpoint is as it was
    manager.wait(timeout_s=600)                             # before the end of a stage; raises if the last saves failed

Every rank calls the same methods in the same order. Collectives are a few bytes on a gloo group of its own; commits use none, and training waits for none.
"""

import hashlib
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch.distributed as dist
from torch import Tensor

import samite
from samite.checkpoint.commit import CommitRequest, announce_abort, announce_failure
from samite.checkpoint.fence import open_session
from samite.checkpoint.layout import CheckpointId, SessionId
from samite.checkpoint.store import Store, open_store
from samite.checkpoint.store.probe import probe
from samite.checkpoint.store.retry import RetryingStore
from samite.errors import SamiteError, UsageError, WaitTimeoutError
from samite_workloads.checkpoint.agreement import peers
from samite_workloads.checkpoint.background import BackgroundSaver
from samite_workloads.checkpoint.jobs import Ledger, SaveJob
from samite_workloads.checkpoint.meeting import meeting
from samite_workloads.checkpoint.plan_cache import PlanCache
from samite_workloads.checkpoint.restore import restore
from samite_workloads.checkpoint.results import (
    CheckpointOptions,
    Committed,
    Health,
    Restored,
    RestoreMismatchError,
    SaveFailedError,
    SaveFailure,
)
from samite_workloads.checkpoint.shards import local_shards
from samite_workloads.checkpoint.snapshot import Prepared, Readiness, agreement, prepare, readiness, take_snapshot
from samite_workloads.checkpoint.staging import Buffer, BufferPool

_LOOK_S = 0.5
"""Between looks whether a pending save's time is over."""


class CheckpointManager:
    """Checkpoints of one run, as one rank sees them.

    `uri` (or an open store) holds them; `epoch` is the fencing token, larger for each new attempt: an older attempt that still lives can commit
    nothing any more. `group` is a gloo group of all ranks; None makes one. Opening is collective; it probes storage on rank 0 and raises on all
    ranks what rank 0 found: NotAllowedError, UnreachableError, ConflictError (another run's checkpoints), FencedError (a newer attempt exists).
    """

    def __init__(
        self,
        uri: str | Store,
        *,
        run_uid: str,
        epoch: int,
        rank: int = 0,
        world_size: int = 1,
        group: dist.ProcessGroup | None = None,
        options: CheckpointOptions | None = None,
    ) -> None:
        self._options = options or CheckpointOptions()
        self._store = open_store(uri, self._options.store) if isinstance(uri, str) else uri
        self._rank, self._world_size, self._run_uid = rank, world_size, run_uid
        self._peers = peers(group, rank, world_size)
        self._session, self._nonce = self._open_session(epoch)
        self._pool = BufferPool(self._options.buffers)
        self._plans = PlanCache(rank=rank, world_size=world_size, object_bytes=self._options.object_bytes)
        self._ledger = Ledger()
        self._background = BackgroundSaver(self._store, rank, self._pool, self._ledger, self._options)
        self._background.end_with(self)
        self._saves, self._agreed = 0, False

    @property
    def store(self) -> Store:
        """Where the checkpoints are."""
        return self._store

    @property
    def session(self) -> SessionId:
        """This manager's writer session."""
        return self._session

    def prepare(self, tensors: Mapping[str, Tensor]) -> None:
        """Plan saves of `tensors` and have their memory, in the background: then the first save stalls little longer than the next. Not collective."""
        self._make_room(prepare(0, tensors, None, rank=self._rank, cache=self._plans))

    def save(
        self,
        step: int,
        tensors: Mapping[str, Tensor],
        extra: Mapping[str, Any] | None = None,
        *,
        asynchronous: bool = True,
        final: bool = False,
    ) -> None:
        """Snapshot `tensors` and write them in the background; on return the caller may change them.

        `extra` is JSON, the same on every rank. `final` marks the last checkpoint of a stage. With `asynchronous=False` it returns after the commit
        and raises SaveFailedError if there is none. Raises SamiteError on all ranks if any rank's state cannot be written; where the state keeps the
        structure of the save before, ranks whose own part is fine do not wait for the others' word and are told as a failure. A slow or broken storage
        never raises here, see `take_failures`.
        """
        began_s = time.monotonic()
        prepared = prepare(step, tensors, extra, rank=self._rank, cache=self._plans)
        buffer = None if prepared.problem else self._pool.take(self._options.stall_s)
        self._saves += 1
        self._agreed &= prepared.unchanged
        ready = readiness(prepared, buffer_free=buffer is not None)
        skipped: SaveFailure | None = None
        job: SaveJob | None
        try:
            if buffer is not None and self._agreed and asynchronous:
                job = self._job(prepared, buffer, began_s, final=final, ready=ready)
            else:
                skipped = self._agree(self._peers.begin_gather(ready.to_bytes()), began_s + self._options.deadline_s)
                self._agreed |= skipped is None
                job = None if skipped or buffer is None else self._job(prepared, buffer, began_s, final=final)
        except BaseException:
            self._pool.give_back(buffer)
            raise
        if job is None:
            self._pool.give_back(buffer)
            assert skipped is not None
            if not asynchronous:
                raise SaveFailedError(skipped.reason)
            self._ledger.skip(skipped)
            return
        self._background.submit(job)
        if not prepared.unchanged:
            self._make_room(prepared)
        if not asynchronous:
            while not job.done.wait(_LOOK_S):
                self._ledger.pending()
            if job.failure is not None:
                self._ledger.forget(job.failure)
                raise SaveFailedError(f"step {step}: {job.failure.reason}")

    def poll(self) -> list[Committed]:
        """Checkpoints committed since the last call; never waits, never raises."""
        return self._ledger.take_committed()

    def take_failures(self) -> list[SaveFailure]:
        """Saves that failed or were skipped since the last call. Training may go on: older checkpoints are untouched."""
        return self._ledger.take_failures()

    def wait(self, timeout_s: float | None = None) -> list[Committed]:
        """Wait for all pending saves and return those committed since the last `poll`.

        Raises SaveFailedError if any save failed since `take_failures` was last called, WaitTimeoutError after `timeout_s`.
        """
        committed = self.drain(timeout_s)
        self._raise_failures()
        return committed

    def drain(self, timeout_s: float | None = None) -> list[Committed]:
        """Like `wait`, but failures are left to `take_failures`: for a loop that saves once more anyway."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while pending := self._ledger.pending():
            rest_s = _LOOK_S if deadline_s is None else deadline_s - time.monotonic()
            if rest_s <= 0:
                raise WaitTimeoutError(
                    f"{pending[0].request.checkpoint_id} is still being written after {timeout_s:.0f} s; {self.health().last_error}"
                )
            pending[0].done.wait(min(rest_s, _LOOK_S))
        return self.poll()

    def health(self) -> Health:
        """How saving goes right now."""
        pending = self._ledger.pending()
        oldest_s = time.monotonic() - pending[0].began_s if pending else 0.0
        retries = pending[0].retries if pending else 0
        return Health(pending=len(pending), oldest_pending_s=oldest_s, retries=retries, last_error=self._ledger.last_error)

    def restore(
        self,
        checkpoint_id: str,
        tensors: Mapping[str, Tensor],
        *,
        allow_missing: Sequence[str] = (),
        allow_unused: Sequence[str] = (),
        own_first: bool = False,
        source: Store | None = None,
    ) -> Restored | None:
        """Load into `tensors`, in place, whatever number of ranks and sharding wrote them.

        `latest` takes the newest that verifies; damaged ones on the way are quarantined with their reason, and None means that nothing was ever
        committed. An id takes exactly that one; with `own_first`, a newer one of this same epoch wins (a restarted worker group goes on where its
        attempt was). `allow_missing` and `allow_unused` are patterns of names that only the targets, or only the checkpoint, may have. `source`
        reads from another run's store.

        Raises on all ranks: CheckpointDamagedError (nothing usable left, or the named one is damaged), RestoreMismatchError (all differences at
        once; nothing overwritten), NotAllowedError, UnreachableError, PeerLostError if a rank dies. A refusal is never taken for an empty store.
        """
        shards, problem = [], ""
        try:
            shards = local_shards(tensors, rank=self._rank, world_size=self._world_size, targets=True)
        except SamiteError as error:
            problem = f"rank {self._rank}: {error}"
        problems = [other for other in self._peers.gather(problem) if other]
        if problems:
            raise RestoreMismatchError("nothing was loaded: " + "; ".join(problems))
        with meeting(self._peers, silence_s=self._options.peer_silence_s) as together:
            return restore(
                RetryingStore(source or self._store, time.monotonic() + self._options.load_deadline_s),
                checkpoint_id,
                shards,
                meeting=together,
                own_epoch=self._session.epoch if own_first else None,
                allow_missing=allow_missing,
                allow_unused=allow_unused,
                threads=self._options.threads,
                share_reads=self._options.share_reads,
            )

    def close(self, timeout_s: float = 5.0) -> None:
        """End the background threads. Pending saves get `timeout_s` to finish; call `wait` first if they matter."""
        self._background.stop(timeout_s)

    def _open_session(self, epoch: int) -> tuple[SessionId, str]:
        answer: tuple[SessionId, str] | SamiteError = UsageError("no answer")
        if self._rank == 0:
            try:
                store = RetryingStore(self._store, time.monotonic() + self._options.load_deadline_s)
                if self._options.probe:
                    probe(store).raise_if_unfit()
                fence = open_session(store, run_uid=self._run_uid, epoch=epoch, nonce=secrets.token_hex(8))
                answer = (fence.session, fence.nonce)
            except SamiteError as error:
                answer = error
        answer = self._peers.broadcast(answer)
        if isinstance(answer, SamiteError):
            raise answer
        return answer

    def _make_room(self, prepared: Prepared) -> None:
        self._pool.prepare(prepared.plan.staging_bytes, pinned=any(shard.data.is_cuda for shard in prepared.shards))

    def _agree(self, answers: Callable[[float], list[bytes]], deadline_s: float) -> SaveFailure | None:
        return agreement(answers(deadline_s - time.monotonic()), self._options, self._ledger.last_error)

    def _job(self, prepared: Prepared, buffer: Buffer, began_s: float, *, final: bool, ready: Readiness | None = None) -> SaveJob:
        """Take the snapshot. With `ready` the ranks agree after it, and the upload waits for that: training does not, nor do uploads disturb its copies."""
        attempt = hashlib.blake2b(f"{self._nonce}:{self._saves}".encode(), digest_size=4).hexdigest()
        checkpoint_id = str(CheckpointId(step=prepared.step, epoch=self._session.epoch, attempt=attempt))
        snapshot_began_s = time.monotonic()
        try:
            description = take_snapshot(prepared, buffer, check_replicas=self._options.check_replicas)
        except BaseException as error:
            reason = f"{type(error).__name__} during the snapshot: {error}"
            if self._rank:
                announce_failure(self._store, checkpoint_id, self._rank, reason)
            else:
                announce_abort(self._store, checkpoint_id, reason)
            if ready is not None:
                self._peers.begin_gather(replace(ready, problem=f"rank {self._rank}: {reason}").to_bytes())
            raise
        agree = None
        if ready is not None:
            agree = partial(self._agree, self._peers.begin_gather(ready.to_bytes()), began_s + self._options.deadline_s)
        now_s = time.monotonic()
        return SaveJob(
            request=CommitRequest(
                checkpoint_id=checkpoint_id,
                step=prepared.step,
                world_size=self._world_size,
                session=self._session,
                run_uid=self._run_uid,
                created_unix_s=round(time.time(), 3),
                extra=prepared.extra,
                final=final,
                writer=f"samite {samite.__version__}",
            ),
            plan=prepared.plan,
            description=description,
            buffer=buffer,
            began_s=began_s,
            deadline_s=began_s + self._options.deadline_s,
            snapshot_s=now_s - snapshot_began_s,
            stall_s=now_s - began_s,
            agree=agree,
        )

    def _raise_failures(self) -> None:
        failures = self.take_failures()
        if failures:
            raise SaveFailedError("; ".join(f"step {failure.step}: {failure.reason}" for failure in failures))
