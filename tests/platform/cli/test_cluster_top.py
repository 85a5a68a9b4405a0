"""`samite top` for a run on Kubernetes: status from the API server, numbers from what the run keeps in storage."""

import json
import time
from pathlib import Path

from samite.engines.kuberay.api import LEASE
from samite.spec.attempt import Heartbeat
from samite.spec.lease import HEARTBEATS, SUBMISSION, RankSign, heartbeats_annotation
from samite.telemetry.records import MetricRecord, Point


def test_numbers_of_a_run_in_a_cluster_come_from_its_storage(shell, stored, tmp_path: Path):
    stored(uri=f"file://{tmp_path / 'storage'}")
    lines = [
        MetricRecord(time_unix_s=1e9 + step, step=step, points=(Point("samite.loss", 4.0 - step / 10, {"samite.loss.kind": "total"}),))
        for step in range(20)
    ]
    file = tmp_path / "storage/records/demo-s00-a1/metrics/rank-0.000000.jsonl"
    file.parent.mkdir(parents=True)
    file.write_text("".join(json.dumps(line.to_document()) + "\n" for line in lines))
    shown = shell("--context", "prod", "top", "demo").stdout
    assert "Running" in shown
    assert "2.1" in shown.split("loss", 1)[1].split("\n", 1)[0]
    document = json.loads(shell("--context", "prod", "top", "demo", "-o", "json").stdout)
    assert (document["phase"], document["numbers"][0]["trend"][-1]) == ("Running", 2.1)


def test_a_run_whose_storage_is_empty_still_shows_its_status(shell, stored, tmp_path: Path):
    (tmp_path / "storage").mkdir()
    stored(uri=f"file://{tmp_path / 'storage'}")
    assert "Running" in shell("--context", "prod", "top", "demo").stdout


def sign(rank: int, age_s: float, now_s: float) -> RankSign:
    beat = Heartbeat(
        rank=rank,
        node=f"pod-{rank}",
        pid=7,
        submission_id="demo-s00-a1",
        incarnation=0,
        step=40 + rank,
        tokens=9,
        phase="training",
        monotonic_s=now_s - age_s,
        time_unix_s=time.time() + 9e5,  # a machine whose clock is wrong
        compute_s=0.25,
    )
    return RankSign(heartbeat=beat, heard_at_s=now_s)


def test_the_ranks_of_a_run_in_a_cluster_come_from_its_lease_with_the_drivers_ages(world, shell, stored, tmp_path: Path):
    (tmp_path / "storage").mkdir()
    stored(uri=f"file://{tmp_path / 'storage'}")
    now_s = time.monotonic()
    told = heartbeats_annotation([sign(0, 1.0, now_s), sign(1, 40.0, now_s)], now_s=now_s)
    annotations = {SUBMISSION: "demo-s00-a1", HEARTBEATS: told}
    world.api.put(LEASE, {"metadata": {"name": "demo-heartbeat", "namespace": "team-a", "annotations": annotations}, "spec": {}})
    document = json.loads(shell("--context", "prod", "top", "demo", "-o", "json").stdout)
    assert [(r["rank"], r["node"], r["phase"], r["step"], r["stepS"]) for r in document["ranks"]] == [
        (0, "pod-0", "training", 40, 0.25),
        (1, "pod-1", "training", 41, 0.25),
    ]
    assert 39.0 <= document["ranks"][1]["ageS"] <= 60.0
    assert "pod-1" in shell("--context", "prod", "top", "demo").stdout


def test_a_run_without_an_attempt_has_no_ranks_and_no_complaint(shell, stored, tmp_path: Path):
    (tmp_path / "storage").mkdir()
    stored(uri=f"file://{tmp_path / 'storage'}")
    shown = shell("--context", "prod", "top", "demo", "-o", "json")
    assert json.loads(shown.stdout)["ranks"] == []
    assert "ranks" not in shown.stderr
