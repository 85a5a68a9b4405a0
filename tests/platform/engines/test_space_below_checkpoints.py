"""How full the file system of the checkpoints is, as the supervisor tells it."""

import shutil
from pathlib import Path

from samite.checkpoint import open_store
from samite.checkpoint.retention import KeepPolicy
from samite.checkpoint.store.memory import MemoryStore
from samite.engines.local.storage_watch import StorageWatch


def test_a_folder_tells_the_space_of_its_file_system_before_it_exists(tmp_path: Path):
    watch = StorageWatch(open_store(str(tmp_path / "a b" / "checkpoints")), keep=KeepPolicy(last=1))
    space = watch.space()
    assert space is not None
    found = shutil.disk_usage(tmp_path)
    assert space[1] == found.total
    assert 0 < space[0] <= space[1]


def test_object_storage_has_no_limit_to_tell():
    assert StorageWatch(MemoryStore("memory://x"), keep=KeepPolicy(last=1)).space() is None
