"""What the engine does to checkpoints is told as events: verified, set aside, deleted."""

import time
from pathlib import Path
from typing import Any

import pytest

from samite.checkpoint import Catalog, open_store
from samite.checkpoint.retention import KeepPolicy
from samite.engines.local.storage_watch import StorageWatch
from samite.telemetry import names


@pytest.mark.timeout(30)
def test_a_checkpoint_that_does_not_verify_is_told_twice_damaged_and_set_aside(tmp_path: Path):
    store = open_store(str(tmp_path))
    store.put("ckpt/00000010-1-81476c46/MANIFEST", b"no manifest")
    told: list[tuple[str, dict[str, Any]]] = []
    watch = StorageWatch(store, keep=KeepPolicy(), period_s=0.05, tell=lambda name, **attributes: told.append((name, attributes)))
    watch.verify("00000010-1-81476c46")
    watch.start()
    try:
        deadline_s = time.monotonic() + 20
        while len(told) < 2 and time.monotonic() < deadline_s:
            time.sleep(0.02)
    finally:
        watch.stop()
    assert [name for name, _ in told] == ["samite.checkpoint.verify.failed", "samite.checkpoint.quarantined"]
    assert all(attributes["step_index"] == 10 and attributes["reason"] for _, attributes in told)
    for name, attributes in told:
        names.event_attributes(name, attributes)
    assert Catalog(store).entry("00000010-1-81476c46").state == "quarantined"
