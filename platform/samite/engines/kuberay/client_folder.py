"""A run on Kubernetes as a folder laid out like a local run's, for the report and for people who want the files."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from samite.engines.kuberay.client_records import copy_metrics
from samite.engines.kuberay.client_run import ClusterRun
from samite.errors import SamiteError
from samite.telemetry.jsonlines import append_line

if TYPE_CHECKING:
    from samite.engines.kuberay.client import ClusterEngine


def gather(folder: Path, engine: "ClusterEngine", run: ClusterRun) -> None:
    """Write spec.json, run.yaml, status.json, events.jsonl and metrics/ below `folder`. What storage does not give is told, and left out."""
    import yaml

    record = engine.record(run)
    (folder / "spec.json").write_text(json.dumps(record, indent=1), encoding="utf-8")
    (folder / "run.yaml").write_text(yaml.safe_dump(record["run"], sort_keys=False, allow_unicode=True), encoding="utf-8")
    (folder / "status.json").write_text(json.dumps(engine.status(run), indent=1), encoding="utf-8")
    for event in engine.events(run).poll():
        append_line(folder / "events.jsonl", event.to_document())
    try:
        copy_metrics(engine.store(run), folder)
    except (SamiteError, OSError) as error:
        engine.tell(f"the metrics in storage were not read, so the report has no curves: {error}")
