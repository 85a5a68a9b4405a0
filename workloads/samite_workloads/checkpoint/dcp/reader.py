"""`dcp.load` from any Samite checkpoint, whoever wrote it, onto any sharding. Every block is verified before it counts."""

import dataclasses
import io
import os
import time
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from samite.checkpoint.catalog import Catalog, State
from samite.checkpoint.index import TensorMeta
from samite.checkpoint.layout import CheckpointId
from samite.checkpoint.manifest import Manifest
from samite.checkpoint.store import Store, StoreOptions
from samite.checkpoint.store.retry import RetryingStore
from samite.errors import CheckpointDamagedError, ConflictError, NotFoundError, UsageError
from samite_workloads.checkpoint.dcp.document import BYTES, PLANNER, decode_paths, opened, step_in
from samite_workloads.checkpoint.reader import StoredState
from samite_workloads.checkpoint.results import RestoreMismatchError
from samite_workloads.checkpoint.shards import LocalShard, dtype_name


class SamiteStorageReader(StorageReader):
    """Reads one checkpoint below `uri`: `checkpoint` is an id, a step or `latest`, and `checkpoint_id` of `dcp.load` overrides it.

    Names, shapes and dtypes must fit. `convert_dtypes` loads into targets of another dtype, as PyTorch's own readers always do without a word.
    """

    def __init__(
        self,
        uri: str | Store,
        *,
        checkpoint: str | int = "latest",
        options: StoreOptions | None = None,
        convert_dtypes: bool = False,
        threads: int = 4,
        deadline_s: float = 300.0,
    ) -> None:
        super().__init__()
        self._inner = opened(uri, options)
        self._wanted = str(checkpoint)
        self._convert, self._threads, self._deadline_s = convert_dtypes, threads, deadline_s
        self.checkpoint_id = ""
        self.state: StoredState | None = None

    @property
    def manifest(self) -> Manifest:
        """Of the checkpoint that is read; its `extra` is what the writer was given."""
        if self.state is None:
            raise UsageError("nothing was read yet: call dcp.load or read_metadata first")
        return self.state.manifest

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """A new load begins."""
        self.checkpoint_id = os.fspath(checkpoint_id) if checkpoint_id is not None else ""
        self.state = None

    def read_metadata(self) -> Metadata:
        """Choose the checkpoint and describe it as PyTorch does. Reads manifest and indexes."""
        store = RetryingStore(self._inner, time.monotonic() + self._deadline_s)
        catalog = Catalog(store)
        text = self._meant()
        entry = catalog.newest_committed() if text == "latest" else catalog.find(text)
        if entry is None:
            raise NotFoundError(f"{store.uri}: no checkpoint that counts; look with samite checkpoints ls")
        if entry.state in {State.QUARANTINED, State.DAMAGED}:
            raise CheckpointDamagedError(f"{store.uri}: {entry.checkpoint_id} is {entry.state}: {entry.reason}")
        if not entry.usable:
            raise NotFoundError(f"{store.uri}: {entry.checkpoint_id} is {entry.state}, it cannot be loaded; see samite checkpoints ls")
        self.state = StoredState(store, catalog.manifest(entry.checkpoint_id), threads=self._threads)
        return describe_state(self.state)

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Nothing is left to set up; but a reader whose metadata came from elsewhere has chosen no checkpoint."""
        del metadata, is_coordinator, args, kwargs
        if self.state is None:
            self.read_metadata()

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Tell the coordinator which checkpoint this rank chose."""
        return dataclasses.replace(plan, storage_data=self.manifest.checkpoint_id)

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Refuse to mix: a checkpoint may have been committed while ranks were choosing."""
        chosen = sorted({str(plan.storage_data) for plan in plans})
        if len(chosen) > 1:
            raise ConflictError(f"{self._inner.uri}: ranks chose different checkpoints ({', '.join(chosen)}); load again, or name one")
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Fill the planner's tensors. Raises CheckpointDamagedError, RestoreMismatchError with every difference of dtype."""
        assert self.state is not None
        work = [_Work.of(self.state, item, planner) for item in plan.items]
        if not self._convert:
            self._check_dtypes(work)
        self.state.load([one.shard for one in work])
        for one in work:
            if one.item.type is LoadItemType.BYTE_IO:
                planner.load_bytes(one.item, io.BytesIO(one.shard.data.numpy().tobytes()))
                continue
            assert one.target is not None
            if one.shard.data is not one.target:
                one.target.copy_(one.shard.data)
            planner.commit_tensor(one.item, one.target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Never chosen by a path alone: it is passed as `storage_reader`."""
        del checkpoint_id
        return False

    def _meant(self) -> str:
        if not self.checkpoint_id:
            return self._wanted
        last = self.checkpoint_id.rstrip("/").rpartition("/")[2]
        if last == "latest" or CheckpointId.parse(last) is not None:
            return last
        step = step_in(last)
        if step is None:
            raise UsageError(f"checkpoint_id {self.checkpoint_id!r}: wanted a checkpoint's id, latest, or a name that ends in the step")
        return str(step)

    def _check_dtypes(self, work: list["_Work"]) -> None:
        problems = {
            f"\n  - {one.shard.meta.name}: wanted {one.target.dtype}, the checkpoint has {one.shard.data.dtype}": None
            for one in work
            if one.target is not None and one.target.dtype != one.shard.data.dtype
        }
        if problems:
            raise RestoreMismatchError(
                f"{self.manifest.checkpoint_id} does not fit; nothing was overwritten (convert_dtypes=True would convert):{''.join(problems)}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Work:
    """One read item: what to read, and the planner's tensor it is for (None for bytes)."""

    item: ReadItem
    shard: LocalShard
    target: torch.Tensor | None

    @classmethod
    def of(cls, state: StoredState, item: ReadItem, planner: LoadPlanner) -> "_Work":
        name = item.storage_index.fqn
        if item.type is LoadItemType.BYTE_IO:
            meta = state.tensors[f"{BYTES}{name}"]
            return cls(item=item, shard=_shard(meta, ((0, meta.shape[0]),), torch.empty(meta.shape, dtype=torch.uint8)), target=None)
        meta = state.tensors[name]
        target = planner.resolve_tensor(item).detach()
        offsets = item.storage_index.offset or (0,) * len(meta.shape)
        box = tuple(
            (int(base) + int(offset), int(length)) for base, offset, length in zip(offsets, item.storage_offsets, item.lengths, strict=True)
        )
        same = dtype_name(target) == meta.dtype
        data = target if same else torch.empty(tuple(target.shape), dtype=getattr(torch, meta.dtype), device=target.device)
        return cls(item=item, shard=_shard(meta, box, data), target=target)


def describe_state(state: StoredState) -> Metadata:
    """A stored state as PyTorch's metadata."""
    entries: dict[str, TensorStorageMetadata | BytesStorageMetadata] = {}
    paths: dict[str, tuple[str | int, ...]] = {}
    for name, meta in state.tensors.items():
        if name.startswith(BYTES):
            entries[name.removeprefix(BYTES)] = BytesStorageMetadata()
        elif name != PLANNER:
            entries[name] = TensorStorageMetadata(
                properties=TensorProperties(dtype=getattr(torch, meta.dtype)),
                size=torch.Size(meta.shape),
                chunks=[
                    ChunkStorageMetadata(
                        offsets=torch.Size([offset for offset, _ in box]),
                        sizes=torch.Size([size for _, size in box]),
                    )
                    for box in state.boxes(name)
                ],
            )
    if PLANNER in state.tensors:
        paths = decode_paths(read_bytes(state, PLANNER), name=f"{state.manifest.checkpoint_id}: {PLANNER}")
    planner_data = {name: paths.get(name, (name,)) for name in entries}
    return Metadata(
        state_dict_metadata=entries, planner_data=planner_data, storage_meta=StorageMeta(checkpoint_id=state.manifest.checkpoint_id)
    )


def read_bytes(state: StoredState, name: str) -> bytes:
    """Content of a tensor of bytes."""
    meta = state.tensors[name]
    data = torch.empty(meta.shape, dtype=torch.uint8)
    state.load([_shard(meta, ((0, meta.shape[0]),), data)])
    return data.numpy().tobytes()


def _shard(meta: TensorMeta, box: tuple[tuple[int, int], ...], data: torch.Tensor) -> LocalShard:
    return LocalShard(meta=meta, box=box, data=data, replica=0, num_replicas=1)
