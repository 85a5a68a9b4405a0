"""Two tiers: frequent checkpoints in a near place (memory or a fast disk that all ranks see), every Nth and each final one in the store that lasts.

    manager = TieredManager("/dev/shm/run", "s3://bucket/run", run_uid="r1", epoch=1, rank=rank, world_size=world_size, store_every=10)

Used like `CheckpointManager`. Each tier has the same format, sessions and retention of its own. A restore takes the newest whole checkpoint of any tier; a near
tier that is lost, damaged, full or not the same place for all ranks costs progress since the newest in the store and nothing else. Which tier a save goes to
follows from counting saves, so that ranks need no word about it. The near tier stages through one buffer of its own.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch.distributed as dist
from torch import Tensor

from samite.checkpoint.catalog import Catalog, Entry
from samite.checkpoint.layout import SessionId
from samite.checkpoint.retention import KeepPolicy
from samite.checkpoint.store import Store
from samite.errors import CheckpointDamagedError, NotAllowedError, SamiteError, TemporaryError, UsageError
from samite_workloads.checkpoint.agreement import peers
from samite_workloads.checkpoint.manager import CheckpointManager
from samite_workloads.checkpoint.meeting import PeerLostError
from samite_workloads.checkpoint.results import CheckpointOptions, Committed, Restored, SaveFailure


@dataclass(frozen=True, kw_only=True, slots=True)
class _Choice:
    """Rank 0's word on what to restore next."""

    near: bool
    checkpoint_id: str


class TieredManager:
    """Checkpoints of one run in two tiers, as one rank sees them. Opening is collective, like every call that saves or restores.

    `store_every` counts saves: the first, and each so many after it, go to the store, and every final one. `keep_near` stay in the near tier. `near_problem`
    says why there is no near tier, if there is none. Raises what `CheckpointManager` raises about the store; nothing about the near tier is ever raised.
    """

    def __init__(
        self,
        near: str | Store,
        store: str | Store,
        *,
        run_uid: str,
        epoch: int,
        rank: int = 0,
        world_size: int = 1,
        group: dist.ProcessGroup | None = None,
        options: CheckpointOptions | None = None,
        store_every: int = 10,
        keep_near: int = 2,
    ) -> None:
        if store_every < 1 or keep_near < 1:
            raise UsageError(f"store_every and keep_near must be at least 1, found {store_every} and {keep_near}")
        options = options or CheckpointOptions()
        self._peers = peers(group, rank, world_size)
        self._rank, self._epoch, self._store_every, self._saves = rank, epoch, store_every, 0
        facts: dict[str, Any] = {"run_uid": run_uid, "epoch": epoch, "rank": rank, "world_size": world_size, "group": group}
        self._far = CheckpointManager(store, **facts, options=options)
        self._near: CheckpointManager | None = None
        self.near_problem = ""
        near_options = replace(options, buffers=1, keep=KeepPolicy(last=keep_near, stage_final=False), verify_on_save=False)
        if isinstance(near, str):
            near_options = replace(near_options, store=replace(options.store, endpoint="", durable=False))
        try:
            opened = CheckpointManager(near, **facts, options=near_options)
        except SamiteError as error:  # what rank 0 found, raised on all ranks alike
            self.near_problem = str(error)
        else:
            self._take(opened)

    @property
    def store(self) -> Store:
        """The one that lasts."""
        return self._far.store

    @property
    def session(self) -> SessionId:
        """This manager's writer session in the store."""
        return self._far.session

    def save(
        self,
        step: int,
        tensors: Mapping[str, Tensor],
        extra: Mapping[str, Any] | None = None,
        *,
        asynchronous: bool = True,
        final: bool = False,
    ) -> None:
        """As `CheckpointManager.save`, into the tier whose turn it is."""
        far = final or self._near is None or self._saves % self._store_every == 0
        self._saves += 1
        manager = self._far if far or self._near is None else self._near
        manager.save(step, tensors, extra, asynchronous=asynchronous, final=final)

    def poll(self) -> list[Committed]:
        """Checkpoints committed in any tier since the last call; never waits, never raises."""
        return [commit for manager in self._managers() for commit in manager.poll()]

    def take_failures(self) -> list[SaveFailure]:
        """Saves that failed or were skipped since the last call, in any tier."""
        return [failure for manager in self._managers() for failure in manager.take_failures()]

    def wait(self, timeout_s: float | None = None) -> list[Committed]:
        """Wait for all pending saves. Raises SaveFailedError if one into the store failed, WaitTimeoutError after `timeout_s` for each tier.

        What failed in the near tier is left to `take_failures`.
        """
        near = [] if self._near is None else self._near.drain(timeout_s)
        return near + self._far.wait(timeout_s)

    def restore(
        self,
        checkpoint_id: str,
        tensors: Mapping[str, Tensor],
        *,
        allow_missing: Sequence[str] = (),
        allow_unused: Sequence[str] = (),
        own_first: bool = False,
    ) -> Restored | None:
        """As `CheckpointManager.restore`, from whichever tier holds the checkpoint, or the newest whole one. Damaged ones on the way are set aside in their tier."""
        walked: list[tuple[str, str]] = []
        near_lost = False
        while True:
            chosen = self._choose(checkpoint_id, own_first=own_first, near_lost=near_lost) if self._rank == 0 else None
            choice = self._peers.broadcast(chosen)
            if isinstance(choice, SamiteError):
                raise choice
            manager = self._near if choice is not None and choice.near and self._near is not None else self._far
            wanted = checkpoint_id if choice is None else choice.checkpoint_id
            try:
                restored = manager.restore(wanted, tensors, allow_missing=allow_missing, allow_unused=allow_unused)
            except CheckpointDamagedError as error:
                named = checkpoint_id != "latest" and wanted == checkpoint_id
                if choice is None or (named and not choice.near):
                    raise
                walked.append((wanted, str(error)))
            except (TemporaryError, NotAllowedError) as error:  # the same on all ranks, as a restore raises it
                if manager is self._far or isinstance(error, PeerLostError):
                    raise
                walked.append((wanted, str(error)))
                near_lost = True
            else:
                return None if restored is None else replace(restored, walked_past=(*walked, *restored.walked_past))

    def close(self, timeout_s: float = 5.0) -> None:
        """End the background threads; pending saves get `timeout_s` in each tier."""
        for manager in self._managers():
            manager.close(timeout_s)

    def _take(self, opened: CheckpointManager) -> None:
        """Use the near tier if it is one place for all ranks: each must see the session that rank 0 has opened there."""
        problem = ""
        try:
            if opened.store.head(opened.session.key()) is None:
                problem = f"{opened.store.uri}: is another place on rank {self._rank} than on rank 0; the near tier wants a folder that all ranks see"
        except SamiteError as error:
            problem = f"rank {self._rank}: {error}"
        self.near_problem = next((found for found in self._peers.gather(problem) if found), "")
        if self.near_problem:
            opened.close(0.0)
        else:
            self._near = opened

    def _managers(self) -> Iterator[CheckpointManager]:
        if self._near is not None:
            yield self._near
        yield self._far

    def _choose(self, checkpoint_id: str, *, own_first: bool, near_lost: bool) -> _Choice | SamiteError | None:
        """Rank 0: the tier and id of what to load; None leaves it to the store, which says what is wrong; or the error to raise everywhere."""
        try:
            far = [entry for entry in Catalog(self._far.store).list() if entry.usable]
            near = [] if near_lost else self._near_entries()
            if checkpoint_id != "latest":
                found = [(entry, in_near) for entries, in_near in ((near, True), (far, False)) for entry in entries]
                own = [one for one in found if own_first and one[0].epoch == self._epoch]
                if not own:
                    return next(
                        (_Choice(near=one, checkpoint_id=checkpoint_id) for entry, one in found if entry.checkpoint_id == checkpoint_id),
                        None,
                    )
            else:
                own = [(entry, in_near) for entries, in_near in ((near, True), (far, False)) for entry in entries]
            if not own:
                return None
            entry, in_near = max(own, key=lambda one: (one[0].epoch, one[0].step, one[1]))
            return _Choice(near=in_near, checkpoint_id=entry.checkpoint_id)
        except SamiteError as error:
            return error

    def _near_entries(self) -> list[Entry]:
        """What the near tier holds; one that does not answer is lost."""
        if self._near is None:
            return []
        with contextlib.suppress(SamiteError):
            return [entry for entry in Catalog(self._near.store).list() if entry.usable]
        return []
