"""Copies are verified and disturb nobody; differences are told by checksum, across world sizes."""

import json
import secrets
from pathlib import Path

import pytest
import torch

from samite.checkpoint import Catalog, Level, StoreOptions, open_store
from samite.checkpoint.compare import Change, differences
from samite.checkpoint.copying import copy_checkpoint
from samite.checkpoint.store import StorageFullError
from samite.checkpoint.store.faulty import Action, Fault, FaultyStore
from samite.checkpoint.store.sink import Sink
from samite.checkpoint.verify import read_index
from samite.cli.app import run
from samite.errors import CheckpointDamagedError
from samite_workloads.checkpoint import CheckpointManager, CheckpointOptions
from samite_workloads.checkpoint.dcp.exchange import import_dcp

torch.set_num_threads(1)


def state(value: float) -> dict[str, torch.Tensor]:
    return {
        "w": torch.full((300, 11), value),
        "norm": torch.ones(11).bfloat16(),
        "step": torch.tensor(int(value)),
        "none": torch.empty(0, 3),
    }


def manager(store, epoch: int = 1) -> CheckpointManager:
    return CheckpointManager(store, run_uid="run", epoch=epoch, options=CheckpointOptions(probe=False, object_bytes=5000))


def saved(store, *steps: int) -> list[str]:
    saver = manager(store)
    for step in steps:
        saver.save(step, state(step), {"cursor": step}, asynchronous=False)
    saver.close()
    return [entry.checkpoint_id for entry in reversed(Catalog(store).list())]


def memory():
    return open_store(f"memory://{secrets.token_hex(6)}")


def indexes(store, one: str):
    return [read_index(store, one, record) for record in Catalog(store).manifest(one).ranks]


def changes(first, one: str, second, other: str) -> dict[str, Change]:
    return {found.name: found.change for found in differences(indexes(first, one), indexes(second, other))}


def test_a_copy_is_the_same_checkpoint_in_another_place_and_a_run_can_start_from_it():
    source, target = memory(), memory()
    (one,) = saved(source, 7)
    copied = copy_checkpoint(source, one, target)
    entry = Catalog(target).newest_verified(Level.FULL)
    assert (entry.checkpoint_id, entry.step, entry.manifest.extra) == (copied, 7, {"cursor": 7})
    assert set(changes(source, one, target, copied).values()) == {Change.EQUAL}
    targets = {name: torch.zeros_like(tensor) for name, tensor in state(0).items()}
    starter = manager(target)
    assert starter.restore("latest", targets).step == 7
    assert targets["w"].eq(7).all()
    starter.close()


@pytest.mark.parametrize("bring", ["copy", "import"])
def test_a_run_that_writes_there_goes_on_and_its_next_attempt_inherits_what_was_brought(tmp_path: Path, bring: str):
    source, target = memory(), memory()
    (one,) = saved(source, 5)
    writer = manager(target, epoch=3)
    writer.save(10, state(10), asynchronous=False)
    if bring == "copy":
        brought = copy_checkpoint(source, one, target)
    else:
        import torch.distributed.checkpoint as dcp

        with pytest.warns(UserWarning, match="disabled"):
            dcp.save({"w": torch.ones(3)}, storage_writer=dcp.FileSystemWriter(tmp_path / "step-5"))
        brought = import_dcp(str(tmp_path / "step-5"), target)
    writer.save(11, state(11), asynchronous=False)
    writer.close()
    manager(target, epoch=4).close()
    assert {entry.checkpoint_id: entry.usable for entry in Catalog(target).list()}[brought]
    assert [entry.step for entry in Catalog(target).list() if entry.usable] == [11, 10, 5]
    assert json.loads(target.get("LATEST"))["id"] == Catalog(target).newest_committed().checkpoint_id


def test_damage_in_the_source_or_a_full_target_leaves_nothing_behind():
    source, target = memory(), memory()
    (one,) = saved(source, 7)
    full = FaultyStore(target, [Fault("put", "*/data/*", Action.FULL, skip=1)])
    with pytest.raises(StorageFullError):
        copy_checkpoint(source, one, full)
    assert list(target.list("ckpt/")) == []
    source.corrupt(f"ckpt/{one}/data/00000-1.bin", flip_byte=17)
    with pytest.raises(CheckpointDamagedError, match="00000-1"):
        copy_checkpoint(source, one, target)
    assert list(target.list("ckpt/")) == []


def test_differences_are_told_by_name():
    store = memory()
    first, second = saved(store, 1, 2)
    assert changes(store, first, store, second) == {
        "w": Change.VALUES, "step": Change.VALUES, "norm": Change.EQUAL, "none": Change.EQUAL
    }  # fmt: skip
    other = memory()
    saver = manager(other)
    saver.save(1, {"w": torch.ones(11, 300), "norm": torch.ones(11), "new": torch.ones(1)}, asynchronous=False)
    saver.close()
    (third,) = [entry.checkpoint_id for entry in Catalog(other).list()]
    assert changes(store, first, other, third) == {
        "w": Change.SHAPE, "norm": Change.DTYPE, "new": Change.ONLY_SECOND, "step": Change.ONLY_FIRST, "none": Change.ONLY_FIRST
    }  # fmt: skip


def test_checkpoints_of_different_world_sizes_compare_wherever_rows_were_cut(ranks, tmp_path: Path):
    found = {}
    for world in (1, 3):
        uri = str(tmp_path / f"store-{world}")
        found[world] = (open_store(uri), ranks("save_and_leave", world, uri=uri)[0]["commits"][0])
    told = changes(*found[1], *found[3])
    assert {name for name, change in told.items() if change is Change.UNKNOWN} == {"columns"}
    assert {change for name, change in told.items() if name != "columns"} == {Change.EQUAL}


def test_the_command_line_copies_between_services_and_tells_differences(tmp_path: Path, capsys, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    here = str(tmp_path / "here")
    saved(open_store(here, StoreOptions(durable=False)), 1, 2)
    with Sink() as sink:
        assert run(["checkpoints", "copy", here, "1", "--to", "s3://bucket/there", "--to-endpoint", sink.endpoint, "-o", "json"]) == 0
        assert json.loads(capsys.readouterr().out)["step"] == 1
        assert run(["checkpoints", "verify", "s3://bucket/there", "--full", "--endpoint", sink.endpoint]) == 0
        assert run(["checkpoints", "copy", "s3://bucket/there", "--endpoint", sink.endpoint, "--to", str(tmp_path / "back")]) == 0
    capsys.readouterr()
    assert run(["checkpoints", "diff", here, "1", "latest", "--with", str(tmp_path / "back"), "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["items"] == []
    assert run(["checkpoints", "diff", here, "1", "2"]) == 0
    text = capsys.readouterr()
    assert "w" in text.out
    assert "2 of 4 tensors differ" in text.err
    assert run(["checkpoints", "copy", here]) == 2
