"""Layers by time as colour: where a stack of sixty curves would be a smear. Inline SVG, readable without a script and on paper.

A cell covers the steps up to the next sample and shows the worst value of its bucket. Colours are eight steps between lowest and highest value.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from samite.report import figures
from samite.report.chart import HEIGHT, WIDTH
from samite.report.curves import Curve, Curves, Piece
from samite.report.markup import Markup, tag
from samite.report.scale import Scale

LEVELS = 8
COLUMNS = 120
"""Buckets that time is cut into: about as many as eyes tell apart."""
LABELS = 16
"""Row labels that fit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Heatmap:
    """One figure. `rows` from top to bottom; with `low_is_worse` a bucket shows its lowest value, and low values are dark."""

    key: str
    title: str
    note: str
    rows: Sequence[tuple[str, Piece]]
    low_is_worse: bool = False
    number: Callable[[float, int], str] = figures.significant

    @property
    def values(self) -> list[float]:
        """All finite values."""
        return [value for _, piece in self.rows for value in piece.values if math.isfinite(value)]

    def is_flat(self) -> bool:
        """True if there is nothing to tell apart: no value, or a single one everywhere."""
        return len(set(self.values)) < 2


@dataclass(slots=True)
class _Cells:
    """Rectangles of each level, as SVG path data."""

    of_level: dict[int, list[str]] = field(default_factory=dict)

    def add(self, level: int, first: int, last: int, row: int, columns: int, rows: int) -> None:
        left, width, top, height = WIDTH * first / columns, WIDTH * (last - first) / columns, HEIGHT * row / rows, HEIGHT / rows
        # A hair wider and higher than it is: no ground shines through between neighbours.
        self.of_level.setdefault(level, []).append(f"M{left:.1f} {top:.1f}h{width + 0.4:.1f}v{height + 0.4:.1f}h{-width - 0.4:.1f}z")


def by_layer(
    curves: Curves,
    found: dict[str, Curve],
    *,
    key: str,
    title: str,
    note: str,
    low_is_worse: bool = False,
    number: Callable[[float, int], str] = figures.significant,
) -> Heatmap:
    """A heatmap of one curve for each layer: steps that count, first layer on top."""
    ordered = sorted(found, key=lambda block: (len(block), block))
    rows = [(f"layer {block}", curves.counting(found[block])) for block in ordered]
    return Heatmap(key=key, title=title, note=note, rows=rows, low_is_worse=low_is_worse, number=number)


def render(heatmap: Heatmap, steps: Scale) -> Markup:
    """The figure; `steps` is the common scale of the page."""
    low, high = min(heatmap.values), max(heatmap.values)
    plot = tag(
        "div",
        tag("div", _cells(heatmap, steps, low, high), class_="canvas"),
        *_row_labels(heatmap),
        *_step_labels(steps),
        class_="plot heat",
        role="img",
        aria_label=f"{heatmap.title}. {heatmap.note} {_worst(heatmap)}",
    )
    caption = tag(
        "figcaption", tag("h3", heatmap.title), tag("p", f"{heatmap.note} {_worst(heatmap)}", class_="note"), _key(heatmap, low, high)
    )
    return tag("figure", caption, plot, class_="chart wide", id=heatmap.key)


def render_maps(heatmaps: Sequence[Heatmap], steps: Scale) -> Markup | None:
    """Those that have something to tell apart; None if none has."""
    shown = [render(heatmap, steps) for heatmap in heatmaps if not heatmap.is_flat()]
    return tag("div", *shown, class_="charts heats") if shown else None


def _cells(heatmap: Heatmap, steps: Scale, low: float, high: float) -> Markup:
    columns, cells = COLUMNS, _Cells()
    for row, (_, piece) in enumerate(heatmap.rows):
        levels = [_level(value, low, high, heatmap.low_is_worse) for value in _bucketed(piece, steps, columns, heatmap.low_is_worse)]
        first = 0
        for column in range(1, columns + 1):
            if column == columns or levels[column] != levels[first]:
                if levels[first] >= 0:
                    cells.add(levels[first], first, column, row, columns, len(heatmap.rows))
                first = column
    shapes = [tag("path", d="".join(parts), class_=f"heat h{level}") for level, parts in sorted(cells.of_level.items())]
    return tag("svg", *shapes, viewbox=f"0 0 {WIDTH:.0f} {HEIGHT:.0f}", preserveaspectratio="none", aria_hidden="true", focusable="false")


def _bucketed(piece: Piece, steps: Scale, columns: int, low_is_worse: bool) -> list[float]:
    """The worst value of each bucket; a bucket without a sample goes on with the one before, until the last sample."""
    found = [math.nan] * columns
    for step, value in zip(piece.steps, piece.values, strict=True):
        column = min(columns - 1, max(0, int(columns * steps(step))))
        before = found[column]
        if math.isfinite(value) and (math.isnan(before) or (value < before if low_is_worse else value > before)):
            found[column] = value
    last = max((column for column, value in enumerate(found) if not math.isnan(value)), default=-1)
    for column in range(1, last + 1):
        if math.isnan(found[column]):
            found[column] = found[column - 1]
    return found


def _level(value: float, low: float, high: float, low_is_worse: bool) -> int:
    if math.isnan(value):
        return -1
    share = (value - low) / (high - low)
    return min(LEVELS - 1, int(LEVELS * (1.0 - share if low_is_worse else share)))


def _worst(heatmap: Heatmap) -> str:
    """Where the darkest cell is, in words: for whoever sees no colours."""
    found = [(v, s, name) for name, piece in heatmap.rows for s, v in zip(piece.steps, piece.values, strict=True) if math.isfinite(v)]
    value, step, name = (min if heatmap.low_is_worse else max)(found)
    return f"{'Lowest' if heatmap.low_is_worse else 'Highest'}: {heatmap.number(value, 3)} in {name} at step {figures.grouped(int(step))}."


def _key(heatmap: Heatmap, low: float, high: float) -> Markup:
    ends = (high, low) if heatmap.low_is_worse else (low, high)
    boxes = [tag("span", class_=f"key fill heat h{level}", aria_hidden="true") for level in range(LEVELS)]
    return tag("ul", tag("li", heatmap.number(ends[0], 3), *boxes, heatmap.number(ends[1], 3)), class_="legend")


def _row_labels(heatmap: Heatmap) -> list[Markup]:
    count = len(heatmap.rows)
    every = math.ceil(count / LABELS)
    return [
        tag("span", name.removeprefix("layer "), class_="y-label", style=f"--at:{(index + 0.5) / count:.4f}", aria_hidden="true")
        for index, (name, _) in enumerate(heatmap.rows)
        if index % every == 0
    ]


def _step_labels(steps: Scale) -> list[Markup]:
    ticks = [tick for tick in steps.ticks(6) if tick == int(tick)]
    return [tag("span", figures.grouped(int(t)), class_="x-label", style=f"--at:{steps(t):.4f}", aria_hidden="true") for t in ticks]
