"""What a dashboard is made of, as plain values. Boards are written with these; `rendering.py` turns them into Grafana's JSON.

Queries are PromQL over the names of `samite.telemetry.prometheus`. `RUN` and `STAGE` are the label filters of the board's variables.
"""

from dataclasses import dataclass
from enum import StrEnum

RUN = 'samite_run_name=~"$run", samite_run_uid=~"$uid"'
"""Filter of a board that looks at chosen runs."""
STAGE = RUN + ', samite_stage_name=~"$stage"'
"""The same for metrics of the trainer, which carry the stage."""


class Kind(StrEnum):
    """How a panel draws."""

    LINES = "lines"
    STACKED = "stacked"
    STAT = "stat"
    TABLE = "table"
    BARS = "bars"
    STATES = "states"
    HEATMAP = "heatmap"
    """One row for each series, time to the right, colour for the value."""


class Needs(StrEnum):
    """What must exist or have happened before a panel can show anything."""

    NOTHING = ""
    """Any healthy run shows it."""
    FAULT = "fault"
    """A failure and the recovery from it."""
    RARE = "rare"
    """Something that most runs never see; an empty panel is good news."""
    GPU = "gpu"
    OPERATOR = "operator"
    """An operator on Kubernetes."""
    OUTSIDE = "outside"
    """An exporter that is not Samite's: DCGM, KubeRay, Kueue."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Query:
    """One PromQL expression; `legend` is Grafana's template for a series' name."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """One panel. `width` of 24, `unit` as Grafana names it, `about` is the text behind the (i)."""

    title: str
    kind: Kind
    queries: tuple[Query, ...]
    about: str
    unit: str = "short"
    width: int = 8
    needs: Needs = Needs.NOTHING
    highest: float | None = None
    red_above: float | None = None
    """A threshold line, or the value from which a stat is red."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A titled group of panels."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Board:
    """One dashboard. `uid` is part of its address and of every link to it: never change it."""

    uid: str
    title: str
    about: str
    rows: tuple[Row, ...]
    by_run: bool = True
    """Has the variables run, uid and stage, and the run's events as annotations."""

    @property
    def panels(self) -> tuple[Panel, ...]:
        """All panels in their order."""
        return tuple(panel for row in self.rows for panel in row.panels)


def lines(title: str, about: str, *queries: Query, unit: str = "short", width: int = 8, needs: Needs = Needs.NOTHING) -> Panel:
    """The usual panel: curves over time."""
    return Panel(title=title, kind=Kind.LINES, queries=queries, about=about, unit=unit, width=width, needs=needs)


def stat(title: str, about: str, expr: str, *, unit: str = "short", red_above: float | None = None, needs: Needs = Needs.NOTHING) -> Panel:
    """One present number, in a header row."""
    return Panel(
        title=title, kind=Kind.STAT, queries=(Query(expr=expr),), about=about, unit=unit, width=4, red_above=red_above, needs=needs
    )


def heatmap(title: str, about: str, expr: str, legend: str, *, unit: str = "short", needs: Needs = Needs.NOTHING) -> Panel:
    """Layers (or whatever `legend` names) by time."""
    return Panel(title=title, kind=Kind.HEATMAP, queries=(Query(expr=expr, legend=legend),), about=about, unit=unit, width=12, needs=needs)


def mean(histogram: str, by: str, where: str) -> str:
    """Mean of a histogram's observations in the last interval, by labels: what a curve of durations shows."""
    rate = "sum by ({by}) (rate({name}{{{where}}}[$__rate_interval]))"
    return f"{rate.format(by=by, name=histogram + '_sum', where=where)} / {rate.format(by=by, name=histogram + '_count', where=where)}"


def quantile(share: float, histogram: str, by: str, where: str) -> str:
    """Quantile of all observations since the process began. Not of a window: rare observations (recoveries) would hardly ever fall into one."""
    return f"histogram_quantile({share:g}, sum by (le, {by}) ({histogram}_bucket{{{where}}}))"


def happened(events: str, where: str, by: str = "samite_event_name") -> str:
    """How often events (a regular expression of names without `samite.`) were told since their process began."""
    return f'sum by ({by}) (samite_events_total{{{where + ", " if where else ""}samite_event_name=~"samite.({events})"}})'
