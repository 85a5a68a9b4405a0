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

STORAGE_PERIOD_S = 5.0
OPERATOR_COMPONENTS = ("samite", "samite-operator")
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
        self._storage_at_s = float("-inf")
        self._has_operator_records = False

    def poll(self) -> list[EventRecord]:
        """Events that were not given before, oldest first."""
        found = self._of_storage()
        self._has_operator_records |= any(not record.name.startswith("samite.checkpoint.") for record in found)
        return sorted([*found, *self._of_cluster()], key=lambda record: record.time_unix_s)

    def _of_storage(self) -> list[EventRecord]:
        now_s = time.monotonic()
        if now_s - self._storage_at_s < STORAGE_PERIOD_S:
            return []
        self._storage_at_s = now_s
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
            if not (self._has_operator_records and _component(event) in OPERATOR_COMPONENTS):
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


def record_of(event: Document) -> EventRecord:
    """A Kubernetes Event as one of ours."""
    subject = event.get("involvedObject") or {}
    count = int((event.get("series") or {}).get("count") or event.get("count") or 1)
    moments = (
        event.get("lastTimestamp"),
        (event.get("series") or {}).get("lastObservedTime"),
        event.get("eventTime"),
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
