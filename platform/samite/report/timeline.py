"""The run as a strip of time, where its time went, and the anatomy of each recovery."""

from collections.abc import Sequence
from dataclasses import dataclass

from samite.report import figures
from samite.report.markup import Markup, join, tag
from samite.report.run_data import Recovery, RunData

_KIND_OF_PHASE = {
    "Running": "productive",
    "Recovering": "restart",
    "Held": "hold",
    "Suspended": "hold",
    "Suspending": "start",
    "Queued": "queue",
    "Pending": "queue",
    "Validating": "start",
    "Provisioning": "start",
    "Starting": "start",
    "Gating": "start",
    "HandingOver": "start",
}
_WORDS = {
    "productive": "training",
    "queue": "waiting for nodes",
    "start": "starting",
    "detect": "failure not yet noticed",
    "restart": "restarting",
    "load": "loading the checkpoint",
    "first_step": "first step",
    "recompute": "training lost steps again",
    "checkpoint_stall": "waiting for a checkpoint",
    "hold": "on hold",
}


_CLOCK_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800, 1209600)


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time of one kind, in seconds since the epoch."""

    kind: str
    start_s: float
    end_s: float


def render_timeline(run: RunData) -> Markup:
    """Stages, what the time was used for, failures and checkpoints above one time axis. Empty without any time."""
    if run.times is None or run.times[1] <= run.times[0]:
        return Markup("")
    first, last = run.times
    rows = [
        ("Stage", _stage_bars(run, first, last)),
        ("State", _state_bars(run, first, last)),
        ("Checkpoint", _ticks(run, first, last)),
    ]
    body = [
        tag("div", tag("span", title, class_="row-title"), tag("div", *bars, class_="row"), class_="strip-row")
        for title, bars in rows
        if bars
    ]
    axis = [
        tag("span", figures.offset(seconds), class_="tick odd" if index % 2 else "tick", style=_at(seconds / (last - first)))
        for index, seconds in enumerate(_clock_ticks(last - first))
    ]
    used = sorted({span.kind for span in state_spans(run)}, key=list(_WORDS).index)
    legend = [tag("li", tag("span", class_=f"key fill {kind}", aria_hidden="true"), _WORDS[kind]) for kind in used]
    failures = sum(event.name == "samite.failure.detected" for event in run.events)
    if failures:
        legend.append(tag("li", tag("span", "✕", class_="failure-key", aria_hidden="true"), "failure detected"))
    return tag(
        "figure",
        *body,
        tag("div", tag("span", class_="row-title"), tag("div", *axis, class_="row axis"), class_="strip-row"),
        tag("figcaption", tag("ul", *legend, class_="legend")),
        class_="strip",
    )


def render_time_use(run: RunData) -> Markup:
    """Where the wall time went, as one bar and a list, from the status's books."""
    ettr = run.status.get("ettr")
    lost = ettr.get("lost") if isinstance(ettr, dict) else None
    if not isinstance(ettr, dict) or not isinstance(lost, dict):
        return Markup("")
    parts = {"productive": run.number("ettr", "productiveS") or 0.0}
    for name, value in lost.items():
        kind = {"checkpointStall": "checkpoint_stall"}.get(name, name)
        if kind in _WORDS and isinstance(value, (int, float)):
            parts[kind] = float(value)
    total = sum(parts.values())
    if total <= 0:
        return Markup("")
    present = {kind: value for kind, value in parts.items() if value > 0}
    bars = [
        tag("span", class_=f"fill {kind}", style=f"flex:{value / total:.5f}", title=f"{_WORDS[kind]}: {figures.seconds(value)}")
        for kind, value in present.items()
    ]
    items = [
        tag(
            "li",
            tag("span", class_=f"key fill {kind}", aria_hidden="true"),
            f"{_WORDS[kind]} ",
            tag("b", figures.seconds(value)),
            f" {figures.percent(value / total)}",
        )
        for kind, value in present.items()
    ]
    return tag("div", tag("div", *bars, class_="share-bar", aria_hidden="true"), tag("ul", *items, class_="legend"), class_="time-use")


def render_recoveries(recoveries: Sequence[Recovery], start_s: float | None) -> Markup:
    """Each recovery as a bar of its four parts, on one scale, with the seconds written out."""
    longest = max((recovery.total_s for recovery in recoveries), default=0.0)
    if longest <= 0:
        return Markup("")
    return tag("ol", *(_recovery(recovery, longest, start_s) for recovery in recoveries), class_="recoveries")


def state_spans(run: RunData) -> list[Span]:
    """What the run was doing when: from the phase changes, with the parts of recoveries laid over them."""
    if run.times is None:
        return []
    if not any(event.name == "samite.run.phase.changed" for event in run.events):
        return [Span("productive", segment.first_s, segment.last_s) for segment in run.curves.segments if segment.last_s > segment.first_s]
    spans, kind, since = [], "queue", run.times[0]
    for event in run.events:
        if event.name == "samite.run.phase.changed":
            spans.append(Span(kind, since, event.time_unix_s))
            kind, since = _KIND_OF_PHASE.get(str(event.attributes.get("samite.phase.to")), ""), event.time_unix_s
    spans.append(Span(kind, since, run.times[1]))
    for recovery in run.recoveries:
        spans = _overlaid(spans, _recovery_spans(recovery))
    return _merged([span for span in spans if span.kind and span.end_s > span.start_s])


def _merged(spans: Sequence[Span]) -> list[Span]:
    """Neighbours of one kind as one span."""
    merged: list[Span] = []
    for span in spans:
        if merged and merged[-1].kind == span.kind and merged[-1].end_s == span.start_s:
            merged[-1] = Span(span.kind, merged[-1].start_s, span.end_s)
        else:
            merged.append(span)
    return merged


def _recovery_spans(recovery: Recovery) -> list[Span]:
    if recovery.finished_s is None:
        return []
    spans, end_s = [], recovery.finished_s
    for kind, seconds in (
        ("first_step", recovery.first_step_s),
        ("load", recovery.load_s),
        ("restart", recovery.restart_s),
        ("detect", recovery.detect_s),
    ):
        spans.append(Span(kind, end_s - seconds, end_s))
        end_s -= seconds
    return spans[::-1]


def _overlaid(below: Sequence[Span], above: Sequence[Span]) -> list[Span]:
    result = list(above)
    for span in below:
        pieces = [span]
        for cover in above:
            pieces = [part for piece in pieces for part in _without(piece, cover)]
        result += pieces
    return sorted((span for span in result if span.end_s > span.start_s), key=lambda span: span.start_s)


def _without(span: Span, cover: Span) -> list[Span]:
    if cover.end_s <= span.start_s or span.end_s <= cover.start_s:
        return [span]
    parts = [Span(span.kind, span.start_s, cover.start_s), Span(span.kind, cover.end_s, span.end_s)]
    return [part for part in parts if part.end_s > part.start_s]


def _stage_bars(run: RunData, first: float, last: float) -> list[Markup]:
    starts = run.curves.stage_starts
    bars = []
    for index, segment in enumerate(starts):
        end_s = max(piece.last_s for piece in run.curves.segments if piece.stage == segment.stage)
        bars.append(
            _bar(f"stage s{index % 2}", Span("stage", segment.first_s, end_s), first, last, words=segment.stage or "training", show=True)
        )
    return bars


def _state_bars(run: RunData, first: float, last: float) -> list[Markup]:
    bars = [
        _bar(f"fill {span.kind}", span, first, last, words=f"{_WORDS[span.kind]}: {figures.seconds(span.end_s - span.start_s)}")
        for span in state_spans(run)
    ]
    for event in run.events:
        if event.name == "samite.failure.detected":
            what = f"{event.attributes.get('samite.failure.class', 'failure')} failure at {figures.offset(event.time_unix_s - first)}"
            bars.append(tag("span", "✕", class_="failure", style=_at((event.time_unix_s - first) / (last - first)), title=what))
    return bars


def _ticks(run: RunData, first: float, last: float) -> list[Markup]:
    return [
        tag(
            "span",
            class_=f"checkpoint {'bad' if row.state in {'quarantined', 'damaged'} else 'good'}",
            style=_at((row.committed_s - first) / (last - first)),
            title=f"step {row.step}: {row.state}",
        )
        for row in run.checkpoints
        if row.committed_s is not None and first <= row.committed_s <= last
    ]


def _bar(class_: str, span: Span, first: float, last: float, *, words: str, show: bool = False) -> Markup:
    left, width = (span.start_s - first) / (last - first), (span.end_s - span.start_s) / (last - first)
    return tag("span", words if show else None, class_=class_, style=f"left:{100 * left:.3f}%;width:{100 * width:.3f}%", title=words)


def _recovery(recovery: Recovery, longest: float, start_s: float | None) -> Markup:
    parts = (
        ("detect", "detect", recovery.detect_s),
        ("restart", "restart", recovery.restart_s),
        ("load", "load", recovery.load_s),
        ("first_step", "first step", recovery.first_step_s),
    )
    bars = [
        tag("span", class_=f"fill {kind}", style=f"flex:{seconds / recovery.total_s:.5f}", title=f"{words}: {figures.seconds(seconds)}")
        for kind, words, seconds in parts
        if seconds > 0
    ]
    when = (
        f"at {figures.offset(recovery.finished_s - recovery.total_s - start_s)}"
        if recovery.finished_s is not None and start_s is not None
        else ""
    )
    title = join(tag("b", f"{recovery.failure_class} failure"), f" {recovery.what} " if recovery.what else " ", when)
    details = [
        tag("span", tag("span", class_=f"key fill {kind}", aria_hidden="true"), f" {words} {figures.seconds(seconds)}", class_="part")
        for kind, words, seconds in parts
    ]
    lost = tag("span", f"{recovery.recomputed_steps} steps trained again", class_="part") if recovery.recomputed_steps else None
    return tag(
        "li",
        tag("p", title, tag("span", f"{figures.seconds(recovery.total_s)}, {recovery.level}", class_="total")),
        tag("div", *bars, class_="share-bar", style=f"width:{100 * recovery.total_s / longest:.2f}%", aria_hidden="true"),
        tag("p", *details, lost, class_="note"),
    )


def _clock_ticks(total_s: float) -> list[float]:
    """Round times from the start, at most eight of them."""
    step = next((step for step in _CLOCK_STEPS_S if total_s / step <= 7), total_s / 5)
    return [index * step for index in range(int(total_s / step) + 1)]


def _at(share: float) -> str:
    return f"left:{100 * min(1.0, max(0.0, share)):.3f}%"
