"""One checkpoint as a document for people and scripts: what its manifest says, and on request what every tensor is."""

from typing import Any

from samite.checkpoint import Catalog, Entry
from samite.checkpoint.layout import index_name
from samite.checkpoint.verify import read_index


def checkpoint_document(catalog: Catalog, entry: Entry, *, tensors: bool) -> dict[str, Any]:
    """Everything beyond the listing. Raises CheckpointDamagedError if `tensors` needs an index that is damaged."""
    manifest = entry.manifest
    document: dict[str, Any] = {"uri": f"{catalog.store.uri}/ckpt/{entry.checkpoint_id}"}
    if manifest is None:
        return document
    document |= {
        "run": manifest.run_uid,
        "session": f"{manifest.session.epoch}.{manifest.session.seq}",
        "writer": manifest.writer,
        "manifestSha256": manifest.digest(),
        "numTensors": manifest.num_tensors,
        "rankRecords": [
            {
                "rank": record.rank,
                "index": index_name(record.rank),
                "indexCrc64": f"{record.index_crc64:016x}",
                "bytes": record.data_bytes,
                "objects": record.num_objects,
                "chunks": record.num_chunks,
            }
            for record in manifest.ranks
        ],
        "extra": dict(manifest.extra),
    }
    if tensors:
        found: dict[str, dict[str, Any]] = {}
        for record in manifest.ranks:
            index = read_index(catalog.store, entry.checkpoint_id, record)
            for tensor in index.tensors:
                line = found.setdefault(tensor.name, {"dtype": tensor.dtype, "shape": list(tensor.shape), "chunks": 0})
                if tensor.name in index.aliases:
                    line["sameAs"] = index.aliases[tensor.name]
            for chunk in index.chunks:
                found[index.tensors[chunk.tensor].name]["chunks"] += 1
        document["tensors"] = dict(sorted(found.items()))
    return document
