"""The format's description is enough: a reader written from docs/checkpoint-format.md alone, with nothing of ours but the checksum, reads what we write."""

import itertools
import json
import re
import struct
import zlib
from array import array
from math import prod
from pathlib import Path

import numpy as np
import pytest
import torch
from awscrt.checksums import crc64nvme

from samite_workloads.checkpoint import CheckpointManager, CheckpointOptions

torch.set_num_threads(1)


def unseal(document: bytes, kind: str) -> bytes:
    header, _, body = document.partition(b"\n")
    match = re.fullmatch(rb"(SAMITE-(\w+) (\d+)) crc64=([0-9a-f]{16}) bytes=(\d+)", header)
    assert match[2].decode() == kind
    assert int(match[3]) == 1
    assert len(body) == int(match[5])
    assert crc64nvme(match[1] + body) == int(match[4], 16)
    return body


def read_checkpoint(folder: Path) -> tuple[dict, dict[str, bytes]]:
    """Manifest and the row-major bytes of every tensor."""
    manifest = json.loads(unseal((folder / "MANIFEST").read_bytes(), "MANIFEST"))
    tensors: dict[str, np.ndarray] = {}
    for rank, index_bytes, index_crc64, *_ in manifest["ranks"]:
        document = (folder / "rank" / f"{rank:05d}.idx").read_bytes()
        assert (len(document), f"{crc64nvme(document):016x}") == (index_bytes, index_crc64)
        body = unseal(document, "INDEX")
        (length,) = struct.unpack_from("<I", body)
        head, position, columns = json.loads(zlib.decompress(body[4 : 4 + length])), 4 + length, {}
        assert (head["id"], head["rank"]) == (manifest["id"], rank)
        for name, typecode, count, size in head["columns"]:
            columns[name] = array(typecode, zlib.decompress(body[position : position + size]))
            assert len(columns[name]) == count
            position += size
        boxes = iter(columns["box"])
        for tensor, start, num_bytes, number, offset, checksum in zip(
            itertools.accumulate(columns["tensor"]), columns["start"], columns["num_bytes"],
            itertools.accumulate(columns["object"]), itertools.accumulate(columns["offset"]), columns["crc64"], strict=True,
        ):  # fmt: skip
            name, _, shape = head["tensors"][tensor]
            box = [(next(boxes), next(boxes)) for _ in shape]
            data = (folder / head["objects"][number][0]).read_bytes()[offset : offset + num_bytes]
            assert crc64nvme(data) == checksum
            assert offset % (4096 if num_bytes >= 65536 else 64) == 0
            item = ITEM[head["tensors"][tensor][1]]
            whole = tensors.setdefault(name, np.zeros((*shape, item), dtype=np.uint8))
            part = np.ascontiguousarray(whole[tuple(slice(o, o + s) for o, s in box)]).reshape(-1)
            part[start : start + num_bytes] = np.frombuffer(data, dtype=np.uint8)
            whole[tuple(slice(o, o + s) for o, s in box)] = part.reshape(*(s for _, s in box), item)
            assert prod(whole.shape) >= num_bytes
        for name, other in head["aliases"].items():
            tensors[name] = tensors[other]
    return manifest, {name: value.tobytes() for name, value in tensors.items()}


ITEM = {"float32": 4, "bfloat16": 2, "int64": 8, "bool": 1}


@pytest.mark.parametrize("object_bytes", [1 << 30, 500_000])
def test_a_reader_written_from_the_description_reads_what_we_write(tmp_path: Path, object_bytes: int):
    saver = CheckpointManager(str(tmp_path), run_uid="run", epoch=3, options=CheckpointOptions(object_bytes=object_bytes))
    tied = torch.randn(300, 200)
    tensors = {
        "a": tied,
        "b": tied,
        "large": torch.randn(1_500_000),
        "s": torch.tensor(7),
        "h": torch.randn(5, 7).bfloat16(),
        "f": torch.rand(9) > 0.5,
    }
    saver.save(12, tensors, {"cursor": [1, 2]}, asynchronous=False, final=True)
    (commit,) = saver.poll()
    saver.close()
    manifest, found = read_checkpoint(tmp_path / "ckpt" / commit.checkpoint_id)
    assert (manifest["step"], manifest["epoch"], manifest["extra"], manifest["final"]) == (12, 3, {"cursor": [1, 2]}, True)
    assert re.fullmatch(r"00000012-3-[0-9a-f]{8}", manifest["id"])
    for name, tensor in tensors.items():
        assert found[name] == bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy()), name
    fence = json.loads(unseal((tmp_path / "fence" / "00000003-0000").read_bytes(), "FENCE"))
    assert (fence["inherits"], fence["run_uid"]) == ([], "run")
    assert json.loads((tmp_path / "LATEST").read_text())["id"] == commit.checkpoint_id


def test_a_reader_written_from_the_description_reads_what_four_ranks_write(ranks, tmp_path: Path):
    saved = ranks("save_and_leave", 4, uri=str(tmp_path / "store"))
    ITEM["float16"] = 2
    manifest, found = read_checkpoint(tmp_path / "store" / "ckpt" / saved[0]["commits"][0])
    make = torch.Generator().manual_seed(7)
    assert found["rows"] == torch.randn(10, 33, generator=make).numpy().tobytes()
    assert manifest["num_tensors"] == 10
    assert len(manifest["ranks"]) == 4
