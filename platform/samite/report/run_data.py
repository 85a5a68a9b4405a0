"""A run folder read into plain values, for the report and for anything else that looks back at a run.

Nothing here raises for the content of a folder: files may be missing, torn, of another version or full of nonsense. What could not be read is
listed in `RunData.gaps`, and the report says it.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from samite.report.curves import Curves, collect
from samite.telemetry.events import EventRecord, read_events
from samite.telemetry.jsonlines import Lines
from samite.telemetry.records import iterate_metrics

MAX_RANKS = 64
"""Metrics files that are read for the memory chart."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointRow:
    """One checkpoint as the report shows it. Sizes in bytes, 0 if unknown."""

    checkpoint_id: str
    step: int
    state: str
    stage: str = ""
    num_bytes: int = 0
    num_shards: int = 0
    duration_s: float | None = None
    stall_s: float | None = None
    """How long training waited for it."""
    committed_s: float | None = None
    reason: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recovery:
    """One recovery. Its parts add up to the time from the fault to the first new step."""

    level: str
    failure_class: str
    detect_s: float
    restart_s: float
    load_s: float
    first_step_s: float
    recomputed_steps: int
    finished_s: float | None = None
    """Seconds since the epoch, if known."""
    what: str = ""

    @property
    def total_s(self) -> float:
        """From the fault to the first finished step."""
        return self.detect_s + self.restart_s + self.load_s + self.first_step_s


@dataclass(slots=True)
class RunData:
    """Everything the report knows."""

    folder: Path
    name: str
    uid: str = ""
    spec: dict[str, Any] = field(default_factory=dict)
    spec_text: str = ""
    """The spec as it was given."""
    status: dict[str, Any] = field(default_factory=dict)
    events: list[EventRecord] = field(default_factory=list)
    curves: Curves = field(default_factory=Curves)
    """Of rank 0, which records what concerns all ranks."""
    ranks: dict[int, Curves] = field(default_factory=dict)
    checkpoints: list[CheckpointRow] = field(default_factory=list)
    recoveries: list[Recovery] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)
    """What is missing or damaged, in sentences."""

    @property
    def phase(self) -> str:
        """The run's phase, from the status or else from the last change that was logged."""
        phase = self.status.get("phase")
        if isinstance(phase, str) and phase:
            return phase
        changes = [event.attributes.get("samite.phase.to") for event in self.events if event.name == "samite.run.phase.changed"]
        return str(changes[-1]) if changes else "Unknown"

    @property
    def times(self) -> tuple[float, float] | None:
        """First and last sign of life in seconds since the epoch."""
        seen = [event.time_unix_s for event in self.events]
        seen += [moment for segment in self.curves.segments for moment in (segment.first_s, segment.last_s)]
        return (min(seen), max(seen)) if seen else None

    def number(self, *path: str) -> float | None:
        """A number inside the status, by keys; None if it is not there."""
        value: Any = self.status
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def read_run(folder: Path, checkpoints: Sequence[CheckpointRow] | None = None) -> RunData:
    """Read `folder`. `checkpoints` comes from the catalogue; without it, checkpoints are taken from the events."""
    run = RunData(folder=folder, name=folder.name)
    record = _read_json(run, "spec.json", "the validated spec")
    run.spec = record["run"] if isinstance(record.get("run"), dict) else record
    run.uid = str(record.get("uid") or "")
    run.status = _read_json(run, "status.json", "the run's status")
    run.spec_text = _read_text(run, "run.yaml") or json.dumps(run.spec, indent=2)
    run.events, lines = read_events(folder / "events.jsonl")
    _note_lines(run, "events.jsonl", missing=lines.missing, damaged=lines.damaged, what="no timeline and no event table")
    run.name = _name(run)
    _read_all_metrics(run)
    told, kept = _recoveries_of_events(run.events), _recoveries_of_status(run.status)
    run.recoveries = told if len(told) >= len(kept) else kept
    run.checkpoints = _merged(checkpoints, run.events) if checkpoints is not None else checkpoints_of_events(run.events)
    return run


def checkpoints_of_events(events: Sequence[EventRecord]) -> list[CheckpointRow]:
    """Checkpoints that the events tell of, newest first."""
    rows: dict[str, CheckpointRow] = {}
    states = {
        "samite.checkpoint.committed": "committed",
        "samite.checkpoint.verified": "verified",
        "samite.checkpoint.quarantined": "quarantined",
        "samite.checkpoint.pruned": "pruned",
    }
    for event in events:
        state, get = states.get(event.name), event.attributes.get
        if state is None:
            continue
        known = rows.get(str(get("samite.checkpoint.id")))
        rows[str(get("samite.checkpoint.id"))] = CheckpointRow(
            checkpoint_id=str(get("samite.checkpoint.id")),
            step=_int(get("samite.step.index"), known.step if known else -1),
            state=state,
            stage=str(get("samite.stage.name") or (known.stage if known else "")),
            num_bytes=_int(get("samite.checkpoint.bytes"), known.num_bytes if known else 0),
            num_shards=_int(get("samite.checkpoint.shards"), known.num_shards if known else 0),
            duration_s=known.duration_s if known else _float(get("samite.duration")),
            stall_s=known.stall_s if known else _float(get("samite.duration.stall")),
            committed_s=event.time_unix_s if state == "committed" else (known.committed_s if known else None),
            reason=str(get("samite.reason") or ""),
        )
    return sorted(rows.values(), key=lambda row: (row.step, row.committed_s or 0.0), reverse=True)


def _name(run: RunData) -> str:
    """From the spec, else from the status, else from who wrote the events, else the folder's."""
    metadata = run.spec.get("metadata")
    written = (event.resource.get("samite.run.name") for event in run.events)
    candidates = (metadata.get("name") if isinstance(metadata, dict) else None, run.status.get("name"), next(written, None))
    return next((name for name in candidates if isinstance(name, str) and name), run.folder.name)


def _merged(rows: Sequence[CheckpointRow], events: Sequence[EventRecord]) -> list[CheckpointRow]:
    """The catalogue knows what exists, the events what there was and how long writing took. What storage no longer holds is `pruned` or `not stored`."""
    told = {row.checkpoint_id: row for row in checkpoints_of_events(events)}
    merged = []
    for row in rows:
        known = told.pop(row.checkpoint_id, None)
        merged.append(replace(row, duration_s=known.duration_s, stall_s=known.stall_s) if known and row.duration_s is None else row)
    merged += [row if row.state == "pruned" else replace(row, state="not stored") for row in told.values()]
    return sorted(merged, key=lambda row: (row.step, row.committed_s or 0.0), reverse=True)


def _read_all_metrics(run: RunData) -> None:
    files: dict[int, Path] = {}
    for path in (run.folder / "metrics").glob("rank-*.jsonl"):
        if found := re.fullmatch(r"rank-(\d+)\.jsonl", path.name):
            files[int(found.group(1))] = path
    if not files:
        run.gaps.append("metrics/rank-*.jsonl: not there, so there are no curves.")
        return
    ranks = sorted(files)
    if len(ranks) > MAX_RANKS:
        run.gaps.append(f"metrics of ranks {ranks[MAX_RANKS]} to {ranks[-1]} were left out; the report reads {MAX_RANKS} ranks.")
    for rank in ranks[:MAX_RANKS]:
        lines = Lines()
        run.ranks[rank] = collect(iterate_metrics(files[rank], lines))
        if not run.ranks[rank].num_records:
            run.gaps.append(f"metrics/{files[rank].name}: no readable record of a step.")
        else:
            _note_lines(run, f"metrics/{files[rank].name}", missing=False, damaged=lines.damaged, what="")
    run.curves = max(run.ranks.values(), key=lambda curves: len(curves.curves))


def _recoveries_of_status(status: Mapping[str, Any]) -> list[Recovery]:
    listed = status.get("recoveries")
    found = []
    for item in listed if isinstance(listed, list) else []:
        if not isinstance(item, dict):
            continue
        at_s = _float(item.get("atS"))
        found.append(
            Recovery(
                level=f"L{_int(item.get('level'), 0)}",
                failure_class=str(item.get("failureClass", "unknown")),
                detect_s=_float(item.get("detectS")) or 0.0,
                restart_s=_float(item.get("restartS")) or 0.0,
                load_s=_float(item.get("loadS")) or 0.0,
                first_step_s=_float(item.get("firstStepS")) or 0.0,
                recomputed_steps=_int(item.get("recomputedSteps"), 0),
                finished_s=at_s if at_s and at_s > 1e9 else None,
                what=str(item.get("errorType") or ""),
            )
        )
    return found


def _recoveries_of_events(events: Sequence[EventRecord]) -> list[Recovery]:
    found = []
    for event in events:
        get = event.attributes.get
        if event.name == "samite.recovery.finished":
            found.append(
                Recovery(
                    level=str(get("samite.restart.level") or "?"),
                    failure_class=str(get("samite.failure.class") or "unknown"),
                    detect_s=_float(get("samite.duration.detect")) or 0.0,
                    restart_s=_float(get("samite.duration.restart")) or 0.0,
                    load_s=_float(get("samite.duration.load")) or 0.0,
                    first_step_s=_float(get("samite.duration.first_step")) or 0.0,
                    recomputed_steps=_int(get("samite.step.recomputed"), 0),
                    finished_s=event.time_unix_s,
                    what=str(get("error.type") or ""),
                )
            )
    return found


def _read_json(run: RunData, name: str, what: str) -> dict[str, Any]:
    text = _read_text(run, name)
    if text is None:
        run.gaps.append(f"{name}: not there, so {what} is unknown.")
        return {}
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        run.gaps.append(f"{name}: not readable as JSON ({type(error).__name__}), so {what} is unknown.")
        return {}
    if isinstance(document, dict):
        return document
    run.gaps.append(f"{name}: holds a {type(document).__name__} instead of an object, so {what} is unknown.")
    return {}


def _read_text(run: RunData, name: str) -> str | None:
    try:
        return (run.folder / name).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def _note_lines(run: RunData, name: str, *, missing: bool, damaged: int, what: str) -> None:
    if missing:
        run.gaps.append(f"{name}: not there, so there is {what}.")
    elif damaged:
        run.gaps.append(f"{name}: {damaged} damaged line{'s were' if damaged > 1 else ' was'} skipped.")


def _float(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _int(value: object, otherwise: int) -> int:
    return int(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 2**63 else otherwise
