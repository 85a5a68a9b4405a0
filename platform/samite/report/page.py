"""`build_report`: the whole report as one HTML text. Sections in the order in which a reader asks: how did it go, what happened, is it healthy.

The page loads nothing: styles and script are inside, and a content security policy lets only that very script run.
"""

import base64
import hashlib
import time
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from samite import __version__
from samite.report import figures, panels
from samite.report.chart import Chart, join_charts
from samite.report.heatmap import render_maps
from samite.report.layer_maps import decay_maps, expert_maps
from samite.report.markup import Markup, tag
from samite.report.redact import redact
from samite.report.run_data import CheckpointRow, RunData, read_run
from samite.report.scale import Scale, scale_for
from samite.report.summary import headline, num_failures, num_restarts, summary_lines
from samite.report.tables import checkpoint_table, environment_list, event_table, spec_block
from samite.report.timeline import render_recoveries, render_time_use, render_timeline

_TONES = {"Succeeded": "good", "Running": "fine", "Failed": "bad", "Held": "bad", "Recovering": "warn", "Cancelled": "quiet"}


def build_report(run_folder: Path | str, *, checkpoints: Sequence[CheckpointRow] | None = None, now_unix_s: float | None = None) -> str:
    """The report of the run in `run_folder` as one HTML document.

    `checkpoints` comes from the catalogue; without it they are taken from the events. A damaged or empty folder still gives a page, which says
    what is missing. Never raises for the folder's content.
    """
    return render_page(read_run(Path(run_folder), checkpoints), now_unix_s=time.time() if now_unix_s is None else now_unix_s)


def render_page(run: RunData, *, now_unix_s: float) -> str:
    """The document of what was read."""
    style, script = _asset("report.css"), _asset("report.js")
    sections = [section for section in _sections(run) if section is not None]
    title = f"{run.name}: {run.phase.lower()}"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_policy(script)),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="generator", content=f"samite {__version__}"),
        tag("title", f"{title} | Samite"),
        tag("style", Markup(style)),
    )
    body = tag(
        "body",
        tag("a", "Skip to the charts", href="#learning", class_="skip"),
        _header(run),
        tag("nav", *(tag("a", words, href=f"#{key}") for key, words, _ in sections), aria_label="Sections"),
        tag("main", *(section for _, _, section in sections)),
        _footer(now_unix_s),
        tag("script", Markup(script)),
    )
    return redact(f'<!doctype html>\n<html lang="en">{head}{body}</html>\n')


def _header(run: RunData) -> Markup:
    when = f"{figures.clock(run.times[0])} UTC" if run.times else ""
    cards = [
        tag("div", tag("dt", line.label), tag("dd", line.value), tag("dd", line.remark, class_="remark"), class_="card")
        for line in summary_lines(run)
    ]
    return tag(
        "header",
        tag("div", class_="threads", aria_hidden="true"),
        tag("p", "Samite run report", class_="kicker"),
        tag("h1", run.name, tag("span", run.phase, class_=f"badge {_TONES.get(run.phase, 'quiet')}")),
        tag("p", headline(run), class_="headline"),
        tag("p", when, class_="note") if when else None,
        tag("dl", *cards, class_="cards"),
        _attention(run),
    )


def _attention(run: RunData) -> Markup | None:
    """The last words of a run that did not end well."""
    message = run.status.get("message")
    if run.phase not in {"Failed", "Held"} or not isinstance(message, str) or not message:
        return None
    return tag("p", tag("b", f"{run.phase}: "), message, class_="attention", role="note")


def _sections(run: RunData) -> list[tuple[str, str, Markup] | None]:
    steps = _steps(run)
    start_s = run.times[0] if run.times else None
    strip, use = render_timeline(run), render_time_use(run)
    recoveries = render_recoveries(run.recoveries, start_s)
    checkpoints = checkpoint_table(run.checkpoints, start_s) if run.checkpoints else _nothing("No checkpoint is known of this run.")
    return [
        _section("timeline", "What happened", strip, use) if strip or use else None,
        _section("learning", "Learning", _charts(panels.learning(run), steps, "No loss or gradient norm was recorded.")),
        _section("recovery", "Recovery", recoveries or _nothing(_no_recovery(run))),
        _section("speed", "Speed", _charts(panels.speed(run), steps, "No step time was recorded.")),
        _section(
            "experts",
            "Experts",
            _charts(panels.experts(run), steps, "No router signal was recorded."),
            render_maps(expert_maps(run), steps),
        ),
        _section(
            "decay",
            "Decay health",
            _decay_verdict(run),
            _charts(panels.decay(run), steps, "No decay signal was sampled."),
            render_maps(decay_maps(run), steps),
        ),
        _section("memory", "Memory", _charts(panels.memory(run), steps, "No memory was recorded.")),
        _section("checkpoints", "Checkpoints", checkpoints),
        _section("events", "Events", event_table(run) if run.events else _nothing("No event was recorded.")),
        _section("environment", "Environment and spec", environment_list(run, __version__), spec_block(run)),
        _section("gaps", "What this report could not see", tag("ul", *(tag("li", gap) for gap in run.gaps))) if run.gaps else None,
    ]


def _section(key: str, title: str, *content: Markup | None) -> tuple[str, str, Markup]:
    return key, title, tag("section", tag("h2", title, id=f"{key}-title"), *content, id=key, aria_labelledby=f"{key}-title")


def _no_recovery(run: RunData) -> str:
    if not run.events and not run.status:
        return "No recovery is known: neither events nor a status were found."
    if num_failures(run):
        return "The failure was not recovered from."
    restarts = num_restarts(run)
    return (
        f"The run was restarted {restarts} time{'s' if restarts > 1 else ''}; how long that took was not recorded."
        if restarts
        else "The run never had to recover."
    )


def _decay_verdict(run: RunData) -> Markup | None:
    sampled = run.curves.family("samite.decay.lossy_flushes", "samite.layer.block")
    if not sampled:
        return None
    lost = run.curves.total("samite.decay.lossy_flushes")
    alarms = sum(event.name == "samite.decay.underflow" for event in run.events)
    samples = max(len(curve) for curve in sampled.values())
    if not lost and not alarms:
        words = (
            f"No decay product was lost in {figures.grouped(samples)} samples of {len(sampled)} layer{'s' if len(sampled) != 1 else ''}. "
        )
        words += "Products that flush to zero because they are truly that small do not count."
        return tag("p", tag("span", "healthy", class_="badge good"), " ", words, class_="verdict")
    words = f"{figures.compact(lost)} decay products were lost, and {alarms} alarm{'s' if alarms != 1 else ''} raised: see the events."
    return tag(
        "p",
        tag("span", "information lost" if lost else "watch", class_="badge bad" if lost else "badge warn"),
        " ",
        words,
        class_="verdict",
    )


def _charts(charts: Sequence[Chart], steps: Scale, otherwise: str) -> Markup:
    return join_charts(charts, steps) or _nothing(otherwise)


def _nothing(words: str) -> Markup:
    return tag("p", words, class_="note empty")


def _steps(run: RunData) -> Scale:
    ends = [float(step) for curves in run.ranks.values() for s in curves.segments for step in (s.first_step, s.last_step)]
    return scale_for(ends, whole=True)


def _footer(now_unix_s: float) -> Markup:
    return tag(
        "footer",
        f"Written by samite {__version__} on {figures.clock(now_unix_s)} UTC. This file is complete: it loads nothing and can be passed on.",
    )


def _policy(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def _asset(name: str) -> str:
    return files("samite.report").joinpath("assets", name).read_text(encoding="utf-8")
