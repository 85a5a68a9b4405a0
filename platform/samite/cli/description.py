"""What `samite describe` shows: everything known about a run, as one document and as text."""

import time
from typing import Any

from samite.cli.event_lines import event_line
from samite.cli.output import API_VERSION, duration
from samite.cli.screen import facts, lines, recovery_seconds
from samite.telemetry.events import read_events

_EVENTS_SHOWN = 15


def description_document(engine: Any, folder: Any) -> dict[str, Any]:
    """Status, conditions, attempts, events and places of a run."""
    record = engine.record(folder)
    events = read_events(folder.events_file)[0]
    return {
        "apiVersion": API_VERSION,
        "kind": "TrainingRunDescription",
        "name": folder.name,
        "uid": record.get("uid", ""),
        "submittedAt": record.get("submittedAt", 0.0),
        "status": engine.status(folder),
        "screen": lines(facts(engine, folder)),
        "attempts": sorted(path.name for path in (folder.path / "attempts").glob("*-a*")),
        "events": [event.to_document() for event in events[-_EVENTS_SHOWN:]],
        "eventLines": [event_line(event) for event in events[-_EVENTS_SHOWN:]],
        "supervised": folder.is_supervised(),
        "folder": str(folder.path),
        "checkpoints": record.get("run", {}).get("spec", {}).get("checkpoint", {}).get("uri") or str(folder.path / "checkpoints"),
    }


def description_lines(document: dict[str, Any]) -> list[str]:
    """The description for people."""
    status = document["status"]
    submitted = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(document["submittedAt"]))
    found = [*document["screen"], "", f"submitted    {submitted}   uid {document['uid']}"]
    found += [f"folder       {document['folder']}", f"checkpoints  {document['checkpoints']}"]
    found += ["", "conditions"]
    found += [f"  {c['type']:<17} {c['status']:<8} {c['reason']} {c['message']}".rstrip() for c in status.get("conditions", [])]
    if status.get("recoveries"):
        found += ["", "recoveries   level  class        detect    restart   load      first step  total"]
        found += [_recovery(recovery) for recovery in status["recoveries"]]
    failure = status.get("lastFailure")
    if failure:
        found += ["", f"last failure {failure.get('failureClass', '')}: {failure.get('message', '')}"]
        found += [f"  evidence   {item.get('source', '')}: {item.get('detail', '')}" for item in failure.get("evidence", [])]
        found += [f"  {line}" for line in str(failure.get("traceback", "")).splitlines()[-12:]]
    found += ["", "attempts     " + (", ".join(document["attempts"]) or "none yet")]
    found += ["", "events", *(f"  {line}" for line in document["eventLines"])]
    name = document["name"]
    found += ["", "next", f"  samite logs {name} --source all     samite checkpoints ls {name}     samite report {name}"]
    if status.get("phase") == "Held":
        found += [f"  samite resume {name}     (after the cause is gone)"]
    return found


def _recovery(recovery: dict[str, Any]) -> str:
    parts = [duration(float(recovery.get(part, 0.0))) for part in ("detectS", "restartS", "loadS", "firstStepS")]
    columns = "  ".join(f"{part:<8}" for part in parts)
    head = f"  attempt {recovery.get('attempt', 0):<3} L{recovery.get('level', 0)}     {recovery.get('failureClass', ''):<11}"
    return f"{head}  {columns}  {duration(recovery_seconds(recovery))}"
