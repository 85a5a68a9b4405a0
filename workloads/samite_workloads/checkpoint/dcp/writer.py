"""`dcp.save` and `dcp.async_save` into Samite's format: immutable keys, checksums, one commit, whatever dies in between.

    every rank     write_data: its items into one staging buffer, then data objects and its index
    coordinator    prepare_global_plan: opens the writer session once, names the checkpoint; the name travels in the plans
                   finish: the planner's document, its own index, checks all indexes, creates MANIFEST

Deduplication and planning stay the planner's. Errors reach all ranks as PyTorch's CheckpointException, which is no Exception but a BaseException.
"""

import contextlib
import dataclasses
import io
import os
import secrets
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

import samite
from samite.checkpoint.commit import CommitRequest, build_manifest, commit, move_hint
from samite.checkpoint.fence import Fence, check_still_newest, open_session, read_fences
from samite.checkpoint.index import RankIndex, TensorMeta
from samite.checkpoint.layout import CheckpointId
from samite.checkpoint.store import Store, StoreOptions
from samite.checkpoint.store.retry import RetryingStore
from samite.errors import SamiteError, UsageError
from samite_workloads.checkpoint.dcp.document import BYTES, PLANNER, encode_paths, opened, wanted_step
from samite_workloads.checkpoint.plan import write_plan
from samite_workloads.checkpoint.shards import LocalShard, UnsupportedTensorError, check_storable, dtype_name, plain
from samite_workloads.checkpoint.staging import Buffer
from samite_workloads.checkpoint.writer import describe, publish, with_opaque_bytes, write_objects

_sessions: dict[tuple[str, int | None], Fence] = {}
_written: set[str] = set()
_buffers: list[Buffer] = []
_lock = threading.Lock()


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Ticket:
    """What the coordinator tells each rank, in its plan."""

    checkpoint_id: str
    rank: int


class SamiteStorageWriter(StorageWriter):
    """Writes one run's checkpoints below `uri`. May be made anew for each save, or kept.

    `step` may be left out if `checkpoint_id` ends in it. `extra` is JSON for the manifest (a data cursor, say). `epoch` is a fencing token: pass the
    number of the attempt where there is one, so that a process of an older attempt can commit nothing any more; without it each new process fences
    the processes before it. Only one process group may save below a `uri` at a time. `run_uid` names the run; by default that of the first save.
    """

    def __init__(
        self,
        uri: str | Store,
        *,
        step: int | None = None,
        extra: Mapping[str, Any] | None = None,
        epoch: int | None = None,
        run_uid: str = "",
        options: StoreOptions | None = None,
        object_bytes: int = 1024 * 1024 * 1024,
        deadline_s: float = 600.0,
        verify_on_save: bool = False,
        final: bool = False,
    ) -> None:
        super().__init__()
        self._place = uri
        self._options = options
        self._step, self._extra, self._epoch, self._run_uid, self._final = step, dict(extra or {}), epoch, run_uid, final
        self._object_bytes, self._deadline_s, self._verify = object_bytes, deadline_s, verify_on_save
        self.checkpoint_id: str = ""
        self.committed: str = ""
        """Id of the checkpoint of the last save, on the coordinator, once it exists."""
        self._coordinator = False
        self._save: tuple[Fence, CommitRequest] | None = None
        self._withheld: RankIndex | None = None

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """A new save begins; `checkpoint_id` may say its step."""
        self.checkpoint_id = os.fspath(checkpoint_id) if checkpoint_id is not None else ""
        self._save = self._withheld = None

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Called by PyTorch on each rank. Refuses `use_collectives=False`, whose checkpoints nobody could reshard."""
        del args
        if kwargs.get("use_collectives") is False:
            raise UsageError("SamiteStorageWriter wants use_collectives=True: without it no rank knows the name of the checkpoint")
        wanted_step(self._step, self.checkpoint_id)
        self._coordinator = is_coordinator

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Nothing is added before the coordinator has spoken."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """On the coordinator: open the session if it is not open, name the checkpoint."""
        store = self._store()
        fence = self._session(store)
        step = wanted_step(self._step, self.checkpoint_id)
        one = str(CheckpointId(step=step, epoch=fence.session.epoch, attempt=secrets.token_hex(4)))
        self._save = (
            fence,
            CommitRequest(
                checkpoint_id=one,
                step=step,
                world_size=len(plans),
                session=fence.session,
                run_uid=fence.run_uid,
                created_unix_s=round(time.time(), 3),
                extra=self._extra,
                final=self._final,
                writer=f"samite {samite.__version__} through torch {torch.__version__}",
            ),
        )
        return [dataclasses.replace(plan, storage_data=_Ticket(checkpoint_id=one, rank=rank)) for rank, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Put this rank's items. The coordinator's index waits for `finish`."""
        ticket = plan.storage_data
        if not isinstance(ticket, _Ticket) or not _first_use(ticket):
            raise UsageError(
                "the plan does not name this save's checkpoint: a planner with enable_plan_caching must be "
                "samite_workloads.checkpoint.dcp.SamiteSavePlanner (cached plans carry the name of an earlier save)"
            )
        store = self._store()
        shards = _shards(plan.items, planner)
        layout = write_plan(shards, object_bytes=self._object_bytes)
        with _buffer() as buffer:
            buffer.fill(layout, shards)
            description = describe(shards, layout, ())
            del shards
            index = write_objects(
                store,
                ticket.checkpoint_id,
                ticket.rank,
                plan=layout,
                description=description,
                staged=buffer.view,
                read_back=self._verify,
            )
        if self._coordinator:
            self._withheld = index
        else:
            publish(store, index)
        done: Future[list[WriteResult]] = Future()
        done.set_result([WriteResult(index=item.index, size_in_bytes=0, storage_data=None) for item in plan.items])
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """On the coordinator, once every rank has written: the commit."""
        del results
        assert self._save is not None
        assert self._withheld is not None
        store, (fence, request) = self._store(), self._save
        publish(store, with_opaque_bytes(store, self._withheld, PLANNER, encode_paths(metadata.planner_data), read_back=self._verify))
        check_still_newest(store, fence.session)
        commit(store, build_manifest(store, request))
        self.committed = request.checkpoint_id
        self._save = self._withheld = None
        with contextlib.suppress(SamiteError):  # a hint only
            move_hint(store, request.checkpoint_id)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Never chosen by a path alone: it is passed as `storage_writer`."""
        del checkpoint_id
        return False

    def storage_meta(self) -> StorageMeta:
        """What PyTorch shows in its logs."""
        return StorageMeta(checkpoint_id=self.checkpoint_id or None)

    def _store(self) -> RetryingStore:
        return RetryingStore(opened(self._place, self._options), time.monotonic() + self._deadline_s)

    def _session(self, store: Store) -> Fence:
        """This process's session below the uri: one for all saves, however many writers are made."""
        with _lock:
            fence = _sessions.get((store.uri, self._epoch))
            if fence is None:
                fences = read_fences(store)
                fence = open_session(
                    store,
                    run_uid=self._run_uid or (fences[0].run_uid if fences else f"dcp-{secrets.token_hex(6)}"),
                    epoch=self._epoch if self._epoch is not None else (fences[-1].session.epoch if fences else 1),
                    nonce=secrets.token_hex(8),
                )
                _sessions[store.uri, self._epoch] = fence
            return fence


def _first_use(ticket: _Ticket) -> bool:
    name = f"{ticket.checkpoint_id}/{ticket.rank}"
    with _lock:
        if name in _written:
            return False
        _written.add(name)
        return True


@contextlib.contextmanager
def _buffer() -> Iterator[Buffer]:
    """A staging buffer of this process; they are kept between saves, because fresh memory costs four times the copy."""
    with _lock:
        buffer = _buffers.pop() if _buffers else Buffer()
    try:
        yield buffer
    finally:
        with _lock:
            _buffers.append(buffer)


def _shards(items: list[WriteItem], planner: SavePlanner) -> list[LocalShard]:
    """What the items hold. Raises UnsupportedTensorError naming all that cannot be stored."""
    shards, problems = [], []
    for item in items:
        found = planner.resolve_data(item)
        if item.type is WriteItemType.BYTE_IO:
            assert isinstance(found, io.BytesIO)
            data = torch.frombuffer(bytearray(found.getvalue()), dtype=torch.uint8)
            shards.append(_shard(f"{BYTES}{item.index.fqn}", tuple(data.shape), None, data))
            continue
        assert isinstance(found, torch.Tensor)
        assert item.tensor_data is not None
        try:
            check_storable(found)
        except UnsupportedTensorError as error:
            problems.append(f"  - {item.index.fqn[:200]}: {error}")
            continue
        chunk = item.tensor_data.chunk
        box = tuple((int(offset), int(size)) for offset, size in zip(chunk.offsets, chunk.sizes, strict=True))
        shards.append(_shard(item.index.fqn, tuple(item.tensor_data.size), box, plain(found)))
    if problems:
        raise UnsupportedTensorError("these tensors cannot go into a checkpoint:\n" + "\n".join(problems))
    return shards


def _shard(name: str, shape: tuple[int, ...], box: tuple[tuple[int, int], ...] | None, data: torch.Tensor) -> LocalShard:
    whole = tuple((0, size) for size in shape)
    meta = TensorMeta(name, dtype_name(data), tuple(map(int, shape)))
    return LocalShard(meta=meta, box=whole if box is None else box, data=data, replica=0, num_replicas=1)
