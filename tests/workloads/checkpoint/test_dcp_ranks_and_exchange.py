"""PyTorch's save and load over several ranks, and its own checkpoints imported and exported without losing a bit."""

import json
import pickle
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader, FsspecWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from samite.checkpoint import Catalog, Level, State, open_store
from samite.cli.app import run
from samite.errors import ConflictError, NotFoundError
from samite_workloads.checkpoint.dcp import SamiteStorageReader
from samite_workloads.checkpoint.dcp.exchange import export_dcp, import_dcp

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        warnings.filterwarnings("ignore", message="Detected an existing checkpoint")
        warnings.filterwarnings("ignore", message="fsync not supported")
        yield


def state() -> dict:
    make = torch.Generator().manual_seed(5)
    return {
        "model": {
            "wide": torch.randn(64, 129, generator=make),
            "half": torch.randn(7, generator=make).bfloat16(),
            "small": torch.randn(9, generator=make).to(torch.float8_e5m2),
            "flags": torch.rand(11, generator=make) > 0.5,
            "count": torch.tensor(3, dtype=torch.int64),
            "none": torch.empty(0, 5),
        },
        "optimizer": {"groups": [{"lr": 0.1, "betas": (0.9, 0.99)}]},
        "cursor": {"seen": 12345},
    }


def blank(like):
    if isinstance(like, torch.Tensor):
        return torch.zeros_like(like)
    if isinstance(like, dict):
        return {key: blank(value) for key, value in like.items()}
    return [blank(value) for value in like] if isinstance(like, list) else None


def same(one, other) -> bool:
    if isinstance(one, torch.Tensor):
        equal = one.dtype == other.dtype and one.shape == other.shape
        return equal and (one.numel() == 0 or torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8)))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return len(one) == len(other) and all(map(same, one, other)) if isinstance(one, list) else one == other


def facts(metadata) -> dict:
    """What a metadata says of each name, whatever the order of its chunks."""
    found = {}
    for name, entry in metadata.state_dict_metadata.items():
        tensor = isinstance(entry, TensorStorageMetadata)
        cuts = sorted((tuple(chunk.offsets), tuple(chunk.sizes)) for chunk in entry.chunks) if tensor else None
        found[name] = (entry.properties.dtype, tuple(entry.size), cuts) if tensor else "bytes"
    return found


@pytest.mark.parametrize("writers", [1, 3, 4])
def test_what_any_number_of_ranks_saved_any_other_number_loads(ranks, tmp_path: Path, writers: int):
    uri = str(tmp_path / "store")
    ranks("dcp_round_trip", writers, uri=uri, save=True)
    for readers in {2, 4} - {writers}:
        for report in ranks("dcp_round_trip", readers, uri=uri, save=False):
            assert report == {"wrong": [], "note": {"step": 2}, "writers": writers}
    assert Catalog(open_store(uri)).newest_verified(Level.FULL).step == 2


def test_one_rank_that_cannot_write_fails_the_save_on_all_ranks_and_the_next_one_works(ranks, tmp_path: Path):
    for report in ranks("dcp_rank_cannot_write", 2, uri=str(tmp_path / "store")):
        assert len(report["reasons"]) == 1
        assert "no space left" in report["reasons"][0]
    states = {entry.step: entry.state for entry in Catalog(open_store(str(tmp_path / "store"))).list()}
    assert states == {1: State.WRITING, 2: State.COMMITTED}


@pytest.mark.parametrize("kind", ["folder", "fsspec"])
@pytest.mark.parametrize("group_bytes", [512 << 20, 5000])
def test_a_checkpoint_of_pytorchs_own_writer_goes_in_and_out_exactly(tmp_path: Path, kind: str, group_bytes: int):
    source, back = str(tmp_path / "theirs-42"), str(tmp_path / "back")
    if kind == "fsspec":
        source, back = f"file://{source}", f"file://{back}"
    dcp.save(state(), storage_writer=FsspecWriter(source, sync_files=False) if kind == "fsspec" else dcp.FileSystemWriter(source))
    store = open_store(str(tmp_path / "ours"))
    one = import_dcp(source, store, group_bytes=group_bytes)
    entry = Catalog(store).newest_verified(Level.FULL)
    assert (entry.checkpoint_id, entry.step, entry.manifest.extra["imported"]["from"]) == (one, 42, source)
    assert (entry.manifest.world_size > 1) == (group_bytes == 5000)
    target = blank(state())
    dcp.load(target, storage_reader=SamiteStorageReader(store))
    assert same(target, state())
    export_dcp(store, one, back)
    again = blank(state())
    reader = FsspecReader if kind == "fsspec" else dcp.FileSystemReader
    dcp.load(again, storage_reader=reader(back))
    assert same(again, state())
    before, after = reader(source).read_metadata(), reader(back).read_metadata()
    assert facts(before) == facts(after)
    assert before.planner_data == after.planner_data


def test_a_sharded_checkpoint_keeps_its_cuts_on_the_way_out(ranks, tmp_path: Path):
    uri, folder = str(tmp_path / "store"), tmp_path / "out"
    ranks("dcp_round_trip", 3, uri=uri, save=True)
    assert run(["checkpoints", "export-dcp", uri, "latest", "--to", str(folder)]) == 0
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    assert [tuple(chunk.offsets) for chunk in metadata.state_dict_metadata["model.rows"].chunks] == [(0, 0), (4, 0), (8, 0)]
    assert run(["checkpoints", "import-dcp", str(folder), str(tmp_path / "again"), "--step", "9"]) == 0
    for report in ranks("dcp_round_trip", 2, uri=str(tmp_path / "again"), save=False):
        assert report["wrong"] == []


def test_the_command_line_says_what_it_made_and_refuses_what_it_cannot_do(tmp_path: Path, capsys):
    theirs, ours = tmp_path / "theirs", str(tmp_path / "ours")
    dcp.save({"w": torch.ones(3)}, storage_writer=dcp.FileSystemWriter(theirs))
    assert run(["checkpoints", "import-dcp", str(theirs), ours]) == 2
    assert "say --step" in capsys.readouterr().err
    assert run(["checkpoints", "import-dcp", str(tmp_path / "nothing-1"), ours]) == 5
    assert "no .metadata there" in capsys.readouterr().err
    assert run(["checkpoints", "import-dcp", str(theirs), ours, "--step", "8", "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["step"] == 8
    assert run(["checkpoints", "export-dcp", ours, document["id"], "--to", str(tmp_path / "out")]) == 0
    assert run(["checkpoints", "export-dcp", ours, "8", "--to", str(tmp_path / "out")]) == 6
    assert "already holds a distributed checkpoint" in capsys.readouterr().err


def test_an_export_of_a_damaged_checkpoint_never_becomes_a_checkpoint(tmp_path: Path):
    source, store = str(tmp_path / "theirs-1"), open_store("memory://exchange-damaged")
    dcp.save(state(), storage_writer=dcp.FileSystemWriter(source))
    one = import_dcp(source, store)
    store.corrupt(f"ckpt/{one}/data/00000-0.bin", flip_byte=5000)
    with pytest.raises(Exception, match="do not have the checksum"):
        export_dcp(store, one, str(tmp_path / "out"))
    assert not (tmp_path / "out" / ".metadata").exists()
    with pytest.raises(NotFoundError):
        import_dcp(str(tmp_path / "out-1"), store)
    with pytest.raises(ConflictError):
        export_dcp(store, one, source)
