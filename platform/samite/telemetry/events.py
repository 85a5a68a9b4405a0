"""The event log of a run: things that happened, one JSON line each, from supervisor, trainer and CLI into one `events.jsonl`.

    log = EventLog(run_folder / "events.jsonl", resource={"service.name": "samite-supervisor", "samite.run.name": "demo"})
    log.emit("samite.failure.detected", failure_class="infra", node="node-2", evidence=["raylet exited 137 (0.2 s ago)"])

Line: `{"time": seconds since the epoch, "name": ..., "severity": "ERROR", "attributes": {full names}, "resource": {...}}`.
"""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from samite.telemetry import jsonlines, names
from samite.telemetry.instruments import Severity

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class EventRecord:
    """One event as it was written or read. `time_unix_s` is when it happened."""

    time_unix_s: float
    name: str
    severity: Severity
    attributes: Mapping[str, Any] = field(default_factory=dict)
    resource: Mapping[str, Any] = field(default_factory=dict)

    def to_document(self) -> dict[str, Any]:
        """The JSON line."""
        return {
            "time": round(self.time_unix_s, 6),
            "name": self.name,
            "severity": str(self.severity),
            "attributes": dict(self.attributes),
            "resource": dict(self.resource),
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "EventRecord | None":
        """The event of a line, or None if the line is not an event. Unknown names are kept: a newer writer is no error."""
        seconds, name = jsonlines.moment(document.get("time")), document.get("name")
        if seconds is None or not isinstance(name, str):
            return None
        severity = str(document.get("severity", "INFO")).upper()
        attributes, resource = document.get("attributes"), document.get("resource")
        return cls(
            time_unix_s=seconds,
            name=name,
            severity=Severity(severity) if severity in Severity.__members__ else Severity.INFO,
            attributes=attributes if isinstance(attributes, dict) else {},
            resource=resource if isinstance(resource, dict) else {},
        )


class EventLog:
    """Appends events to `path`; safe to use from many processes and threads at once."""

    def __init__(self, path: Path | str, *, resource: Mapping[str, Any] | None = None) -> None:
        self.path = Path(path)
        self.resource = dict(resource or {})
        self.dropped = 0
        """Events that could not be written (full disk); the first one is also logged."""

    def emit(
        self,
        name: str,
        /,
        severity: Severity | str | None = None,
        *,
        time_unix_s: float | None = None,
        **attributes: Any,
    ) -> EventRecord:
        """Write one event now. Attributes by keyword (`failure_class`) or by full name; ValueError for names outside the registry.

        Never raises for the disk: a run must not die of its log.
        """
        record = EventRecord(
            time_unix_s=time.time() if time_unix_s is None else time_unix_s,
            name=name,
            severity=names.event(name).severity if severity is None else Severity(str(severity).upper()),
            attributes=names.event_attributes(name, attributes),
            resource=self.resource,
        )
        try:
            jsonlines.append_line(self.path, record.to_document())
        except OSError as error:
            if not self.dropped:
                _logger.warning("cannot write events to %s: %s; further events may be lost", self.path, error)
            self.dropped += 1
        return record


def read_events(path: Path) -> tuple[list[EventRecord], jsonlines.Lines]:
    """All events of `path` in the order they were written, and what the file itself was like (damaged lines, missing)."""
    lines = jsonlines.read(path)
    records = [record for record in map(EventRecord.from_document, lines.documents) if record is not None]
    lines.damaged += len(lines.documents) - len(records)
    return records, lines
