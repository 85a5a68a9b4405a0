"""Boards name only what exists, are drawn without holes or overlaps, and lie in the package and the chart as the code makes them."""

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from samite.dashboards.alerts import ALERTS
from samite.dashboards.boards import BOARDS
from samite.dashboards.checked import problems_of
from samite.dashboards.export import board_texts
from samite.dashboards.panels import Board, Needs

ROOT = Path(__file__).resolve().parents[3]
QUERIES = [(board, panel, query) for board in BOARDS for panel in board.panels for query in panel.queries]
VARIABLES = {"$run": "demo", "$uid": "u", "$stage": "s", "$__rate_interval": "1m", "$__interval": "1m", "$__range": "1h"}

by_uid = pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.uid)

SOURCE = {
    "type": "object",
    "required": ["type", "uid"],
    "properties": {"type": {"const": "prometheus"}, "uid": {"const": "${datasource}"}},
}
GRID = {
    "type": "object",
    "required": ["h", "w", "x", "y"],
    "properties": {"h": {"type": "integer", "minimum": 1}, "w": {"minimum": 1, "maximum": 24}, "x": {"minimum": 0, "maximum": 23}},
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["uid", "title", "schemaVersion", "panels", "templating", "annotations", "time", "tags", "links"],
    "properties": {
        "uid": {"type": "string", "maxLength": 40, "pattern": "^[a-z-]+$"},
        "schemaVersion": {"type": "integer", "minimum": 36},
        "panels": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["id", "type", "title", "gridPos"],
                "properties": {
                    "id": {"type": "integer", "minimum": 1},
                    "type": {"enum": ["row", "timeseries", "stat", "table", "bargauge", "state-timeline", "heatmap"]},
                    "gridPos": GRID,
                },
                "if": {"properties": {"type": {"const": "row"}}},
                "else": {
                    "required": ["targets", "datasource", "fieldConfig", "description"],
                    "properties": {
                        "datasource": SOURCE,
                        "description": {"type": "string", "minLength": 4},
                        "targets": {
                            "type": "array",
                            "minItems": 1,
                            "items": {
                                "type": "object",
                                "required": ["expr", "refId"],
                                "properties": {"expr": {"type": "string", "minLength": 1}},
                            },
                        },
                    },
                },
            },
        },
        "templating": {
            "type": "object",
            "required": ["list"],
            "properties": {"list": {"type": "array", "items": {"type": "object", "required": ["name", "type"]}}},
        },
        "annotations": {
            "type": "object",
            "required": ["list"],
            "properties": {"list": {"items": {"required": ["name", "enable", "iconColor", "expr", "datasource"]}}},
        },
    },
}


def document(board: Board) -> dict[str, Any]:
    return json.loads(board_texts()[board.uid])


@pytest.mark.parametrize(("board", "panel", "query"), QUERIES, ids=[f"{b.uid}: {p.title}" for b, p, _ in QUERIES])
def test_a_query_names_only_metrics_and_labels_that_exist(board, panel, query):
    assert problems_of(query.expr, query.legend) == []


@by_uid
def test_what_the_json_asks_for_in_annotations_and_variables_exists_too(board: Board):
    drawn = document(board)
    asked = [entry["expr"] for entry in drawn["annotations"]["list"]]
    for variable in drawn["templating"]["list"]:
        if variable["type"] == "query":
            selector, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]).groups()
            asked.append(f"sum by ({label}) ({selector})")
    assert [problem for expr in asked for problem in problems_of(expr)] == []
    assert bool(asked) == (board.by_run or "$run" in json.dumps(drawn))


@by_uid
def test_the_json_is_a_dashboard(board: Board):
    jsonschema.validate(document(board), SCHEMA)


@by_uid
def test_panels_have_a_place_of_their_own(board: Board):
    panels = document(board)["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for one, other in combinations((panel["gridPos"] for panel in panels), 2):
        apart = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert apart or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"], (one, other)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)


@by_uid
def test_links_lead_to_boards_and_a_board_of_a_run_to_its_logs_and_traces(board: Board):
    links = document(board)["links"]
    uids = {link["url"].removeprefix("/d/") for link in links if link["url"].startswith("/d/")}
    assert uids == {other.uid for other in BOARDS} - {board.uid}
    assert {"Logs of the run", "Traces of the attempts"} <= {link["title"] for link in links} or not board.by_run


def test_variables_of_queries_are_variables_of_their_board():
    for board, panel, query in QUERIES:
        used = set(re.findall(r"\$(\w+)", query.expr)) - {"__rate_interval", "__interval", "__range"}
        declared = {variable["name"] for variable in document(board)["templating"]["list"]}
        assert used <= declared, panel.title


def test_every_alert_opens_a_board_that_exists():
    assert {alert.board for alert in ALERTS} <= {board.uid for board in BOARDS}


def test_boards_say_what_they_need_and_most_panels_need_nothing():
    needs = [panel.needs for board in BOARDS for panel in board.panels]
    assert needs.count(Needs.NOTHING) > len(needs) / 2
    assert {board.title for board in BOARDS} == {
        f"Samite / {name}"
        for name in (
            "Fleet",
            "Run",
            "Recovery",
            "Numeric health",
            "MoE and multimodal",
            "Memory and compute",
            "Checkpoints and storage",
            "Nodes and hardware",
            "Control plane",
        )
    }


def test_generated_files_are_what_the_code_makes():
    pytest.importorskip("grafana_foundation_sdk", reason="needs the extra `dashboards`")
    from samite.dashboards.generate import generated

    files = generated(ROOT)
    stale = [str(file.relative_to(ROOT)) for file, text in files.items() if not file.is_file() or file.read_text(encoding="utf-8") != text]
    assert stale == [], "run: python -m samite.dashboards.generate"
    for folder in {file.parent for file in files if file.suffix == ".json"}:
        assert set(folder.glob("*.json")) <= set(files)


def test_the_json_survives_the_sdks_own_reading_of_it():
    pytest.importorskip("grafana_foundation_sdk", reason="needs the extra `dashboards`")
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard

    register_default_plugins()
    for board in BOARDS:
        drawn = document(board)
        again = json.loads(json.dumps(Dashboard.from_json(drawn), cls=JSONEncoder))
        for written, read in zip(drawn["panels"], again["panels"], strict=True):
            kept = ("id", "type", "title", "gridPos", "targets", "datasource")
            assert {key: read.get(key) for key in kept} == {key: written.get(key) for key in kept}
