"""What `samite describe` shows: everything known about a run, as one document and as text."""

import time
from typing import TYPE_CHECKING, Any

from samite.cli.event_lines import event_line
from samite.cli.output import API_VERSION, duration
from samite.cli.place import command
from samite.cli.screen import facts, lines, recovery_seconds

if TYPE_CHECKING:
    from samite.engines.base import RunClient

PLACES = ("folder", "namespace", "cluster", "checkpoints", "records", "operator")
"""Keys of `RunClient.details` that are shown as lines of their own, in this order."""
_EVENTS_SHOWN = 15


def description_document(client: "RunClient[Any]", run: Any) -> dict[str, Any]:
    """Status, conditions, attempts, events and places of a run."""
    record = client.record(run)
    events = client.events(run).poll()[-_EVENTS_SHOWN:]
    return {
        "apiVersion": API_VERSION,
        "kind": "TrainingRunDescription",
        "name": run.name,
        "uid": record.get("uid", ""),
        "submittedAt": record.get("submittedAt", 0.0),
        "status": client.status(run),
        "screen": lines(facts(client, run)),
        "events": [event.to_document() for event in events],
        "eventLines": [event_line(event) for event in events],
        **client.details(run),
    }


def description_lines(client: "RunClient[Any]", document: dict[str, Any]) -> list[str]:
    """The description for people."""
    status = document["status"]
    submitted = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(document["submittedAt"]))
    found = [*document["screen"], "", f"submitted    {submitted}   uid {document['uid']}"]
    found += [f"{key:<12} {document[key]}" for key in PLACES if document.get(key)]
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
    if document.get("pods"):
        width = max(len(pod["name"]) for pod in document["pods"])
        found += ["", f"pods         {'name':<{width}}  phase        ready  restarts  node"]
        found += [
            f"             {pod['name']:<{width}}  {pod['phase']:<11}  {pod['ready']!s:<5}  {pod['restarts']:<8}  {pod['node']}"
            for pod in document["pods"]
        ]
    found += ["", "attempts     " + (", ".join(document["attempts"]) or "none yet")]
    found += ["", "events", *(f"  {line}" for line in document["eventLines"])]
    name = document["name"]
    following = (("logs", name, "--source all"), ("checkpoints", "ls", name), ("report", name))
    found += ["", "next", "  " + "     ".join(command(client, *words) for words in following)]
    if status.get("phase") == "Held":
        found += [f"  {command(client, 'resume', name)}     (after the cause is gone)"]
    return found


def _recovery(recovery: dict[str, Any]) -> str:
    parts = [duration(float(recovery.get(part, 0.0))) for part in ("detectS", "restartS", "loadS", "firstStepS")]
    columns = "  ".join(f"{part:<8}" for part in parts)
    head = f"  attempt {recovery.get('attempt', 0):<3} L{recovery.get('level', 0)}     {recovery.get('failureClass', ''):<11}"
    return f"{head}  {columns}  {duration(recovery_seconds(recovery))}"
