"""`samite top` for a run on Kubernetes: status from the API server, numbers from what the run keeps in storage."""

import json
from pathlib import Path

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
