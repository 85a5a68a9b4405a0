"""1,024 ranks with 500 tensors each, simulated: every rank's plan, index, the commit's checks, the manifest, and one rank's way back. Half a million chunks."""

import secrets
import time

import pytest
import torch

from samite.checkpoint import open_store
from samite.checkpoint.commit import CommitRequest, build_manifest, commit
from samite.checkpoint.index import Chunk, DataObject, RankIndex, TensorMeta
from samite.checkpoint.layout import DIRECTORY, MANIFEST, SessionId, checkpoint_key, data_name, index_name
from samite_workloads.checkpoint.chunk_tables import directory_table
from samite_workloads.checkpoint.plan import write_plan
from samite_workloads.checkpoint.shards import LocalShard

ONE, WORLD, COUNT, ROWS = "00000001-1-00000000", 1024, 500, 16


@pytest.mark.slow
def test_half_a_million_chunks_go_from_the_planner_to_the_manifest_and_back():
    store = open_store(f"memory://{secrets.token_hex(6)}")
    metas = [TensorMeta(f"model.layers.{n // 10}.experts.{n % 10}.weight", "bfloat16", (WORLD * ROWS, 256)) for n in range(COUNT)]
    held = torch.zeros(COUNT, ROWS, 256, dtype=torch.bfloat16)
    planned_s, index_bytes = 0.0, 0
    for rank in range(WORLD):
        box = ((rank * ROWS, ROWS), (0, 256))
        shards = [LocalShard(meta=meta, box=box, data=data, replica=0, num_replicas=1) for meta, data in zip(metas, held, strict=True)]
        began_s = time.process_time()
        plan = write_plan(shards, object_bytes=1 << 30)
        planned_s += time.process_time() - began_s
        chunks = []
        for one in plan.chunks:
            checksum = hash((rank, one.shard)) & 0xFFFF_FFFF_FFFF_FFFF
            chunks.append(Chunk(one.shard, box, one.start, one.num_bytes, one.data_object, one.offset, checksum, (checksum,)))
        objects = tuple(DataObject(data_name(rank, number), size, 0) for number, size in enumerate(plan.object_bytes))
        index = RankIndex(checkpoint_id=ONE, rank=rank, tensors=tuple(metas), objects=objects, chunks=tuple(chunks)).to_bytes()
        index_bytes += len(index)
        store.put(checkpoint_key(ONE, index_name(rank)), index)
    request = CommitRequest(checkpoint_id=ONE, step=1, world_size=WORLD, session=SessionId(1, 0), run_uid="r", created_unix_s=0.0, extra={})
    began_s = time.process_time()
    manifest = build_manifest(store, request)
    commit(store, manifest)
    built_s = time.process_time() - began_s
    stored = index_bytes + len(store.get(checkpoint_key(ONE, DIRECTORY))) + len(store.get(checkpoint_key(ONE, MANIFEST)))
    began_s = time.process_time()
    table = directory_table(store, manifest)
    mine = [table.sources(meta.name, ((7 * ROWS, ROWS), (0, 256))) for meta in metas]
    found_s = time.process_time() - began_s
    assert sum(record.num_chunks for record in manifest.ranks) == WORLD * COUNT
    assert [[source.key for source in sources] for sources in mine] == [[checkpoint_key(ONE, data_name(7, 0))]] * COUNT
    print(
        f"plan {planned_s / WORLD * 1e3:.1f} ms a rank; metadata {stored / 1e6:.1f} MB; checked and committed in {built_s:.2f} s, "
        f"one rank's part in {found_s:.2f} s of CPU"
    )
    assert stored < 16e6
    assert planned_s / WORLD < 0.05
    assert built_s < 15  # 5 where a processor is ours alone
    assert found_s < 1.5  # 0.5
