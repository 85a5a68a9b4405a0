"""Line and area charts as inline SVG, readable without a script and at any width.

The drawing stretches with its box, lines keep their width, and all text is HTML beside it, so that labels stay sharp on a telephone and on paper.
Each chart carries its numbers as JSON for the script that reads values off under the pointer.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from samite.report import figures
from samite.report.curves import Piece, thin
from samite.report.markup import Markup, join, script_data, tag
from samite.report.scale import Scale, scale_for

WIDTH, HEIGHT = 1000.0, 400.0
POINTS = 400
"""Points that a line is thinned to: about as many as there are pixels."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One line of a chart. `color` is 1 to 7, an index into the palette; 0 is grey."""

    label: str
    pieces: Sequence[Piece]
    color: int
    dashed: bool = False
    """A reference, such as a floor or a limit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """A vertical mark at a step: where a stage begins, or a restart happened."""

    step: float
    kind: str
    """stage | restart"""
    label: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    """One chart over steps."""

    key: str
    """Id of the element; letters and dashes."""
    title: str
    note: str
    """What one sees, in one sentence; also read out."""
    lines: Sequence[Line]
    marks: Sequence[Mark] = ()
    number: Callable[[float, int], str] = figures.significant
    """Writes a value with so many significant digits."""
    log: bool = False
    zero: bool = False
    binary: bool = False
    """Values are bytes: ticks are round in binary units."""
    stacked: bool = False
    """Areas on top of each other; all lines then have the same steps (`curves.together`)."""
    limit: float | None = None
    """A horizontal line that matters."""
    limit_label: str = ""
    wide: bool = False

    def is_empty(self) -> bool:
        """True if there is nothing to draw."""
        return not any(math.isfinite(value) for line in self.lines for piece in line.pieces for value in piece.values)

    def is_zero(self) -> bool:
        """True if every value is 0: a sentence says that better than an empty chart."""
        return not any(value != 0 for line in self.lines for piece in line.pieces for value in piece.values)


def render(chart: Chart, steps: Scale) -> Markup:
    """The chart as a figure; `steps` is the common scale of all charts of a page."""
    drawn = _stacked(chart.lines) if chart.stacked else _thinned(chart.lines)
    values = [value for line in drawn for piece in line.pieces for value in piece.values]
    if chart.limit is not None:
        values.append(chart.limit)
    scale = scale_for(values, zero=chart.zero or chart.stacked, log=chart.log)
    plot = tag(
        "div",
        _canvas(chart, drawn, steps, scale),
        *_y_labels(scale.ticks(binary=chart.binary), scale, chart.number),
        *_x_labels(steps),
        class_="plot",
        tabindex="0",
        role="img",
        aria_label=f"{chart.title}. {_spoken(chart)}",
        data_chart=chart.key,
    )
    return tag(
        "figure",
        tag("figcaption", tag("h3", chart.title), tag("p", chart.note, class_="note"), _legend(chart)),
        plot,
        script_data(_data(chart, steps, scale), f"data-{chart.key}"),
        class_="chart wide" if chart.wide else "chart",
        id=chart.key,
    )


def _canvas(chart: Chart, drawn: Sequence[Line], steps: Scale, scale: Scale) -> Markup:
    grid = [f"M0 {_y(tick, scale):.1f}H{WIDTH:.0f}" for tick in scale.ticks(binary=chart.binary)]
    shapes: list[Markup] = [tag("path", d="".join(grid), class_="grid")]
    shapes += [tag("path", d=f"M{_x(mark.step, steps):.1f} 0V{HEIGHT:.0f}", class_=f"mark {mark.kind}") for mark in chart.marks]
    if chart.limit is not None:
        shapes.append(tag("path", d=f"M0 {_y(chart.limit, scale):.1f}H{WIDTH:.0f}", class_="limit"))
    if chart.stacked:
        shapes += _areas(drawn, steps, scale)
    else:
        for line in drawn:
            for piece in line.pieces:
                if path := _path(piece, steps, scale):
                    faded = " faded" if piece.superseded else ""
                    shapes.append(tag("path", d=path, class_=f"line c{line.color}{' dashed' if line.dashed else ''}{faded}"))
    svg = tag("svg", *shapes, viewbox=f"0 0 {WIDTH:.0f} {HEIGHT:.0f}", preserveaspectratio="none", aria_hidden="true", focusable="false")
    labels = [_mark_label(mark, steps) for mark in chart.marks]
    labels += [
        tag("span", "✕", class_="broken", style=f"left:{100 * steps(step):.2f}%", title=f"not finite at step {step:.0f}")
        for step in _broken(drawn)
    ]
    if chart.limit is not None and chart.limit_label:
        labels.append(tag("span", chart.limit_label, class_="limit-label", style=f"top:{100 * (1 - scale(chart.limit)):.2f}%"))
    return tag("div", svg, *labels, class_="canvas")


def _broken(drawn: Sequence[Line]) -> list[float]:
    """Steps at which a value was not finite; at most fifty, so that a run full of NaN stays a page."""
    steps = {s for line in drawn for piece in line.pieces for s, v in zip(piece.steps, piece.values, strict=True) if not math.isfinite(v)}
    return sorted(steps)[:50]


def _areas(drawn: Sequence[Line], steps: Scale, scale: Scale) -> list[Markup]:
    """Stacked areas: each line's values are sums already, so that drawing from the top down leaves each its own band."""
    shapes = []
    for line in reversed(drawn):
        for piece in line.pieces:
            points = [(_x(s, steps), _y(v, scale)) for s, v in zip(piece.steps, piece.values, strict=True) if math.isfinite(v)]
            if len(points) > 1:
                top = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
                base = _y(0.0, scale)
                shapes.append(
                    tag("path", d=f"M{points[0][0]:.1f} {base:.1f}L{top}L{points[-1][0]:.1f} {base:.1f}Z", class_=f"area c{line.color}")
                )
    return shapes


def _path(piece: Piece, steps: Scale, scale: Scale) -> str:
    parts, pen_down = [], False
    for step, value in zip(piece.steps, piece.values, strict=True):
        if not math.isfinite(value):
            pen_down = False
            continue
        parts.append(f"{'L' if pen_down else 'M'}{_x(step, steps):.1f} {_y(value, scale):.1f}")
        pen_down = True
    # A single point has no length: a round line cap makes it visible.
    return "".join(parts) + ("h0.01" if len(parts) == 1 else "")


def _thinned(lines: Sequence[Line]) -> list[Line]:
    total = {id(line): sum(len(piece.steps) for piece in line.pieces) or 1 for line in lines}
    return [
        Line(
            label=line.label,
            color=line.color,
            dashed=line.dashed,
            pieces=[
                Piece(*thin(piece.steps, piece.values, max(8, POINTS * len(piece.steps) // total[id(line)])), superseded=piece.superseded)
                for piece in line.pieces
            ],
        )
        for line in lines
    ]


def _stacked(lines: Sequence[Line]) -> list[Line]:
    """Running sums, step by step; lines of one stacked chart share their steps."""
    stacked: list[Line] = []
    below: list[list[float]] = []
    for line in lines:
        sums = [[v if math.isfinite(v) else 0.0 for v in piece.values] for piece in line.pieces]
        if below:
            sums = [[a + b for a, b in zip(under, mine, strict=True)] for under, mine in zip(below, sums, strict=True)]
        below = sums
        pieces = [Piece(piece.steps, values) for piece, values in zip(line.pieces, sums, strict=True)]
        stacked.append(Line(label=line.label, color=line.color, pieces=pieces))
    return stacked


def _legend(chart: Chart) -> Markup:
    items = [
        tag("li", tag("span", class_=f"key c{line.color}{' dashed' if line.dashed else ''}", aria_hidden="true"), line.label)
        for line in chart.lines
    ]
    if any(piece.superseded for line in chart.lines for piece in line.pieces):
        items.append(tag("li", tag("span", class_="key faded", aria_hidden="true"), "trained again after a restart"))
    return tag("ul", *items, class_="legend") if len(items) > 1 else Markup("")


def _mark_label(mark: Mark, steps: Scale) -> Markup:
    left = 100 * steps(mark.step)
    side = " left" if left > 80 else ""
    return tag(
        "span",
        mark.label if mark.kind == "stage" else "",
        class_=f"mark-label {mark.kind}{side}",
        style=f"left:{left:.2f}%",
        title=mark.label,
    )


def _y_labels(ticks: Sequence[float], scale: Scale, number: Callable[[float, int], str]) -> list[Markup]:
    """With as few digits as say the ticks exactly."""
    exact = (n for n in range(2, 12) if all(math.isclose(float(figures.significant(tick, n)), tick, rel_tol=1e-6) for tick in ticks))
    digits = next(exact, 12)
    return [tag("span", number(tick, digits), class_="y-label", style=f"--at:{1 - scale(tick):.4f}", aria_hidden="true") for tick in ticks]


def _x_labels(steps: Scale) -> list[Markup]:
    ticks = [tick for tick in steps.ticks(6) if tick == int(tick)]
    return [
        tag(
            "span",
            figures.grouped(int(tick)),
            class_="x-label" if index % 2 == 0 else "x-label odd",
            style=f"--at:{steps(tick):.4f}",
            aria_hidden="true",
        )
        for index, tick in enumerate(ticks)
    ]


def _spoken(chart: Chart) -> str:
    """What a screen reader says: the note, and first, last, lowest and highest of each line."""
    parts = [chart.note]
    for line in chart.lines:
        values = [value for piece in line.pieces if not piece.superseded for value in piece.values if math.isfinite(value)]
        if values:
            first, last, low, high = (chart.number(value, 3) for value in (values[0], values[-1], min(values), max(values)))
            parts.append(f"{line.label}: from {first} to {last}, between {low} and {high}.")
    return " ".join(parts)


def _data(chart: Chart, steps: Scale, scale: Scale) -> dict[str, object]:
    """What the script needs: the steps' range, and each line's own values (not their sums) as people read them."""
    lines = []
    for line in chart.lines if chart.stacked else _thinned(chart.lines):
        for piece in sorted(line.pieces, key=lambda piece: piece.superseded):
            finite = [(s, v) for s, v in zip(piece.steps, piece.values, strict=True) if math.isfinite(v)]
            lines.append(
                {
                    "label": line.label + (" (trained again later)" if piece.superseded else ""),
                    "color": line.color,
                    "x": [s for s, _ in finite],
                    "text": [chart.number(v, 4) for _, v in finite],
                    "y": [] if chart.stacked else [round(1 - scale(v), 4) for _, v in finite],
                }
            )
    return {"from": steps.low, "to": steps.high, "lines": lines}


def _x(step: float, steps: Scale) -> float:
    return WIDTH * steps(step)


def _y(value: float, scale: Scale) -> float:
    return HEIGHT * (1 - min(1.1, max(-0.1, scale(value))))


def join_charts(charts: Sequence[Chart], steps: Scale) -> Markup:
    """A grid of those charts that have something to show; a chart that would stand alone in its row takes the whole of it."""
    filled = [chart for chart in charts if not chart.is_empty()]
    shown = [chart for chart in filled if not chart.is_zero()]
    if sum(not chart.wide for chart in shown) % 2 and not shown[-1].wide:
        shown[-1] = replace(shown[-1], wide=True)
    grid = tag("div", *(render(chart, steps) for chart in shown), class_="charts") if shown else None
    flat = ", ".join(chart.title[0].lower() + chart.title[1:] for chart in filled if chart.is_zero())
    return join(grid, tag("p", f"Zero in every sample: {flat}.", class_="note flat") if flat else None)
