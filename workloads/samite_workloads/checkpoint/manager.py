"""CheckpointManager: what a training loop calls. Save without waiting, learn what was committed, restore onto any number of ranks.

    manager = CheckpointManager(uri, run_uid="r1", epoch=1, rank=rank, world_size=world_size)
    restored = manager.restore("latest", tensors)          # in place; None only if nothing was ever committed
    ...
    manager.save(step, tensors, extra)                      # snapshot taken on return
    for commit in manager.poll(): ...                       # never raises
    for failure in manager.take_failures(): ...             # training goes on; the previous checkpoint is as it was
    manager.wait(timeout_s=600)                             # before the end of a stage; raises if the last saves failed

Every rank calls the same methods in the same order. All collectives are a few bytes on a gloo group of its own; commits use none.
"""

import hashlib
import json
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor

import samite
from samite.checkpoint.checksum import crc64
from samite.checkpoint.commit import CommitRequest, announce_abort, announce_failure
from samite.checkpoint.fence import open_session
from samite.checkpoint.index import Witness
from samite.checkpoint.layout import CheckpointId, SessionId
from samite.checkpoint.store import Store, open_store
from samite.checkpoint.store.probe import probe
from samite.checkpoint.store.retry import RetryingStore
from samite.errors import SamiteError, UsageError, WaitTimeoutError
from samite_workloads.checkpoint.agreement import peers
from samite_workloads.checkpoint.background import BackgroundSaver, SaveJob
from samite_workloads.checkpoint.plan import WritePlan, write_plan
from samite_workloads.checkpoint.restore import restore
from samite_workloads.checkpoint.results import (
    CheckpointOptions,
    Committed,
    Health,
    Restored,
    RestoreMismatchError,
    SaveFailedError,
    SaveFailure,
    SaveSkippedError,
)
from samite_workloads.checkpoint.shards import LocalShard, local_shards
from samite_workloads.checkpoint.staging import Buffer, BufferPool, witness_bytes
from samite_workloads.checkpoint.writer import describe


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
        self._background = BackgroundSaver(self._store, rank, self._pool, self._options)
        self._saves = 0

    @property
    def store(self) -> Store:
        """Where the checkpoints are."""
        return self._store

    @property
    def session(self) -> SessionId:
        """This manager's writer session."""
        return self._session

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
        and raises SaveFailedError. Raises UnsupportedTensorError or ValueError on all ranks if any rank's state cannot be written; a slow or broken
        storage never raises here, see `take_failures`.
        """
        began_s = time.monotonic()
        problem, buffer, shards, plan, document = "", None, [], None, {}
        try:
            document = json.loads(json.dumps(dict(extra or {})))
            shards = local_shards(tensors, rank=self._rank, world_size=self._world_size)
            plan = write_plan(shards, object_bytes=self._options.object_bytes)
        except (SamiteError, ValueError, TypeError) as error:
            problem = f"rank {self._rank}: {error}"
        if not problem:
            buffer = self._pool.take(self._options.stall_s)
        answers = self._peers.gather((problem, buffer is not None, step, sorted(tensors) if len(tensors) < 64 else len(tensors)))
        self._saves += 1
        if plan is None or buffer is None or not self._all_ready(step, answers):
            if buffer is not None:
                self._pool.give_back(buffer)
            self._refuse_or_skip(step, answers)
            return
        checkpoint_id = str(CheckpointId(step=step, epoch=self._session.epoch, attempt=self._attempt()))
        job = self._snapshot(checkpoint_id, step, shards, plan, buffer, extra=document, began_s=began_s, final=final)
        self._background.submit(job)
        if not asynchronous:
            job.done.wait(self._options.deadline_s + 30.0)
            self._raise_failures()

    def poll(self) -> list[Committed]:
        """Checkpoints committed since the last call; never waits, never raises."""
        return self._background.take_committed()

    def take_failures(self) -> list[SaveFailure]:
        """Saves that failed or were skipped since the last call. Training may go on: older checkpoints are untouched."""
        return self._background.take_failures()

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
        for job in self._background.pending():
            if not job.done.wait(None if deadline_s is None else max(0.0, deadline_s - time.monotonic())):
                raise WaitTimeoutError(
                    f"{job.request.checkpoint_id} is still being written after {timeout_s:.0f} s; {self.health().last_error}"
                )
        return self.poll()

    def health(self) -> Health:
        """How saving goes right now."""
        pending = self._background.pending()
        oldest_s = time.monotonic() - pending[0].began_s if pending else 0.0
        return Health(pending=len(pending), oldest_pending_s=oldest_s, last_error=self._background.last_error)

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
        once; nothing overwritten), NotAllowedError, UnreachableError. A refusal is never taken for an empty store.
        """
        shards, problem = [], ""
        try:
            shards = local_shards(tensors, rank=self._rank, world_size=self._world_size, targets=True)
        except SamiteError as error:
            problem = f"rank {self._rank}: {error}"
        problems = [other for other in self._peers.gather(problem) if other]
        if problems:
            raise RestoreMismatchError("nothing was loaded: " + "; ".join(problems))
        return restore(
            RetryingStore(source or self._store, time.monotonic() + self._options.load_deadline_s),
            checkpoint_id,
            shards,
            peers=self._peers,
            rank=self._rank,
            own_epoch=self._session.epoch if own_first else None,
            allow_missing=allow_missing,
            allow_unused=allow_unused,
            threads=self._options.threads,
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

    def _attempt(self) -> str:
        return hashlib.blake2b(f"{self._nonce}:{self._saves}".encode(), digest_size=4).hexdigest()

    def _snapshot(
        self,
        checkpoint_id: str,
        step: int,
        shards: list[LocalShard],
        plan: WritePlan,
        buffer: Buffer,
        *,
        extra: dict[str, Any],
        began_s: float,
        final: bool,
    ) -> SaveJob:
        snapshot_began_s = time.monotonic()
        try:
            buffer.fill(plan, shards)
            witnesses = [
                Witness(number, shard.box, crc64(witness_bytes(shard)))
                for number, shard in enumerate(shards)
                if self._options.check_replicas and shard.num_replicas > 1 and shard.num_bytes
            ]
        except BaseException as error:
            self._pool.give_back(buffer)
            reason = f"{type(error).__name__} during the snapshot: {error}"
            if self._rank:
                announce_failure(self._store, checkpoint_id, self._rank, reason)
            else:
                announce_abort(self._store, checkpoint_id, reason)
            raise
        now_s = time.monotonic()
        return SaveJob(
            request=CommitRequest(
                checkpoint_id=checkpoint_id,
                step=step,
                world_size=self._world_size,
                session=self._session,
                run_uid=self._run_uid,
                created_unix_s=round(time.time(), 3),
                extra=extra,
                final=final,
                writer=f"samite {samite.__version__}",
            ),
            plan=plan,
            description=describe(shards, plan, witnesses),
            buffer=buffer,
            began_s=began_s,
            deadline_s=began_s + self._options.deadline_s,
            snapshot_s=now_s - snapshot_began_s,
            stall_s=now_s - began_s,
        )

    @staticmethod
    def _all_ready(step: int, answers: Sequence[tuple[str, bool, int, Any]]) -> bool:
        return all(not problem and ready and other == step and names == answers[0][3] for problem, ready, other, names in answers)

    def _refuse_or_skip(self, step: int, answers: Sequence[tuple[str, bool, int, Any]]) -> None:
        problems = [problem for problem, _, _, _ in answers if problem]
        if problems:
            raise SamiteError("nothing was saved: " + "; ".join(problems))
        if len({other for _, _, other, _ in answers}) > 1:
            raise SamiteError(f"nothing was saved: ranks save different steps {[other for _, _, other, _ in answers]}")
        busy = [str(rank) for rank, (_, ready, _, _) in enumerate(answers) if not ready]
        if not busy:
            raise SamiteError("nothing was saved: ranks save different sets of tensors")
        error = SaveSkippedError(
            f"step {step} was not saved: all {self._options.buffers} staging buffers of rank {', '.join(busy[:8])} stayed busy for "
            f"{self._options.stall_s:.0f} s. {self._background.last_error or 'Storage is slower than the interval between saves'}"
        )
        self._background.add_failure(SaveFailure(step=step, checkpoint_id="", error=error))

    def _raise_failures(self) -> None:
        failures = self.take_failures()
        if failures:
            raise SaveFailedError("; ".join(f"step {failure.step}: {failure.reason}" for failure in failures))
