"""Checkpoints of PyTorch's own writers into Samite's format and back, exactly and in bounded memory.

Called by `samite checkpoints import-dcp` and `export-dcp`. One process; chunks keep their cuts, so nothing is gathered:

    import     groups of chunks (512 MiB) become the parts of as many ranks, committed once at the end
    export     each rank's part becomes one file of PyTorch's FileSystemWriter or FsspecWriter, chunks read as they are written

PyTorch's `.metadata` is a pickle: import only what you trust. Values that are no tensors stay pickled bytes; nothing here opens them.
"""

import io
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader, FsspecWriter
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)

import samite
from samite.checkpoint.catalog import Catalog
from samite.checkpoint.commit import CommitRequest, build_manifest, commit, move_hint
from samite.checkpoint.copying import is_newest
from samite.checkpoint.fence import guest_session
from samite.checkpoint.index import TensorMeta
from samite.checkpoint.layout import ITEM_BYTES, CheckpointId
from samite.checkpoint.store import Store
from samite.errors import ConflictError, NotFoundError, SamiteError, UsageError
from samite_workloads.checkpoint.dcp.document import BYTES, PLANNER, encode_paths, step_in
from samite_workloads.checkpoint.dcp.reader import describe_state, read_bytes
from samite_workloads.checkpoint.plan import write_plan
from samite_workloads.checkpoint.reader import StoredState
from samite_workloads.checkpoint.shards import LocalShard, UnsupportedTensorError, dtype_name
from samite_workloads.checkpoint.staging import Buffer
from samite_workloads.checkpoint.writer import describe, publish, with_opaque_bytes, write_objects

GROUP_BYTES = 512 * 1024 * 1024
_OBJECT_BYTES = 1024 * 1024 * 1024


def import_dcp(
    source: str, store: Store, *, step: int | None = None, progress: Callable[[int], None] | None = None, group_bytes: int = GROUP_BYTES
) -> str:
    """Copy the distributed checkpoint at `source` (a folder, or any fsspec URI) below `store`, and return its id there.

    Raises NotFoundError without `.metadata`, UsageError without a step, UnsupportedTensorError naming every tensor the format has no place for.
    """
    reader: Any = FsspecReader(source) if "://" in source else FileSystemReader(source)
    try:
        metadata: Metadata = reader.read_metadata()
    except FileNotFoundError as error:
        raise NotFoundError(f"{source}: no .metadata there, so it is no distributed checkpoint, or one that was never finished") from error
    step = step_in(source) if step is None else step
    if step is None:
        raise UsageError(f"which step is {source!r}? It does not end in a number; say --step")
    _check_dtypes(metadata)
    reader.set_up_storage_reader(metadata, is_coordinator=True)
    session, run_uid = guest_session(store)
    one = str(CheckpointId(step=step, epoch=session.epoch, attempt=secrets.token_hex(4)))
    groups = _groups(metadata, group_bytes)
    buffer = Buffer()
    for rank, group in enumerate(groups):
        targets = _Targets(metadata)
        plan = LoadPlan([_read_item(piece) for piece in group])
        reader.read_data(plan, targets).wait()
        shards = targets.shards(group)
        layout = write_plan(shards, object_bytes=_OBJECT_BYTES)
        buffer.fill(layout, shards)
        part = write_objects(store, one, rank, plan=layout, description=describe(shards, layout, ()), staged=buffer.view)
        if rank == len(groups) - 1:
            part = with_opaque_bytes(store, part, PLANNER, encode_paths(metadata.planner_data))
        publish(store, part)
        if progress is not None:
            progress(sum(shard.num_bytes for shard in shards))
    request = CommitRequest(
        checkpoint_id=one,
        step=step,
        world_size=len(groups),
        session=session,
        run_uid=run_uid or "imported",
        created_unix_s=round(time.time(), 3),
        extra={"imported": {"from": source, "torch": str(metadata.version or "")}},
        writer=f"samite {samite.__version__} import-dcp",
    )
    commit(store, build_manifest(store, request))
    if is_newest(store, one):
        move_hint(store, one)
    return one


def export_dcp(store: Store, checkpoint_id: str, target: str, *, progress: Callable[[int], None] | None = None, threads: int = 4) -> None:
    """Write one checkpoint as PyTorch's own writer would, into the folder or fsspec URI `target`, which must not hold one yet."""
    writer: Any = FsspecWriter(target, overwrite=False) if "://" in target else FileSystemWriter(Path(target), overwrite=False)
    if writer.fs.exists(writer.fs.concat_path(writer.path, ".metadata")):
        raise ConflictError(f"{target} already holds a distributed checkpoint; export into a new folder")
    state = StoredState(store, Catalog(store).manifest(checkpoint_id), threads=threads)
    metadata = describe_state(state)
    items = _write_items(metadata)
    plans = [SavePlan(part) for part in _by_size(items, GROUP_BYTES)]
    writer.set_up_storage_writer(True)
    plans = writer.prepare_global_plan([writer.prepare_local_plan(plan) for plan in plans])
    source = _Source(state, progress)
    writer.finish(metadata, [writer.write_data(plan, source).value() for plan in plans])


def imported_bytes(source: str) -> int:
    """Bytes of all tensors at `source`, for the progress of an import; 0 if there is nothing, which the import will say better."""
    reader: Any = FsspecReader(source) if "://" in source else FileSystemReader(source)
    try:
        metadata: Metadata = reader.read_metadata()
    except (FileNotFoundError, SamiteError):
        return 0
    return sum(piece.num_bytes for group in _groups(metadata, 1 << 60) for piece in group)


@dataclass(frozen=True, slots=True)
class _Piece:
    """One stored chunk of a tensor, or a value (no chunk)."""

    index: MetadataIndex
    chunk: ChunkStorageMetadata | None
    num_bytes: int


class _Targets(LoadPlanner):
    """Takes what PyTorch's reader reads: whole stored chunks, and pickled values as they are."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._found: dict[MetadataIndex, torch.Tensor] = {}

    def shards(self, group: Sequence[_Piece]) -> list[LocalShard]:
        """All of them, in the order of `group`."""
        return [self._shard(piece.index) for piece in group]

    def _shard(self, index: MetadataIndex) -> LocalShard:
        data, entry = self._found[index], self._metadata.state_dict_metadata[index.fqn]
        if not isinstance(entry, TensorStorageMetadata):
            meta = TensorMeta(f"{BYTES}{index.fqn}", "uint8", tuple(data.shape))
            return LocalShard(meta=meta, box=((0, data.numel()),), data=data, replica=0, num_replicas=1)
        meta = TensorMeta(index.fqn, dtype_name(data), tuple(map(int, entry.size)))
        box = tuple((int(offset), int(size)) for offset, size in zip(index.offset or (), data.shape, strict=True))
        return LocalShard(meta=meta, box=box, data=data, replica=0, num_replicas=1)

    def resolve_tensor(self, read_item: ReadItem) -> torch.Tensor:
        """Fresh memory for one chunk."""
        entry = self._metadata.state_dict_metadata[read_item.dest_index.fqn]
        assert isinstance(entry, TensorStorageMetadata)
        data = self._found[read_item.dest_index] = torch.empty(read_item.lengths, dtype=entry.properties.dtype)
        return data

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Keep the bytes, closed."""
        self._found[read_item.dest_index] = torch.frombuffer(bytearray(value.getvalue()), dtype=torch.uint8)

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        """It was read into its place."""

    def set_up_planner(self, state_dict: Any, metadata: Metadata | None = None, is_coordinator: bool = False) -> None:
        """Made with all it needs."""

    def create_local_plan(self) -> LoadPlan:
        """The plan is made outside."""
        return LoadPlan([])

    def create_global_plan(self, global_plan: list[LoadPlan]) -> list[LoadPlan]:
        """One process."""
        return global_plan

    def finish_plan(self, central_plan: LoadPlan) -> LoadPlan:
        """Unchanged."""
        return central_plan


class _Source(SavePlanner):
    """Gives PyTorch's writer one chunk after the other, read and verified when it is asked for."""

    def __init__(self, state: StoredState, progress: Callable[[int], None] | None) -> None:
        self._state = state
        self._progress = progress

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor | io.BytesIO:
        """The chunk's content."""
        name = write_item.index.fqn
        if write_item.type is WriteItemType.BYTE_IO:
            return io.BytesIO(read_bytes(self._state, f"{BYTES}{name}"))
        assert write_item.tensor_data is not None
        chunk, meta = write_item.tensor_data.chunk, self._state.tensors[name]
        data = torch.empty(chunk.sizes, dtype=getattr(torch, meta.dtype))
        box = tuple((int(offset), int(size)) for offset, size in zip(chunk.offsets, chunk.sizes, strict=True))
        self._state.load([LocalShard(meta=meta, box=box, data=data, replica=0, num_replicas=1)])
        if self._progress is not None:
            self._progress(data.numel() * data.element_size())
        return data

    def set_up_planner(self, state_dict: Any, storage_meta: Any = None, is_coordinator: bool = False) -> None:
        """Made with all it needs."""

    def create_local_plan(self) -> SavePlan:
        """The plan is made outside."""
        return SavePlan([])

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        """One process."""
        return all_plans, Metadata({})

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        """Unchanged."""
        return new_plan


def _check_dtypes(metadata: Metadata) -> None:
    problems = [
        f"  - {name[:200]}: the format has no dtype {entry.properties.dtype}"
        for name, entry in metadata.state_dict_metadata.items()
        if isinstance(entry, TensorStorageMetadata) and str(entry.properties.dtype).removeprefix("torch.") not in ITEM_BYTES
    ]
    if problems:
        raise UnsupportedTensorError("these tensors cannot go into a checkpoint:\n" + "\n".join(problems))


def _groups(metadata: Metadata, limit: int) -> list[list[_Piece]]:
    """All stored chunks and values, in groups of about `limit` bytes; at least one group."""
    groups: list[list[_Piece]] = [[]]
    filled = 0
    for name, entry in metadata.state_dict_metadata.items():
        pieces = [_Piece(MetadataIndex(name), None, 0)]
        if isinstance(entry, TensorStorageMetadata):
            width = entry.properties.dtype.itemsize
            pieces = [_Piece(MetadataIndex(name, chunk.offsets), chunk, chunk.sizes.numel() * width) for chunk in entry.chunks]
        for piece in pieces:
            if groups[-1] and filled + piece.num_bytes > limit:
                groups.append([])
                filled = 0
            groups[-1].append(piece)
            filled += piece.num_bytes
    return groups


def _read_item(piece: _Piece) -> ReadItem:
    sizes = torch.Size([]) if piece.chunk is None else piece.chunk.sizes
    kind = LoadItemType.BYTE_IO if piece.chunk is None else LoadItemType.TENSOR
    zeros = torch.Size([0] * len(sizes))
    return ReadItem(type=kind, dest_index=piece.index, dest_offsets=zeros, storage_index=piece.index, storage_offsets=zeros, lengths=sizes)


def _write_items(metadata: Metadata) -> list[WriteItem]:
    items = []
    for name, entry in metadata.state_dict_metadata.items():
        if not isinstance(entry, TensorStorageMetadata):
            items.append(WriteItem(index=MetadataIndex(name), type=WriteItemType.BYTE_IO))
            continue
        if not entry.chunks:  # an empty tensor has no bytes, but PyTorch wants a chunk of every tensor
            entry.chunks.append(ChunkStorageMetadata(offsets=torch.Size([0] * len(entry.size)), sizes=entry.size))
        for number, chunk in enumerate(entry.chunks):
            data = TensorWriteData(chunk=chunk, properties=entry.properties, size=entry.size)
            kind = WriteItemType.TENSOR if len(entry.chunks) == 1 else WriteItemType.SHARD
            items.append(WriteItem(index=MetadataIndex(name, chunk.offsets, number), type=kind, tensor_data=data))
    return items


def _by_size(items: Sequence[WriteItem], limit: int) -> list[list[WriteItem]]:
    parts: list[list[WriteItem]] = [[]]
    filled = 0
    for item in items:
        size = 0 if item.tensor_data is None else item.tensor_data.chunk.sizes.numel() * item.tensor_data.properties.dtype.itemsize
        if parts[-1] and filled + size > limit:
            parts.append([])
            filled = 0
        parts[-1].append(item)
        filled += size
    return parts
