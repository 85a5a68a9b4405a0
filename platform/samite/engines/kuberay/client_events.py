"""The events of a run from two places: records in storage, which stay, and Kubernetes' own Events, which tell why a pod does not start.

Kubernetes keeps Events for an hour; storage keeps ours. What the operator has written to both is shown once.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from samite.engines.kuberay.api import EVENT, Document, KubernetesApi
from samite.engines.kuberay.client_records import RecordEvents
from samite.engines.kuberay.client_run import ClusterRun, seconds
from samite.errors import SamiteError
from samite.telemetry.events import EventRecord
from samite.telemetry.instruments import Severity

if TYPE_CHECKING:
    from samite.checkpoint import Store

PERIOD_S = 5.0
"""Shortest time between two looks: each is a few requests."""
OPERATOR_COMPONENT = "samite-operator"
KUBERNETES = "kubernetes."
"""Begins the names of Kubernetes' events, so that they are never taken for ours."""


class ClusterEvents:
    """`EventFeed` over both. What cannot be read is said once through `tell`, and tried again."""

    def __init__(self, api: KubernetesApi, run: ClusterRun, store: "Callable[[], Store]", tell: Callable[[str], None]) -> None:
        self._api = api
        self._run = run
        self._open_store = store
        self._tell = tell
        self._records: RecordEvents | None = None
        self._seen: set[tuple[str, Any]] = set()
        self._told: set[str] = set()
        self._looked_at_s = float("-inf")
        self._given: set[tuple[str, int]] = set()
        """Operator events that were given, by either way."""

    def poll(self) -> list[EventRecord]:
        """Events that were not given before, oldest first."""
        now_s = time.monotonic()
        if now_s - self._looked_at_s < PERIOD_S:
            return []
        self._looked_at_s = now_s
        found = [record for record in (*self._of_storage(), *self._of_cluster()) if self._is_new(record)]
        return sorted(found, key=lambda record: record.time_unix_s)

    def _is_new(self, record: EventRecord) -> bool:
        """The operator writes each event to both places, with one time: the one that is seen first is given, and storage is looked at first."""
        if record.resource.get("service.name") != OPERATOR_COMPONENT:
            return True
        key = (reason_of(record.name), round(record.time_unix_s * 1000))
        new = key not in self._given
        self._given.add(key)
        return new

    def _of_storage(self) -> list[EventRecord]:
        try:
            if self._records is None:
                self._records = RecordEvents(self._open_store())
            return self._records.poll()
        except (SamiteError, OSError) as error:
            self._once(f"the records in storage were not read ({error}); shown are the events that Kubernetes keeps, of the last hour")
            return []

    def _of_cluster(self) -> list[EventRecord]:
        found = []
        for event in self._listed():
            metadata = event.get("metadata") or {}
            key = (str(metadata.get("uid") or metadata.get("name")), event.get("count") or metadata.get("resourceVersion"))
            if key in self._seen:
                continue
            self._seen.add(key)
            found.append(record_of(event))
        return found

    def _listed(self) -> list[Document]:
        """Events about the run itself, and warnings about its cluster and pods."""
        try:
            own = self._api.list(EVENT, self._run.namespace, fields=f"involvedObject.uid={self._run.uid}").items
            warnings = self._api.list(EVENT, self._run.namespace, fields="type=Warning").items
        except SamiteError as error:
            self._once(f"the events of the cluster were not read: {error}")
            return []
        begin = f"{self._run.name}-s"
        of_children = [event for event in warnings if str((event.get("involvedObject") or {}).get("name", "")).startswith(begin)]
        known = {(event.get("metadata") or {}).get("name") for event in own}
        return own + [event for event in of_children if (event.get("metadata") or {}).get("name") not in known]

    def _once(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._tell(text)


def reason_of(name: str) -> str:
    """The reason that the operator's Event has for the event `name`: `samite.restart.decided` is RestartDecided."""
    if name.startswith(KUBERNETES):
        return name.removeprefix(KUBERNETES)
    return "".join(word.capitalize() for part in name.split(".")[1:] for word in part.split("_"))


def record_of(event: Document) -> EventRecord:
    """A Kubernetes Event as one of ours."""
    subject = event.get("involvedObject") or {}
    count = int((event.get("series") or {}).get("count") or event.get("count") or 1)
    # `eventTime` alone has fractions of a second; the others are newer only where an event was repeated.
    last, exact = event.get("lastTimestamp"), event.get("eventTime")
    moments = (
        (event.get("series") or {}).get("lastObservedTime"),
        *((last, exact) if count > 1 else (exact, last)),
        event.get("firstTimestamp"),
    )
    when = next((found for found in map(seconds, moments) if found is not None), None)
    attributes = {"object": f"{subject.get('kind', '')}/{subject.get('name', '')}", "message": event.get("message", "")}
    return EventRecord(
        time_unix_s=when if when is not None else seconds((event.get("metadata") or {}).get("creationTimestamp")) or 0.0,
        name=f"{KUBERNETES}{event.get('reason', 'Unknown')}",
        severity=Severity("WARN") if event.get("type") == "Warning" else Severity("INFO"),
        attributes=attributes | ({"count": count} if count > 1 else {}),
        resource={"service.name": _component(event)},
    )


def _component(event: Document) -> str:
    return str(event.get("reportingComponent") or (event.get("source") or {}).get("component") or "")
