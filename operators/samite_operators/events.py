"""What happened to a run, told twice: as Kubernetes Events for `kubectl describe`, and as JSON lines in storage for whoever comes when they are gone.

The lines lie under the run's checkpoint prefix as `records/operator/events/<n>.jsonl`. Object storage cannot append, so the newest object is written
again until it is full; each operator process begins one of its own. Storage is written from threads of this module: a turn never waits for it.
"""

import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from samite.checkpoint import Store
from samite.engines.kuberay.api import EVENT, ApiError, Document, ForbiddenApiError, KubernetesApi
from samite.errors import SamiteError
from samite.telemetry import jsonlines, names
from samite.telemetry.events import EventRecord
from samite.telemetry.instruments import Severity

_logger = logging.getLogger(__name__)
COMPONENT = "samite-operator"
FOLDER = "records/operator/events"
FULL_BYTES = 65_536
WAITING = 2_000
"""Lines of one run that may wait for a storage that does not answer; beyond it the oldest are dropped."""
_MESSAGE = 1_024
"""Kubernetes refuses longer messages of Events."""


def record_of(run: Mapping[str, Any], name: str, attributes: Mapping[str, Any], *, now_s: float) -> EventRecord:
    """The registered event `name` of a run, at `now_s` seconds since the epoch."""
    metadata = run["metadata"]
    return EventRecord(
        time_unix_s=now_s,
        name=name,
        severity=names.event(name).severity,
        attributes=names.event_attributes(name, attributes),
        resource={"service.name": COMPONENT, "samite.run.name": metadata["name"], "samite.run.uid": metadata["uid"]},
    )


def kubernetes_event(run: Mapping[str, Any], record: EventRecord, *, identity: str) -> Document:
    """`record` as an Event about the TrainingRun."""
    metadata = run["metadata"]
    at = datetime.fromtimestamp(record.time_unix_s, UTC)
    second = at.strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{metadata['name']}.{secrets.token_hex(8)}", "namespace": metadata["namespace"]},
        "involvedObject": {
            "apiVersion": run["apiVersion"],
            "kind": run["kind"],
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
        },
        "reason": reason_of(record.name),
        "message": message_of(record)[:_MESSAGE],
        "type": "Normal" if record.severity is Severity.INFO else "Warning",
        "action": "Reconcile",
        "eventTime": at.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "firstTimestamp": second,
        "lastTimestamp": second,
        "count": 1,
        "reportingComponent": COMPONENT,
        "reportingInstance": identity,
        "source": {"component": COMPONENT},
    }


def reason_of(name: str) -> str:
    """`samite.restart.decided` is `RestartDecided`."""
    return "".join(word.capitalize() for part in name.split(".")[1:] for word in part.split("_"))


def message_of(record: EventRecord) -> str:
    """One line for people: the words first, then the numbers that belong to them."""
    given = dict(record.attributes)
    if record.name == "samite.run.phase.changed":
        words = f"{given.pop('samite.phase.from')} -> {given.pop('samite.phase.to')}"
    else:
        words = names.event(record.name).brief if record.name in names.EVENTS else record.name
    reason, message = given.pop("samite.reason", ""), given.pop("samite.message", "")
    for text in (reason, message):
        if text:
            words = f"{words}: {text}"
    facts = ", ".join(f"{key.removeprefix('samite.')}={_plain(value)}" for key, value in given.items())
    return f"{words} ({facts})" if facts else words


class EventPoster:
    """Posts Kubernetes Events in the order given; the same one of a run at most once in `quiet_s`."""

    def __init__(self, api: KubernetesApi, *, identity: str, quiet_s: float = 300.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._api, self._identity, self._quiet_s, self._clock = api, identity, quiet_s, clock
        self._lock = threading.Lock()
        self._posted: dict[tuple[str, str, str], float] = {}

    def post(self, run: Mapping[str, Any], record: EventRecord) -> None:
        """Post it. Raises ForbiddenApiError if the namespace takes no new objects or the right is missing; other failures are only logged."""
        event = kubernetes_event(run, record, identity=self._identity)
        key = (run["metadata"]["uid"], event["reason"], event["message"])
        now_s = self._clock()
        with self._lock:
            self._posted = {known: at_s for known, at_s in self._posted.items() if now_s - at_s < self._quiet_s}
            if key in self._posted:
                return
            self._posted[key] = now_s
        try:
            self._api.create(EVENT, run["metadata"]["namespace"], event)
        except ForbiddenApiError:
            raise
        except ApiError as error:
            _logger.warning("event %s of run %s was not posted: %s", event["reason"], run["metadata"]["name"], error)


@dataclass(slots=True)
class _Lines:
    store: Callable[[], Store]
    waiting: deque[str] = field(default_factory=lambda: deque(maxlen=WAITING))
    number: int | None = None
    written: str = ""


class EventRecords:
    """Writes events of all runs to their storage, from one thread."""

    def __init__(self, *, period_s: float = 10.0) -> None:
        self._period_s = period_s
        self._lock = threading.Lock()
        self._runs: dict[str, _Lines] = {}
        self._wake, self._stopping = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="event-records", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def stop(self, *, patience_s: float = 5.0) -> None:
        """Write what waits, as far as storage answers in `patience_s`, and end."""
        self._stopping.set()
        self._wake.set()
        self._thread.join(timeout=patience_s)

    def add(self, record: EventRecord, store: Callable[[], Store]) -> None:
        """Keep one event for the run that its resource names. `store` opens the run's storage; called from the thread."""
        uid = str(record.resource["samite.run.uid"])
        with self._lock:
            lines = self._runs.setdefault(uid, _Lines(store))
            lines.store = store
            lines.waiting.append(jsonlines.encode(record.to_document()).decode("ascii"))

    def forget(self, uid: str) -> None:
        """The run is gone: write what waits once more, then drop it."""
        with self._lock:
            lines = self._runs.pop(uid, None)
            if lines is not None and lines.waiting:
                self._runs[f"{uid} gone"] = lines
        self._wake.set()

    def flush(self) -> None:
        """Write everything that waits, now, in this thread."""
        with self._lock:
            due = [(uid, lines) for uid, lines in self._runs.items() if lines.waiting]
        for uid, lines in due:
            try:
                self._write(lines)
            except SamiteError as error:
                _logger.warning("events of run %s wait for storage: %s", uid, error)
            if uid.endswith(" gone"):
                with self._lock:
                    self._runs.pop(uid, None)

    def _write(self, lines: _Lines) -> None:
        store = lines.store()
        if lines.number is None or len(lines.written) > FULL_BYTES:
            lines.number, lines.written = _next_number(store), ""
        taken = list(lines.waiting)
        text = lines.written + "".join(taken)
        store.put(f"{FOLDER}/{lines.number:05d}.jsonl", text.encode())
        lines.written = text
        for _ in taken:
            lines.waiting.popleft()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wake.wait(self._period_s)
            self._wake.clear()
            try:
                self.flush()
            except Exception:
                # One damaged store must not end the records of every run.
                _logger.exception("event records")
        self.flush()


def _next_number(store: Store) -> int:
    taken = [info.key.rpartition("/")[2].removesuffix(".jsonl") for info in store.list(f"{FOLDER}/")]
    return 1 + max((int(number) for number in taken if number.isdigit()), default=-1)


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return "; ".join(map(str, value))
    return f"{value:.1f}" if isinstance(value, float) else str(value)
