"""Random kill points crossed with random resharding (property-based): whatever dies or wakes up late, the next attempt finds one whole checkpoint.

An attempt is a world of simulated ranks that run the real upload, commit, hint and retention code, one after the other, against one store. A rank is killed
before or after any of its requests, or sleeps there while the next attempt runs and then goes on: a zombie. Every attempt has its own world and layout and
must find the newest state that was committed, bit for bit, however it is cut. Real processes and SIGKILL: test_kill.py.
"""

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from restoring_threads import Seat, Table

from samite.checkpoint.commit import CommitRequest
from samite.checkpoint.fence import Fence, FencedError, open_session
from samite.checkpoint.index import TensorMeta
from samite.checkpoint.layout import FENCES, MANIFEST, CheckpointId, SessionId
from samite.checkpoint.retention import KeepPolicy
from samite.checkpoint.store import MemoryStore, Store, open_store
from samite.checkpoint.store.faulty import FaultyStore
from samite_workloads.checkpoint.background import BackgroundSaver
from samite_workloads.checkpoint.jobs import Ledger, SaveJob
from samite_workloads.checkpoint.plan import write_plan
from samite_workloads.checkpoint.restore import restore
from samite_workloads.checkpoint.results import CheckpointOptions
from samite_workloads.checkpoint.shards import LocalShard
from samite_workloads.checkpoint.snapshot import Prepared, take_snapshot
from samite_workloads.checkpoint.staging import BufferPool

torch.set_num_threads(1)
SHAPES = {"matrix": (13, 6), "cube": (4, 5, 3), "vector": (17,), "step": (), "flags": (9, 2)}
DTYPES = {"matrix": torch.float32, "cube": torch.bfloat16, "vector": torch.int64, "step": torch.int64, "flags": torch.bool}


class Killed(BaseException):
    """This rank is no more."""


@dataclass(frozen=True)
class Fate:
    """What happens to one rank of an attempt at its `at`-th request."""

    rank: int
    at: int
    how: str


@dataclass(frozen=True)
class Attempt:
    """One drawn attempt."""

    world: int
    dims: dict[str, int]
    replicas: int
    saves: int
    order: list[int]
    fate: Fate | None


class RankStore(FaultyStore):
    """One rank's way to storage: counts its requests and meets its fate."""

    def __init__(self, inner: Store, fate: Fate | None, *, meanwhile: Callable[[], None], committed: Callable[[str], None]) -> None:
        super().__init__(inner)
        self._fate, self._meanwhile, self._committed = fate, meanwhile, committed
        self.dead, self._requests = False, 0

    def _do(self, operation, key, call, data=None):
        if self.dead:
            raise Killed
        self._requests += 1
        if self._fate is None or self._requests != self._fate.at:
            return self._done(operation, key, call())
        if self._fate.how == "sleeps":
            self._meanwhile()
            return self._done(operation, key, call())
        self.dead = True
        if self._fate.how == "dies after":
            self._done(operation, key, call())
        raise Killed

    def _done(self, operation, key, answer):
        if operation == "put_if_absent" and key.endswith(f"/{MANIFEST}") and answer:
            self._committed(key)
        return answer


def content(step: int) -> dict[str, torch.Tensor]:
    """The state after `step`: another value in every element."""
    make = torch.Generator().manual_seed(step)
    return {
        name: torch.randint(0, 2 if DTYPES[name] is torch.bool else 120, SHAPES[name], generator=make).to(DTYPES[name]) for name in SHAPES
    }


def shards_of(attempt: Attempt, rank: int, tensors: dict[str, torch.Tensor]) -> list[LocalShard]:
    """What `rank` holds: each tensor cut along one dimension over world / replicas ranks, the rest being copies."""
    found = []
    for name in sorted(tensors):
        tensor, replicas = tensors[name], attempt.replicas if tensors[name].dim() else attempt.world
        pieces, box = attempt.world // replicas, [(0, size) for size in tensor.shape]
        if tensor.dim():
            dim, size = attempt.dims[name], tensor.shape[attempt.dims[name]]
            part, step = rank % pieces, -(-size // pieces)
            box[dim] = (min(part * step, size), max(0, min(size - part * step, step)))
        data = tensor[tuple(slice(offset, offset + size) for offset, size in box)].clone()
        meta = TensorMeta(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
        found.append(LocalShard(meta=meta, box=tuple(box), data=data, replica=rank // pieces, num_replicas=replicas))
    return found


@dataclass
class Run:
    """All attempts on one store, and what must be there."""

    store: MemoryStore
    attempts: list[Attempt]
    keep: int
    committed: int = 0
    """Step of the newest commit of the newest session."""
    epoch: int = 0
    restored: list[int] = field(default_factory=list)

    def go_on(self) -> None:
        """Run the attempts that are left, each inside the sleep of the one before if that sleeps."""
        while self.epoch < len(self.attempts):
            self.epoch += 1
            self._attempt(self.attempts[self.epoch - 1], self.epoch)

    def _attempt(self, attempt: Attempt, epoch: int) -> None:
        stores = [
            RankStore(
                self.store,
                attempt.fate if attempt.fate and attempt.fate.rank == rank else None,
                meanwhile=self.go_on,
                committed=self._note_commit,
            )
            for rank in range(attempt.world)
        ]
        try:
            session = open_session(stores[0], run_uid="run", epoch=epoch, nonce=secrets.token_hex(4))
        except (Killed, FencedError):
            return
        step = self._restore(attempt)
        assert step == self.committed
        self.restored.append(step)
        for number in range(attempt.saves):
            if not self._save(attempt, session, stores, step + 1 + number, epoch):
                return

    def _note_commit(self, key: str) -> None:
        """A manifest was created: it is the newest commit unless a newer session has begun."""
        one = CheckpointId.parse(key.split("/")[1])
        fences = [SessionId.parse(name) for name in self.store.children(FENCES)]
        if max(fence.epoch for fence in fences) <= one.epoch:
            self.committed = one.step

    def _save(self, attempt: Attempt, session: Fence, stores: list[RankStore], step: int, epoch: int) -> bool:
        """One save by all ranks that live; False if the attempt is over."""
        one = str(CheckpointId(step=step, epoch=epoch, attempt=secrets.token_hex(4)))
        request = CommitRequest(
            checkpoint_id=one, step=step, world_size=attempt.world, session=session.session, run_uid="run", created_unix_s=0.0, extra={}
        )
        savers = []
        for rank in (rank % attempt.world for rank in attempt.order):
            if rank not in {other for other, _, _ in savers}:
                savers.append((rank, *self._job(attempt, rank, stores[rank], request)))
        for look in ("upload", "commit", "late"):
            for rank, saver, job in savers:
                if look == "late":
                    job.deadline_s = 0.0  # what has not arrived will not arrive
                try:
                    if look == "upload":
                        saver._uploads.put(job)
                        saver._uploads.put(None)
                        saver._upload_loop()
                    elif not job.done.is_set():
                        saver._look(job)
                except Killed:
                    assert stores[rank].dead
        return self.epoch == epoch and not any(store.dead for store in stores)

    def _job(self, attempt: Attempt, rank: int, store: Store, request: CommitRequest) -> tuple[BackgroundSaver, SaveJob]:
        pool, ledger, now_s = BufferPool(1), Ledger(), time.monotonic()
        saver = BackgroundSaver(store, rank, pool, ledger, CheckpointOptions(keep=KeepPolicy(last=self.keep), verify_on_save=rank % 2 == 1))
        buffer = pool.take(0.0)
        shards = shards_of(attempt, rank, content(request.step))
        prepared = Prepared(step=request.step, shards=shards, plan=write_plan(shards, object_bytes=128))
        description = take_snapshot(prepared, buffer, check_replicas=True)
        job = SaveJob(
            request=request,
            plan=prepared.plan,
            description=description,
            buffer=buffer,
            began_s=now_s,
            deadline_s=now_s + 60,
            snapshot_s=0.0,
            stall_s=0.0,
        )
        ledger.begin(job)
        return saver, job

    def _restore(self, attempt: Attempt) -> int:
        """The step that all ranks of `attempt` restore, whose every bit is compared."""
        table, found, wrong = Table(attempt.world), [None] * attempt.world, []

        def one(rank: int) -> None:
            try:
                restore_one(rank)
            except Exception as error:  # noqa: BLE001  told below, on the main thread
                wrong.append(repr(error))
                table.abort()

        def restore_one(rank: int) -> None:
            empty = {name: torch.zeros_like(tensor) for name, tensor in content(0).items()}
            targets = shards_of(attempt, rank, empty)
            found[rank] = restore(
                self.store,
                "latest",
                targets,
                meeting=Seat(table, rank, attempt.world),
                own_epoch=None,
                allow_missing=(),
                allow_unused=(),
                threads=1,
            )
            if found[rank] is not None:
                expected = shards_of(attempt, rank, content(found[rank].step))
                wrong.extend(
                    shard.meta.name for shard, other in zip(targets, expected, strict=True) if not torch.equal(shard.data, other.data)
                )

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(attempt.world)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert wrong == []
        steps = {0 if one is None else one.step for one in found}
        assert len(steps) == 1
        return steps.pop()


@st.composite
def attempts(draw) -> Attempt:
    world = draw(st.integers(1, 4))
    how = draw(st.sampled_from(["lives", "dies before", "dies after", "sleeps"]))
    fate = None if how == "lives" else Fate(draw(st.integers(0, world - 1)), draw(st.one_of(st.integers(1, 12), st.integers(1, 70))), how)
    return Attempt(
        world=world,
        dims={name: draw(st.integers(0, max(len(shape) - 1, 0))) for name, shape in SHAPES.items()},
        replicas=draw(st.sampled_from([count for count in range(1, world + 1) if world % count == 0])),
        saves=draw(st.integers(1, 3)),
        order=draw(st.permutations(range(4))),
        fate=fate,
    )


@settings(max_examples=80, deadline=None)
@given(st.lists(attempts(), min_size=2, max_size=5), st.integers(1, 3))
def test_whatever_dies_or_sleeps_the_next_attempt_finds_the_newest_commit_bit_for_bit_in_any_layout(drawn, keep: int):
    run = Run(store=open_store(f"memory://{secrets.token_hex(6)}"), attempts=drawn, keep=keep)
    run.go_on()
    last = Attempt(world=3, dims=dict.fromkeys(SHAPES, 0), replicas=1, saves=1, order=[0, 1, 2, 3], fate=None)
    assert run._restore(last) == run.committed
