"""Drills 18 to 21 on real local runs: what dies while a checkpoint is written, what rots afterwards, and storage that fails, stalls or is full.

Each run ends with the weights of the unbroken one, bit for bit: no partial or damaged checkpoint was ever chosen, no sample lost or repeated.
"""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from failing_storage import FailingProxy
from local_run import LocalRun, spec_document

pytestmark = [pytest.mark.ray, pytest.mark.drill, pytest.mark.timeout(900)]
RECOVERY_S = 150.0


def checkpoints(run: LocalRun) -> list[dict]:
    """`samite checkpoints ls`."""
    return json.loads(run.samite("checkpoints", "ls", run.name, "-o", "json").stdout)["items"]


def newest_folder(run: LocalRun) -> Path:
    """The newest committed checkpoint's folder."""
    return max((file.parent for file in (run.folder / "checkpoints" / "ckpt").glob("*/MANIFEST")), key=lambda folder: folder.name)


def test_ranks_killed_inside_the_writing_of_checkpoints_lose_nothing_and_leave_no_partial_one_behind(
    tmp_path: Path, corpus: Path, unbroken: LocalRun
):
    """Drill 18: in the middle of the shards, between shards and manifest, and right after the manifest."""
    kills = (
        {"id": "shard", "kind": "kill", "rank": 1, "step": 8, "point": "checkpoint.shard"},
        {"id": "commit", "kind": "kill", "rank": 0, "step": 16, "point": "checkpoint.commit"},
        {"id": "committed", "kind": "kill", "rank": 0, "step": 24, "point": "checkpoint.committed"},
    )
    with LocalRun(tmp_path, spec_document("dying", corpus)) as run:
        run.submit()
        (run.folder / "control").mkdir(exist_ok=True)
        (run.folder / "control" / "faults.json").write_text(json.dumps({"faults": kills}))
        run.until_phase("Succeeded", limit_s=3 * RECOVERY_S)
        assert sorted(file.name for file in (run.folder / "control" / "fired").iterdir()) == [
            "commit.rank-0.0",
            "committed.rank-0.0",
            "shard.rank-1.0",
        ]
        assert len(run.status()["recoveries"]) == 3
        assert run.final_weights() == unbroken.final_weights()
        assert run.losses() == unbroken.losses()
        assert run.samite("checkpoints", "verify", run.name, "--full").returncode == 0
        restored = {event["samite.checkpoint.id"] for event in run.events("samite.checkpoint.restored")}
        committed = {event["samite.checkpoint.id"] for event in run.events("samite.checkpoint.committed")}
        written = {file.parent.name for file in (run.folder / "checkpoints" / "ckpt").glob("*/MANIFEST")}
        assert restored <= written | committed


def test_a_flipped_byte_a_missing_shard_and_a_cut_manifest_each_fall_back_to_an_older_checkpoint(
    tmp_path: Path, corpus: Path, unbroken: LocalRun
):
    """Drill 19."""

    def flip(folder: Path) -> None:
        shard = max(folder.glob("data/*.bin"), key=lambda file: file.stat().st_size)
        content = bytearray(shard.read_bytes())
        content[len(content) // 2] ^= 1
        shard.write_bytes(content)

    def remove(folder: Path) -> None:
        next(folder.glob("data/*.bin")).unlink()

    def cut(folder: Path) -> None:
        manifest = folder / "MANIFEST"
        manifest.write_bytes(manifest.read_bytes()[:100])

    with LocalRun(tmp_path, spec_document("rotting", corpus)) as run:
        run.submit()
        damaged = []
        for times, (step, damage) in enumerate(((9, flip), (18, remove), (25, cut)), start=1):
            run.until_step(step, limit_s=RECOVERY_S)
            bad = newest_folder(run)
            damage(bad)
            damaged.append(bad.name)
            run.chaos("kill-rank", "--rank", "0")
            run.until_recovered(times, limit_s=RECOVERY_S)
            restored = run.events("samite.checkpoint.restored")[-1]["samite.checkpoint.id"]
            assert restored < bad.name, "the one before it"
        run.until_phase("Succeeded", limit_s=RECOVERY_S)
        found = {entry["id"]: entry for entry in checkpoints(run)}
        for name in damaged:
            assert found[name]["state"].lower() == "quarantined"
            assert found[name]["reason"]
        assert run.final_weights() == unbroken.final_weights()
        assert run.losses() == unbroken.losses()


def test_storage_that_answers_503_and_storage_that_stalls_delay_commits_and_stop_nothing(
    tmp_path: Path, corpus: Path, unbroken: LocalRun, object_storage: FailingProxy, monkeypatch: pytest.MonkeyPatch
):
    """Drill 20: training goes on, commits are late, nobody calls it a hang."""
    for name, value in object_storage.credentials.items():
        monkeypatch.setenv(name, value)
    storage = {
        "uri": f"s3://{object_storage.bucket}/slow",
        "endpoint": object_storage.endpoint,
        "interval": {"steps": 4},
        "keep": {"last": 50},
        "stallSeconds": 2,
        "deadlineSeconds": 120,
    }
    with LocalRun(tmp_path, spec_document("weather", corpus, stages=1, steps=40, checkpoint=storage)) as run:
        run.submit().until_step(5, limit_s=RECOVERY_S)
        object_storage.mode = "503"
        step = run.step()
        run.until_step(step + 6)
        object_storage.mode = "ok"
        run.until("a commit after the 503s", lambda: _committed_step(run) > step, limit_s=60)
        object_storage.mode = "stall"
        run.until_step(40)
        # The stage's last save waits for the storage, longer than a hang may take in this phase: 30 s.
        run.until("a stall that is told", lambda: bool(run.events("samite.storage.stall")), limit_s=30)
        time.sleep(35)
        assert run.phase() == "Running"
        assert {c["type"]: c["status"] for c in run.status()["conditions"]}["CheckpointHealthy"] == "False"
        object_storage.mode = "ok"
        run.until_phase("Succeeded", limit_s=RECOVERY_S)
        status = run.status()
        assert status["restarts"] == {}
        assert status["attempt"] == 1
        assert not run.events("samite.hang.confirmed")
        assert object_storage.refused > 0
        assert object_storage.stalled > 0
        assert _committed_step(run) == 40


def test_a_full_disk_fails_saves_with_a_clear_word_and_the_next_save_works_when_there_is_room(
    tmp_path: Path, corpus: Path, small_disk: Path
):
    """Drill 21."""
    storage = {"uri": small_disk.as_uri(), "interval": {"steps": 4}, "keep": {"last": 2}}
    with LocalRun(tmp_path, spec_document("full", corpus, stages=1, steps=60, checkpoint=storage)) as run:
        run.submit().until("a first commit", lambda: _committed_step(run) >= 4, limit_s=RECOVERY_S)
        filler = small_disk / "filler"
        with filler.open("wb") as file:
            try:
                while True:
                    file.write(b"\0" * 65536)
                    file.flush()
            except OSError:
                pass
        run.until("a save that fails", lambda: bool(run.events("samite.checkpoint.save.failed")), limit_s=60)
        before = _committed_step(run)
        reason = run.events("samite.checkpoint.save.failed")[0]["samite.reason"]
        assert "No space left" in reason
        listed = run.samite("checkpoints", "verify", run.name, "--full")
        assert listed.returncode == 0, "what was committed before is whole"
        filler.unlink()
        run.until("a save that works again", lambda: _committed_step(run) > before, limit_s=60, or_phase="Succeeded")
        run.until_phase("Succeeded", limit_s=RECOVERY_S)
        assert run.status()["restarts"] == {}
        assert _committed_step(run) == 60


def _committed_step(run: LocalRun) -> int:
    return max((event["samite.step.index"] for event in run.events("samite.checkpoint.committed")), default=0)


@pytest.fixture
def object_storage(tmp_path: Path) -> Iterator[FailingProxy]:
    """A real S3 server behind a door that can refuse or stall."""
    with FailingProxy.before_seaweed(tmp_path / "weed") as proxy:
        yield proxy


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with room for a few checkpoints."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(place)], capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted here (uid {os.getuid()}): {mounted.stderr.strip()}")
    try:
        yield place
    finally:
        for _ in range(20):
            if subprocess.run(["umount", str(place)], capture_output=True, check=False).returncode == 0:
                break
            time.sleep(0.5)
