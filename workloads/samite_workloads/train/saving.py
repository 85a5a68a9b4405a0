"""When the loop saves, and what it does about saves that finish or fail while training goes on.

`CheckpointManager` owns how: snapshot, upload, commit, verify. This module decides when, tells telemetry and the heartbeat, and makes sure that a
stage ends only with its final checkpoint committed. A storage that is slow or down never stops training before that.
"""

import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import torch
import torch.distributed as dist

from samite.checkpoint import StoreOptions, open_store
from samite.checkpoint.fence import FencedError
from samite.checkpoint.retention import KeepPolicy
from samite.spec.attempt import AttemptSpec
from samite_workloads.checkpoint import CheckpointManager, CheckpointOptions, Committed, Restored
from samite_workloads.train.kill_points import KillPointStore
from samite_workloads.train.learner import Learner
from samite_workloads.train.observe import Observer
from samite_workloads.train.plan import TrainPlan
from samite_workloads.train.session import Session
from samite_workloads.train.state import TrainState
from samite_workloads.train.storage_watch import StorageWatch

_TIER = {"samite.checkpoint.tier": "object"}


class Saver:
    """Checkpoints of one attempt; a context manager, collective like the loop."""

    def __init__(self, attempt: AttemptSpec, plan: TrainPlan, session: Session) -> None:
        self._plan, self._session = plan.checkpoint, session
        self._saved_at_s = time.monotonic()
        self._last_id, self._last_step = "", -1
        options = options_of(plan.checkpoint.options)
        self.manager = CheckpointManager(
            KillPointStore(open_store(attempt.checkpoint_uri, store_options_of(plan.checkpoint.options))),
            run_uid=attempt.run_uid,
            epoch=attempt.attempt,
            rank=session.facts.rank,
            world_size=session.facts.world_size,
            group=session.groups.host,
            options=options,
        )
        self._watch = StorageWatch(self.manager.health, session.telemetry.event, limit_s=options.stall_s) if session.is_first else None

    def __enter__(self) -> Self:
        if self._watch is not None:
            self._watch.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if self._watch is not None:
            self._watch.__exit__(kind, error, traceback)
        self.manager.close(5.0 if error is None else 0.5)

    def restore(self, checkpoint_id: str, tensors: Mapping[str, torch.Tensor]) -> Restored | None:
        """Load a checkpoint into `tensors`; None only if nothing was ever committed. An id yields to a newer one of this same attempt.

        The memory for their saves is made ready meanwhile and afterwards, so that the first save stalls like any other.
        """
        self.manager.prepare(tensors)
        return self.manager.restore(checkpoint_id, tensors, own_first=True)

    def began_from(self, checkpoint_id: str, step: int) -> None:
        """The state at `step` is stored as `checkpoint_id` already."""
        self._last_id, self._last_step = checkpoint_id, step
        self._session.heartbeat.checkpoint_step = step

    def clock_is_due(self) -> bool:
        """Whether this rank's interval in seconds has passed; only rank 0's clock is asked, the others hear of it in the next agreement."""
        return self._plan.every_s is not None and time.monotonic() - self._saved_at_s >= self._plan.every_s

    def after_step(self, state: TrainState, learner: Learner, observer: Observer, *, asked: bool) -> None:
        """Save if it is time, and take note of what has been committed meanwhile."""
        if asked or (self._plan.every_steps is not None and state.step % self._plan.every_steps == 0):
            observer.settle()  # a step that was refused on the device must never be stored
            self._save(state, learner, asynchronous=self._plan.asynchronous, final=False)
        self._take_note(self.manager.poll())

    def finish(self, state: TrainState, learner: Learner) -> str:
        """Have the present state committed; returns its checkpoint id. Stored already: nothing is written again.

        Raises SaveFailedError when it can't be stored: the stage is not complete then.
        """
        self._take_note(self.manager.drain())  # a save that failed before is told, and of no matter now
        if self._agreed_step() != state.step:
            self._save(state, learner, asynchronous=False, final=True)
            self._take_note(self.manager.drain())
        return self._last_id

    def _save(self, state: TrainState, learner: Learner, *, asynchronous: bool, final: bool) -> None:
        phase = self._session.heartbeat.phase
        self._session.heartbeat.enter("saving")
        with self._session.telemetry.span("save"):
            self.manager.save(state.step, learner.tensors(), {"state": state.to_json()}, asynchronous=asynchronous, final=final)
        self._saved_at_s = time.monotonic()
        self._session.heartbeat.enter(phase)

    def _agreed_step(self) -> int:
        """Step of the newest commit that rank 0, which makes the commits, has seen."""
        step = torch.tensor([self._last_step])
        dist.broadcast(step, src=0, group=self._session.groups.host)
        return int(step)

    def _take_note(self, commits: Sequence[Committed]) -> None:
        telemetry = self._session.telemetry
        for commit in commits:
            self._last_id, self._last_step = commit.checkpoint_id, commit.step
            beat = self._session.heartbeat
            beat.checkpoint_step, beat.save_s, beat.save_stall_s = commit.step, round(commit.seconds, 3), round(commit.stall_s, 4)
            if not self._session.is_first:
                continue
            for part in ("snapshot", "stall", "upload", "commit"):
                telemetry.record("samite.checkpoint.duration", getattr(commit, f"{part}_s"), {"samite.checkpoint.phase": part, **_TIER})
            telemetry.event(
                "samite.checkpoint.committed",
                checkpoint_id=commit.checkpoint_id,
                step_index=commit.step,
                checkpoint_bytes=commit.data_bytes,
                checkpoint_shards=self._session.facts.world_size,
                duration=commit.seconds,
                duration_stall=commit.stall_s,
            )
        for failure in self.manager.take_failures():
            if self._session.is_first:
                telemetry.event("samite.checkpoint.save.failed", step_index=failure.step, reason=failure.reason)
            if isinstance(failure.error, FencedError):
                raise failure.error  # a newer attempt writes here: nothing this one learns will ever be kept


class NothingSaved:
    """In place of a Saver for an attempt without a checkpoint URI: a few steps to look at, of which nothing stays."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        pass

    def restore(self, checkpoint_id: str, tensors: Mapping[str, torch.Tensor]) -> None:
        """Nothing was ever stored."""

    def began_from(self, checkpoint_id: str, step: int) -> None:
        """Never the case."""

    def clock_is_due(self) -> bool:
        """Never."""
        return False

    def after_step(self, state: TrainState, learner: Learner, observer: Observer, *, asked: bool) -> None:
        """Nothing is saved."""

    def finish(self, state: TrainState, learner: Learner) -> str:  # noqa: ARG002
        """No checkpoint."""
        return ""


def open_saver(attempt: AttemptSpec, plan: TrainPlan, session: Session) -> "Saver | NothingSaved":
    """The attempt's checkpoints; collective. Raises what storage answers: NotAllowedError, UnreachableError, ConflictError."""
    return Saver(attempt, plan, session) if attempt.checkpoint_uri else NothingSaved()


def options_of(spec: Mapping[str, Any]) -> CheckpointOptions:
    """The manager's options from `spec.checkpoint`."""
    keep = spec.get("keep", {})
    return CheckpointOptions(
        store=store_options_of(spec),
        stall_s=float(spec.get("stallSeconds", 120.0)),
        deadline_s=float(spec.get("deadlineSeconds", 1800.0)),
        verify_on_save=spec.get("verify", "Both") in ("OnSave", "Both"),
        keep=KeepPolicy(last=keep.get("last", 3), every_steps=keep.get("everySteps", 0), stage_final=keep.get("stageFinal", True)),
    )


def store_options_of(spec: Mapping[str, Any]) -> StoreOptions:
    """How the storage of `spec.checkpoint` is reached. Credentials come from the environment."""
    return StoreOptions(endpoint=spec.get("endpoint", ""), region=spec.get("region", ""), insecure=spec.get("insecure", False))
