"""Boards as Grafana's JSON, built with grafana-foundation-sdk (the extra `dashboards`). Called by `generate.py` only; the result is committed.

Three data sources are variables: Prometheus for every panel, and optionally a log store (Loki) and a trace store (Tempo) for the links. Annotations
come from `samite.events`, so that they need no log store.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from samite.dashboards.panels import RUN, Board, Kind, Panel, Query

TIMELINE_EVENTS = {
    "Stages and gates": ("blue", "stage.started|stage.finished|stage.gate.evaluated|stage.handover.committed"),
    "Failures": ("red", "failure.detected|node.lost|hang.confirmed|run.held|numeric.nonfinite"),
    "Restarts": ("orange", "attempt.started|restart.decided|training.started"),
    "Recovered": ("green", "recovery.finished"),
    "Warnings": (
        "yellow",
        "loss.spike|grad.norm.spike|decay.underflow|moe.expert.collapse|storage.stall|memory.pressure|straggler.detected",
    ),
}
"""Annotation -> (colour, events without `samite.`)."""

_SOURCE = "${datasource}"


def render(board: Board, menu: tuple[Board, ...]) -> str:
    """The dashboard as JSON text, the same at every call. `menu`: all boards, which each one links to."""
    from grafana_foundation_sdk.builders import dashboard as grafana
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.models.dashboard import DashboardCursorSync

    builder = (
        grafana.Dashboard(board.title)
        .uid(board.uid)
        .description(board.about)
        .tags(["samite"])
        .readonly()
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .time("now-3h" if board.by_run else "now-24h", "now")
        .refresh("30s")
        .timezone("browser")
    )
    for variable in _variables(board):
        builder = builder.with_variable(variable)
    for link in _links(board, menu):
        builder = builder.link(link)
    number = 1
    for row in board.rows:
        builder = builder.with_row(grafana.Row(row.title).id(number))
        number += 1
        for panel in row.panels:
            builder = builder.with_panel(_panel(panel, number))
            number += 1
    document = json.loads(json.dumps(builder.build(), cls=JSONEncoder))
    document["annotations"] = {"list": list(_annotations()) if board.by_run else []}
    return json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _variables(board: Board) -> Iterator[Any]:
    from grafana_foundation_sdk.builders import dashboard as grafana
    from grafana_foundation_sdk.models.dashboard import DataSourceRef, VariableHide, VariableOption, VariableRefresh, VariableSort

    yield grafana.DatasourceVariable("datasource").label("Prometheus").type("prometheus")
    yield grafana.DatasourceVariable("logs").label("Logs").type("loki").hide(VariableHide.HIDE_VARIABLE)
    yield grafana.DatasourceVariable("traces").label("Traces").type("tempo").hide(VariableHide.HIDE_VARIABLE)
    asked = {"run": ("Run", "label_values(samite_run_status, samite_run_name)")}
    if board.by_run:
        asked["uid"] = ("Run id", 'label_values(samite_run_status{samite_run_name=~"$run"}, samite_run_uid)')
        asked["stage"] = ("Stage", f"label_values(samite_step_number{{{RUN}}}, samite_stage_name)")
    elif not any("$run" in query.expr for panel in board.panels for query in panel.queries):
        return
    for name, (title, query) in asked.items():
        yield (
            grafana.QueryVariable(name)
            .label(title)
            .datasource(DataSourceRef(type_val="prometheus", uid=_SOURCE))
            .query(query)
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
            .sort(VariableSort.ALPHABETICAL_ASC)
            .current(VariableOption(selected=True, text="All", value="$__all"))
            .multi(True)
            .include_all(True)
            .all_value(".*")
        )


def _links(board: Board, menu: tuple[Board, ...]) -> Iterator[Any]:
    from grafana_foundation_sdk.builders import dashboard as grafana
    from grafana_foundation_sdk.models.dashboard import DashboardLinkType

    for other in menu:
        if other.uid != board.uid:
            title = other.title.removeprefix("Samite / ")
            link = grafana.DashboardLink(title).type(DashboardLinkType.LINK).url(f"/d/{other.uid}").keep_time(True)
            yield link.include_vars(True) if other.by_run and board.by_run else link
    if board.by_run:
        yield _explore("Logs of the run", "loki", "${logs}", {"expr": '{service_name=~"samite-.*"} | samite_run_name=~"$run"'})
        yield _explore(
            "Traces of the attempts", "tempo", "${traces}", {"queryType": "traceql", "query": '{resource.samite.run.name=~"$run"}'}
        )


def _explore(title: str, kind: str, source: str, query: Mapping[str, str]) -> Any:
    from grafana_foundation_sdk.builders import dashboard as grafana
    from grafana_foundation_sdk.models.dashboard import DashboardLinkType

    query_ = {"refId": "A", "datasource": {"type": kind, "uid": source}, **query}
    pane = {"a": {"datasource": source, "queries": [query_], "range": {"from": "now-3h", "to": "now"}}}
    address = "/explore?schemaVersion=1&orgId=1&panes=" + quote(json.dumps(pane), safe="${}:,")
    return grafana.DashboardLink(title).type(DashboardLinkType.LINK).url(address).target_blank(True)


def _annotations() -> Iterator[dict[str, Any]]:
    for name, (color, events) in TIMELINE_EVENTS.items():
        told = f'samite_events_total{{{RUN}, samite_event_name=~"samite.({events})"}}'
        # A counter begins with its first event: that one is new, later ones are an increase.
        yield {
            "name": name,
            "datasource": {"type": "prometheus", "uid": _SOURCE},
            "enable": name != "Warnings",
            "iconColor": color,
            "expr": f"sum by (samite_event_name) ({told} unless {told} offset 1m or increase({told}[1m])) > 0",
            "step": "30s",
            "titleFormat": "{{samite_event_name}}",
        }


def _panel(panel: Panel, number: int) -> Any:
    from grafana_foundation_sdk.models.dashboard import DataSourceRef

    builder = _drawing(panel)
    for index, query in enumerate(panel.queries):
        builder = builder.with_target(_target(panel, query, chr(ord("A") + index)))
    builder = builder.id(number).title(panel.title).description(panel.about).unit(panel.unit).span(panel.width)
    builder = builder.height(4 if panel.kind is Kind.STAT else 8).datasource(DataSourceRef(type_val="prometheus", uid=_SOURCE))
    if panel.highest is not None:
        builder = builder.max(panel.highest).min(0)
    return builder if panel.red_above is None else builder.thresholds(_red_above(panel.red_above))


def _target(panel: Panel, query: Query, letter: str) -> Any:
    from grafana_foundation_sdk.builders.prometheus import Dataquery
    from grafana_foundation_sdk.models.prometheus import PromQueryFormat

    target = Dataquery().expr(query.expr).ref_id(letter)
    if query.legend:
        target = target.legend_format(query.legend)
    if panel.kind in (Kind.STAT, Kind.TABLE, Kind.BARS):
        target = target.instant()
    return (
        target.format(PromQueryFormat.TABLE)
        if panel.kind is Kind.TABLE
        else target.range()
        if panel.kind not in (Kind.STAT, Kind.BARS)
        else target
    )


def _drawing(panel: Panel) -> Any:
    from grafana_foundation_sdk.builders import bargauge, common, heatmap, statetimeline, table, timeseries
    from grafana_foundation_sdk.builders import stat as stats
    from grafana_foundation_sdk.models.common import (
        BigValueColorMode,
        LegendDisplayMode,
        LegendPlacement,
        SortOrder,
        StackingMode,
        TooltipDisplayMode,
        VizOrientation,
    )

    last = common.ReduceDataOptions().calcs(["lastNotNull"])
    legend = common.VizLegendOptions().show_legend(True).display_mode(LegendDisplayMode.LIST).placement(LegendPlacement.BOTTOM)
    tooltip = common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING)
    match panel.kind:
        case Kind.LINES:
            return timeseries.Panel().line_width(1).fill_opacity(5).legend(legend).tooltip(tooltip)
        case Kind.STACKED:
            stacked = common.StackingConfig().mode(StackingMode.NORMAL)
            return timeseries.Panel().fill_opacity(60).stacking(stacked).legend(legend).tooltip(tooltip)
        case Kind.STAT:
            return (
                stats.Panel()
                .reduce_options(last)
                .color_mode(BigValueColorMode.VALUE if panel.red_above is None else BigValueColorMode.BACKGROUND)
            )
        case Kind.TABLE:
            return table.Panel()
        case Kind.BARS:
            return bargauge.Panel().reduce_options(last).orientation(VizOrientation.HORIZONTAL)
        case Kind.STATES:
            return statetimeline.Panel()
        case Kind.HEATMAP:
            return heatmap.Panel().calculate(False)


def _red_above(limit: float) -> Any:
    from grafana_foundation_sdk.builders.dashboard import ThresholdsConfig
    from grafana_foundation_sdk.models.dashboard import Threshold, ThresholdsMode

    steps = [Threshold(value=None, color="green"), Threshold(value=limit, color="red")]
    return ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps)
