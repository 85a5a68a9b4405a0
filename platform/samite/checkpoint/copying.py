"""One checkpoint copied to another place, every byte verified on the way. Called by `samite checkpoints copy`.

The copy gets an id of its own there and is committed like any other, under the newest session of that place: a run that writes there is not disturbed.
"""

import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from samite.checkpoint.checksum import crc64
from samite.checkpoint.commit import CommitRequest, build_manifest, commit, move_hint
from samite.checkpoint.fence import guest_session
from samite.checkpoint.index import DataObject
from samite.checkpoint.layout import MANIFEST, CheckpointId, checkpoint_key, checkpoint_prefix, index_name
from samite.checkpoint.manifest import Manifest
from samite.checkpoint.store.base import MissingKeyError, Store
from samite.checkpoint.verify import read_index
from samite.errors import CheckpointDamagedError

_LOOKS = 3


def copy_checkpoint(
    source: Store, checkpoint_id: str, target: Store, *, threads: int = 2, progress: Callable[[int], None] | None = None
) -> str:
    """Copy a committed checkpoint below `target` and return its id there. Holds `threads` data objects in memory.

    Raises CheckpointDamagedError naming the object whose bytes are not what its index promises; then nothing is committed and what was copied is removed.
    """
    key = checkpoint_key(checkpoint_id, MANIFEST)
    manifest = Manifest.from_bytes(source.get(key), name=f"{source.uri}/{key}")
    session, run_uid = guest_session(target)
    one = str(CheckpointId(step=manifest.step, epoch=session.epoch, attempt=secrets.token_hex(4)))

    def copy_object(item: DataObject) -> None:
        data = _verified(source, checkpoint_key(checkpoint_id, item.name), item)
        target.put(checkpoint_key(one, item.name), data, crc64=item.crc64)
        if progress is not None:
            progress(item.num_bytes)

    try:
        with ThreadPoolExecutor(threads, thread_name_prefix="samite-copy") as pool:
            for record in manifest.ranks:
                index = read_index(source, checkpoint_id, record)
                list(pool.map(copy_object, index.objects))
                target.put(checkpoint_key(one, index_name(record.rank)), replace(index, checkpoint_id=one).to_bytes())
        request = CommitRequest(
            checkpoint_id=one,
            step=manifest.step,
            world_size=manifest.world_size,
            session=session,
            run_uid=run_uid or manifest.run_uid,
            created_unix_s=round(time.time(), 3),
            extra=manifest.extra,
            final=manifest.final,
            writer=f"{manifest.writer}, copied from {source.uri}/ckpt/{checkpoint_id}",
        )
        commit(target, build_manifest(target, request))
    except BaseException:
        target.delete([info.key for info in target.list(checkpoint_prefix(one))])
        raise
    if is_newest(target, one):
        move_hint(target, one)
    return one


def is_newest(store: Store, checkpoint_id: str) -> bool:
    """Whether LATEST should point at `checkpoint_id`: only if it is the newest that counts."""
    from samite.checkpoint.catalog import Catalog

    newest = Catalog(store).newest_committed()
    return newest is not None and newest.checkpoint_id == checkpoint_id


def _verified(store: Store, key: str, item: DataObject) -> memoryview:
    """The object's bytes; read again before they are called damaged."""
    data = memoryview(bytearray(item.num_bytes))
    problem = ""
    for _ in range(_LOOKS):
        try:
            store.read_into(key, 0, data)
        except (MissingKeyError, CheckpointDamagedError) as error:
            problem = str(error)
            continue
        found = crc64(data)
        if found == item.crc64:
            return data
        problem = f"{store.uri}/{key}: its {item.num_bytes} bytes have CRC64 {found:016x}, the index promises {item.crc64:016x}"
    raise CheckpointDamagedError(problem)
