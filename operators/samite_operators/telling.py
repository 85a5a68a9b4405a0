"""Everything that a turn says besides the status: Kubernetes Events, event lines in storage, metrics of the run."""

import logging
from collections.abc import Mapping
from typing import Any

from samite.engines.kuberay.api import Document, ForbiddenApiError
from samite.engines.local.attempt_spans import AttemptSpans
from samite.engines.local.signals import points
from samite.lifecycle import Memory, RunPlan, Status
from samite.telemetry.counted import points_of_event
from samite.telemetry.records import Point
from samite_operators.events import EventPoster, EventRecords, record_of
from samite_operators.instruments import Instruments, RunLabels
from samite_operators.storage_access import StorageOf

_logger = logging.getLogger(__name__)


class Teller:
    """One for all runs."""

    def __init__(self, *, poster: EventPoster, records: EventRecords, instruments: Instruments, storage: StorageOf) -> None:
        self._poster, self._records, self._instruments, self._storage = poster, records, instruments, storage
        self._spans: dict[str, AttemptSpans] = {}

    def event(self, run: Document, name: str, attributes: Mapping[str, Any], *, now_s: float, strict: bool = False) -> None:
        """One registered event. `strict`: ForbiddenApiError if the namespace takes no new objects; otherwise that is only logged."""
        record = record_of(run, name, attributes, now_s=now_s)
        self._instruments.points(points_of_event(name, record.attributes), run=_labels(run))
        if ((run.get("spec") or {}).get("checkpoint") or {}).get("uri"):
            self._records.add(record, lambda: self._storage(run))
        try:
            self._poster.post(run, record)
        except ForbiddenApiError as error:
            if strict:
                raise
            _logger.warning("event of run %s: %s", run["metadata"]["name"], error)

    def signals(self, run: Document, before: Status | None, now: Status, *, due: bool, plan: RunPlan, memory: Memory) -> None:
        """The run's metrics: changes always, standing values if they are `due`."""
        found = points(before, now, due=due, plan=plan, memory=memory)
        objective = ((run.get("spec") or {}).get("slo") or {}).get("ettrPercent")
        if objective and due:
            found.append(Point("samite.ettr.objective", objective / 100.0))
        self._instruments.points(found, run=_labels(run))
        uid = run["metadata"]["uid"]
        self._instruments.finished_spans(self._spans.setdefault(uid, AttemptSpans(uid)).take(memory), run=_labels(run))

    def forget(self, uid: str) -> None:
        """The run is gone."""
        self._spans.pop(uid, None)
        self._records.forget(uid)
        self._instruments.forget(uid)


def _labels(run: Document) -> RunLabels:
    metadata = run["metadata"]
    return RunLabels(namespace=metadata["namespace"], name=metadata["name"], uid=metadata["uid"])
