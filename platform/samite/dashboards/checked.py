"""What a query may name: metrics that something records, or that `outside.py` lists, with labels that they have."""

import re

from samite.dashboards.outside import OUTSIDE_METRICS
from samite.dashboards.promql import names_in
from samite.telemetry import names
from samite.telemetry.prometheus import labels_of, series

_EVENTS = re.compile(r'samite_event_name=~?"([^"]*)"')


def problems_of(expr: str, legend: str = "") -> list[str]:
    """Everything in `expr` and in the legend's `{{label}}` that does not exist; empty for a query that can return data."""
    known, found, labels = series(), [], set[str]()
    named = names_in(expr)
    if not named.selectors:
        found.append("names no metric")
    for selector in named.selectors:
        metric = known.get(selector.metric)
        if metric is not None and metric.source == "reserved":
            found.append(f"{selector.metric}: nothing records it yet")
            continue
        own = labels_of(metric) if metric is not None else OUTSIDE_METRICS.get(selector.metric)
        if own is None:
            found.append(f"{selector.metric}: no such metric")
            continue
        labels |= own
        found += [f"{selector.metric}: no label {name}" for name in sorted(selector.matchers - own)]
    grouping = named.grouping | set(re.findall(r"{{\s*(\w+)\s*}}", legend))
    found += [f"no metric of the query has the label {name}" for name in sorted(grouping - labels)]
    for pattern in _EVENTS.findall(expr):
        found += [f"no event {name}" for name in _event_names(pattern) if name not in names.EVENTS]
    return found


def _event_names(pattern: str) -> list[str]:
    """The names behind `samite.(a|b)` or a plain name."""
    whole = re.fullmatch(r"samite\.\((.*)\)", pattern)
    return [f"samite.{name}" for name in whole[1].split("|")] if whole else [pattern]
