"""The tables of the report: checkpoints, events with their filter, the spec and the environment."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from samite.report import figures
from samite.report.markup import Markup, join, tag
from samite.report.redact import redact_document
from samite.report.run_data import CheckpointRow, RunData
from samite.telemetry.events import EventRecord
from samite.telemetry.instruments import Severity

MAX_EVENTS = 2000
"""Events in the table; of more, all warnings and errors stay and the newest others."""


def checkpoint_table(rows: Sequence[CheckpointRow], start_s: float | None) -> Markup:
    """Newest first, each with its state and, where there is one, the reason for it."""
    reasons = any(row.reason for row in rows)
    titles = ["Step", "State", "Stage", "Size", "Shards", "Write", "Stall", "Committed", "Id", *(["Reason"] if reasons else [])]
    body = [
        tag(
            "tr",
            tag("td", figures.grouped(row.step) if row.step >= 0 else "-", class_="number"),
            tag("td", tag("span", row.state, class_=f"badge {_tone(row.state)}")),
            tag("td", row.stage or "-"),
            tag("td", figures.size(row.num_bytes) if row.num_bytes else "-", class_="number"),
            tag("td", str(row.num_shards) if row.num_shards else "-", class_="number"),
            tag("td", figures.seconds(row.duration_s), class_="number"),
            tag("td", figures.seconds(row.stall_s), class_="number"),
            tag("td", figures.offset(row.committed_s - start_s) if row.committed_s and start_s else "-", class_="number"),
            tag("td", tag("code", row.checkpoint_id)),
            tag("td", row.reason) if reasons else None,
        )
        for row in rows
    ]
    return _table("Checkpoints, newest first", titles, body)


def event_table(run: RunData) -> Markup:
    """All events in order of time, with a text filter and a severity filter that need the script and hide without it."""
    events = _selected(run.events)
    start_s = run.times[0] if run.times else 0.0
    rows = [
        tag(
            "tr",
            tag(
                "td",
                tag("time", figures.offset(event.time_unix_s - start_s), title=f"{figures.clock(event.time_unix_s)} UTC"),
                class_="number",
            ),
            tag("td", tag("span", str(event.severity).lower(), class_=f"badge {_SEVERITY_TONE[event.severity]}")),
            tag("td", event.name.removeprefix("samite.")),
            tag("td", _attributes(event.attributes)),
            data_severity=str(event.severity),
        )
        for event in events
    ]
    counts = {severity: sum(event.severity is severity for event in events) for severity in Severity}
    boxes = [
        tag(
            "label",
            tag("input", type="checkbox", checked=True, value=str(severity), name="severity"),
            f" {str(severity).lower()} ({counts[severity]})",
        )
        for severity in Severity
        if counts[severity]
    ]
    filters = tag(
        "form",
        tag("label", "Filter ", tag("input", type="search", name="text", placeholder="node, checkpoint, rank ...", autocomplete="off")),
        tag("fieldset", tag("legend", "Severity"), *boxes),
        tag("output", f"{len(events)} events", name="count", aria_live="polite"),
        class_="filters",
        hidden=True,
        id="event-filters",
    )
    left_out = len(run.events) - len(events)
    remark = tag("p", f"{figures.grouped(left_out)} older events of severity info are left out.", class_="note") if left_out else None
    return join(filters, _table("Events in order of time", ["Time", "Severity", "Event", "What"], rows, element_id="events-table"), remark)


def environment_list(run: RunData, version: str) -> Markup:
    """Who made what with which: names, versions, place."""
    resources: dict[str, set[str]] = {}
    for event in run.events:
        for key in ("service.version", "samite.run.uid"):
            if value := event.resource.get(key):
                resources.setdefault(key, set()).add(str(value))
    spec = run.spec.get("spec") if isinstance(run.spec.get("spec"), dict) else {}
    model = spec.get("model") if isinstance(spec, dict) else None
    facts = {
        "Run": run.name,
        "Run uid": run.uid or ", ".join(sorted(resources.get("samite.run.uid", set()))),
        "Engine": spec.get("engine") if isinstance(spec, dict) else None,
        "Model preset": model.get("preset") if isinstance(model, dict) else None,
        "Seed": spec.get("seed") if isinstance(spec, dict) else None,
        "Ranks": len(run.ranks) or None,
        "Samite of the run": ", ".join(sorted(resources.get("service.version", set()))),
        "Samite of this report": version,
        "Began": f"{figures.clock(run.times[0])} UTC" if run.times else None,
        "Last sign of life": f"{figures.clock(run.times[1])} UTC" if run.times else None,
        "Run folder": run.folder.name,
    }
    return tag(
        "dl", *(join(tag("dt", key), tag("dd", str(value))) for key, value in facts.items() if value not in {None, ""}), class_="facts"
    )


def spec_block(run: RunData) -> Markup:
    """The spec as it was given, folded in."""
    text = redact_document(run.spec_text).strip()
    if not text or text == "{}":
        return tag("p", "The spec is not in the run folder.", class_="note")
    return tag("details", tag("summary", "The spec as it was given"), tag("pre", tag("code", text)), class_="spec")


def _table(caption: str, titles: Sequence[str], rows: Sequence[Markup], *, element_id: str | None = None) -> Markup:
    head = tag("thead", tag("tr", *(tag("th", title, scope="col") for title in titles)))
    table = tag("table", tag("caption", caption), head, tag("tbody", *rows), id=element_id)
    return tag("div", table, class_="scroll", tabindex="0", role="region", aria_label=caption)


def _attributes(attributes: Mapping[str, Any]) -> Markup:
    words = []
    if "samite.phase.from" in attributes and "samite.phase.to" in attributes:
        words.append(f"{attributes['samite.phase.from']} → {attributes['samite.phase.to']}")
    words += [str(attributes[key]) for key in ("samite.reason", "samite.message") if attributes.get(key)]
    shown = [
        tag("span", tag("i", key.removeprefix("samite.")), " ", _text(key, value), class_="attribute")
        for key, value in attributes.items()
        if key not in _WORDS
    ]
    return join(*(tag("span", word, class_="words") for word in words), *(part for item in shown for part in (" ", item)))


_WORDS = frozenset({"samite.message", "samite.reason", "samite.phase.from", "samite.phase.to"})


def _text(key: str, value: object) -> str:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if key.endswith(("bytes", "memory.limit")):
            return figures.size(value)
        if key.startswith("samite.duration") or key.endswith(("backoff", ".seconds")):
            return figures.seconds(value)
        if key.endswith((".time", ".expiry")):
            return f"{figures.clock(value)} UTC"
        return figures.significant(value, 4) if isinstance(value, float) else str(value)
    if isinstance(value, (list, dict)):
        return ", ".join(map(str, value)) if isinstance(value, list) else json.dumps(value, ensure_ascii=False)
    return str(value)


def _selected(events: Sequence[EventRecord]) -> list[EventRecord]:
    ordered = sorted(events, key=lambda event: event.time_unix_s)
    if len(ordered) <= MAX_EVENTS:
        return ordered
    important = [event for event in ordered if event.severity is not Severity.INFO][-MAX_EVENTS:]
    others = (
        [event for event in ordered if event.severity is Severity.INFO][len(important) - MAX_EVENTS :]
        if len(important) < MAX_EVENTS
        else []
    )
    return sorted([*important, *others], key=lambda event: event.time_unix_s)


def _tone(state: str) -> str:
    return {"verified": "good", "committed": "fine", "quarantined": "bad", "damaged": "bad", "failed": "bad"}.get(state, "quiet")


_SEVERITY_TONE = {Severity.INFO: "quiet", Severity.WARN: "warn", Severity.ERROR: "bad"}
