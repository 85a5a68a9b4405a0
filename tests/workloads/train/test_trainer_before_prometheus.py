"""Two real ranks, forty seconds, a real Prometheus: every panel that the trainer alone feeds has data. No Ray, no engine; those are in tests/platform/dashboards."""

import sys
from pathlib import Path

import pytest

from samite.dashboards.boards import BOARDS
from samite.dashboards.panels import Needs, Panel
from samite.dashboards.promql import names_in
from samite.telemetry.prometheus import series

DASHBOARDS = Path(__file__).resolve().parents[2] / "platform" / "dashboards"
OF_TRAINER = {"rank 0", "any rank", "checkpoint", "all"}
pytestmark = [pytest.mark.boards, pytest.mark.slow, pytest.mark.timeout(280)]


def fed_by_the_trainer(panel: Panel) -> bool:
    asked = {selector.metric for query in panel.queries for selector in names_in(query.expr).selectors}
    known = series()
    return panel.needs is Needs.NOTHING and all(name in known and known[name].source in OF_TRAINER for name in asked)


def test_every_panel_that_the_trainer_feeds_has_data(new_attempt, run_attempt, document, tmp_path: Path):
    sys.path.insert(0, str(DASHBOARDS))
    from live_prometheus import running
    from prometheus_tools import tool

    if (program := tool("prometheus")) is None:
        pytest.skip("no prometheus here: build it with `python tests/cluster/box build --also prometheus`")
    panels = [(board.title, panel) for board in BOARDS for panel in board.panels if fed_by_the_trainer(panel)]
    assert len(panels) > 35
    with running(program, tmp_path / "prometheus", groups=("training",)) as live:
        spec = document["spec"]
        spec["telemetry"] = {"sampleSteps": 4, "perRank": "All", "otlpEndpoint": live.otlp}
        spec["stages"][0]["budget"] = {"wallSeconds": 40}
        spec["checkpoint"]["interval"] = {"seconds": 5}
        assert run_attempt(new_attempt(ranks=2)) == [0, 0]
        empty = [f"{title}: {panel.title}" for title, panel in panels if not all(live.curves(query.expr) for query in panel.queries)]
        told = {name for name in live.ask("label/__name__/values") if name.startswith("samite_")}
        assert empty == []
        assert told <= set(series())
        assert live.fired() == set()
        assert {span.name for span in live.spans} == {"load", "train", "save", "stop"}
