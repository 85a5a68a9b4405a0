"""What an attempt left in storage, for decisions: its result when the Lease has none, its warnings, the numbers of gates, the highest attempt.

Read by `background` threads through `samite.checkpoint.records`; nothing here is needed for a healthy turn.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from samite.checkpoint import Store
from samite.checkpoint.records import read_record, record_key, recorded_files, recorded_submissions
from samite.checkpoint.store import MissingKeyError
from samite.engines.local.gate_numbers import quantile, series
from samite.lifecycle import DecayUnderflow, GateQuestion, NumericAlarm
from samite.spec.attempt import AttemptResult
from samite.spec.lease import attempt_number
from samite.telemetry.records import MetricRecord

EVENTS_FILE = "events/events.jsonl"
METRICS_FILE = "metrics/rank-0.jsonl"


@dataclass(frozen=True, kw_only=True, slots=True)
class Warnings:
    """What the newest events of an attempt say."""

    decay: DecayUnderflow | None = None
    alarm: NumericAlarm | None = None
    stalled: bool = False
    """A checkpoint write stands still, and none was committed since."""


def highest_attempt(store: Store) -> int:
    """Largest attempt number that left records; 0 without any."""
    return max((attempt_number(name) for name in recorded_submissions(store)), default=0)


def recorded_result(store: Store, submission_id: str) -> AttemptResult | None:
    """How the attempt ended, or None if it has left no result."""
    try:
        return AttemptResult.from_json(store.get(record_key(submission_id, "result.json")).decode())
    except (MissingKeyError, ValueError):
        return None


def recorded_warnings(store: Store, submission_id: str) -> Warnings:
    """The newest warnings in the attempt's events."""
    decay, alarm, stalled = None, None, False
    for event in _lines(store, submission_id, EVENTS_FILE, parts=1):
        name, attributes = event.get("name"), event.get("attributes") or {}
        alarm = NumericAlarm.from_event(str(name), attributes) or alarm
        if name == "samite.storage.stall":
            stalled = True
        elif name == "samite.checkpoint.committed":
            stalled = False
        elif name == "samite.decay.underflow" and attributes.get("samite.decay.cause") in {"lossy_flush", "tile_overflow"}:
            # The other causes are trends: a warning for people, no reason to stop.
            decay = DecayUnderflow(
                step=int(attributes.get("samite.step.index", 0)),
                lossy_flushes=float(attributes.get("samite.decay.lost", 0)),
                limit=float(attributes.get("samite.threshold", 0)),
                layer=str(attributes.get("samite.layer.block", "")),
            )
    return Warnings(decay=decay, alarm=alarm, stalled=stalled)


def recorded_numbers(store: Store, submissions: Iterable[str], questions: Iterable[GateQuestion]) -> dict[str, float]:
    """The numbers that a gate asks for, over the attempts of its stage in order. A metric without values is left out."""
    records: list[MetricRecord] = []
    for submission_id in sorted(submissions, key=attempt_number):
        lines = _lines(store, submission_id, METRICS_FILE)
        records += [record for line in lines if (record := MetricRecord.from_document(line)) is not None]
    found = {question.metric: (question, series(records, question)) for question in questions}
    return {metric: quantile(values, question.quantile) for metric, (question, values) in found.items() if values}


def submissions_of_stage(store: Store, run: str, stage_index: int) -> list[str]:
    """Attempts at one stage that left records."""
    return [name for name in recorded_submissions(store) if name.startswith(f"{run}-s{stage_index:02d}-a")]


def _lines(store: Store, submission_id: str, name: str, *, parts: int | None = None) -> Iterator[Mapping[str, Any]]:
    """The JSON lines of a recorded file, or of its last `parts` parts. Damaged lines say nothing."""
    keys = recorded_files(store, submission_id).get(name, [])
    text = b"".join(read_record(store, keys if parts is None else keys[-parts:]))
    for line in text.splitlines():
        try:
            document = json.loads(line)
        except ValueError:
            continue
        if isinstance(document, dict):
            yield document
