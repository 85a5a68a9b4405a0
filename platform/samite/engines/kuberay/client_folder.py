"""A run on Kubernetes as a folder laid out like a local run's, for the report and for people who want the files."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from samite.engines.kuberay.api import LEASE
from samite.engines.kuberay.client_records import copy_metrics
from samite.engines.kuberay.client_run import ClusterRun
from samite.errors import NotFoundError, SamiteError
from samite.spec.lease import lease_name, read_lease
from samite.telemetry.jsonlines import append_line

if TYPE_CHECKING:
    from samite.engines.kuberay.client import ClusterEngine


def gather(folder: Path, engine: "ClusterEngine", run: ClusterRun) -> None:
    """Write spec.json, run.yaml, status.json, events.jsonl, metrics/ and heartbeats/ below `folder`. What is not given is told, and left out."""
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
    _ranks(folder / "heartbeats", engine, run)


def _ranks(folder: Path, engine: "ClusterEngine", run: ClusterRun) -> None:
    """The heartbeats that the driver told the run's Lease: of up to 64 ranks all, of more the slowest. Ages are the driver's."""
    try:
        lease = engine.api.get(LEASE, run.namespace, lease_name(run.name))
    except NotFoundError:
        return  # nothing is under way
    except SamiteError as error:
        engine.tell(f"the ranks were not read, so they are not shown: {error}")
        return
    folder.mkdir(exist_ok=True)
    now_s = time.time()
    for sign in read_lease(lease["metadata"].get("annotations") or {}, seen_at_s=now_s).signs:
        # The clock of the signs is this machine's, so that an age is one whatever the rank's own clock says.
        beat = replace(sign.heartbeat, time_unix_s=sign.heartbeat.monotonic_s)
        beat.write(folder / f"rank-{beat.rank}.json")
