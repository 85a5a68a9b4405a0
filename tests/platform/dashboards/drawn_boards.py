"""Boards drawn from what a real Prometheus answers, as HTML pages for a browser: no Grafana, but the same queries, titles and values."""

import math
from pathlib import Path

from live_prometheus import LivePrometheus

from samite.dashboards.panels import Board, Kind, Panel
from samite.report.chart import Chart, Line, render
from samite.report.curves import Piece
from samite.report.markup import Markup, tag
from samite.report.scale import Scale

STYLE = Path(__file__).resolve().parents[3] / "platform/samite/report/assets/report.css"
MOST_LINES = 7


def page(live: LivePrometheus, board: Board) -> str:
    """The board as one page; a panel without data says so."""
    sections = []
    for row in board.rows:
        drawn = [_panel(live, panel) for panel in row.panels]
        sections.append(tag("section", tag("h2", row.title), tag("div", *drawn, class_="charts")))
    head = Markup(f"<meta charset=utf-8><style>{STYLE.read_text(encoding='utf-8')}</style>")
    return f"<!doctype html><html><head>{head}</head>{tag('body', tag('h1', board.title), *sections)}</html>"


def _panel(live: LivePrometheus, panel: Panel) -> Markup:
    series = [found for query in panel.queries for found in live.curves(query.expr)]
    note = f"{panel.about} [{panel.kind}, {panel.unit}{', needs ' + panel.needs if panel.needs else ''}]"
    if not series:
        words = tag("p", "no data", class_="empty")
        return tag("figure", tag("figcaption", tag("h3", panel.title), tag("p", note, class_="note"), words), class_="chart")
    if panel.kind in (Kind.STAT, Kind.TABLE, Kind.BARS):
        rows = [tag("p", _label(found["metric"]) or "value", ": ", tag("b", _last(found["values"]))) for found in series[:12]]
        return tag("figure", tag("figcaption", tag("h3", panel.title), tag("p", note, class_="note")), *rows, class_="chart")
    lines = []
    for index, found in enumerate(series[:MOST_LINES]):
        points = [(at - live.began_s, float(value)) for at, value in found["values"]]
        piece = Piece([at for at, _ in points], [value for _, value in points])
        lines.append(Line(label=_label(found["metric"]) or panel.title, pieces=[piece], color=index + 1))
    ends = [at for line in lines for piece in line.pieces for at in piece.steps]
    chart = Chart(key=f"p{id(panel)}", title=panel.title, note=note, lines=lines)
    return render(chart, Scale(min(ends), max(*ends, min(ends) + 1)))


def _label(metric: dict[str, str]) -> str:
    return " ".join(value for key, value in sorted(metric.items()) if key not in ("__name__", "instance", "job"))


def _last(values: list) -> str:
    finite = [float(value) for _, value in values if math.isfinite(float(value))]
    return f"{finite[-1]:.6g}" if finite else "NaN"
