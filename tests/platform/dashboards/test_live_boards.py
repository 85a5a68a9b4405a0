"""A real run and a real operator before a real Prometheus: every panel that they can fill has data, and alerts fire for the injected fault only.

Minutes long; needs Prometheus (tests are skipped without it).
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from drawn_boards import page
from live_prometheus import LivePrometheus, running

from samite.dashboards.boards import BOARDS
from samite.dashboards.panels import Board, Needs, Panel
from samite.dashboards.promql import names_in
from samite.engines.kuberay.api import POD
from samite.telemetry.instruments import Instrument
from samite.telemetry.prometheus import prometheus_name, series

ROOT = Path(__file__).resolve().parents[3]
pytestmark = [pytest.mark.boards, pytest.mark.slow, pytest.mark.timeout(1500)]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
TYPES = {Instrument.COUNTER: "counter", Instrument.HISTOGRAM: "histogram"}


def empty(live: LivePrometheus, needs: set[Needs]) -> list[str]:
    """Titles of panels that show nothing although they should."""
    return [
        f"{board.title}: {panel.title}" for board in BOARDS for panel in board.panels if panel.needs in needs and not shows(live, panel)
    ]


def shows(live: LivePrometheus, panel: Panel) -> bool:
    return all(live.curves(query.expr) for query in panel.queries)


def wrong_types(live: LivePrometheus) -> dict[str, str]:
    """Metrics that Prometheus knows by a name or as a type that the registry does not give them."""
    known = {prometheus_name(metric): metric for metric in series().values()}
    found = {}
    for name, entries in live.metadata().items():
        if name.startswith("samite_"):
            metric = known.get(name)
            wanted = "unknown name" if metric is None else TYPES.get(metric.instrument, "gauge")
            if entries[0]["type"] != wanted:
                found[name] = f"{entries[0]['type']}, wanted {wanted}"
    return found


@pytest.fixture(scope="module")
def broken_run(prometheus: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LivePrometheus]:
    """A local run of two stages that loses a node, then meets a NaN, and ends well."""
    sys.path.insert(0, str(ROOT / "tests" / "e2e"))
    from local_run import LocalRun, spec_document

    from samite_workloads.data.prepare import prepare_quickstart

    folder = tmp_path_factory.mktemp("live")
    corpus = prepare_quickstart(folder / "corpus").folder
    with running(prometheus, folder / "prometheus", groups=("runs", "training")) as live:
        telemetry = {"sampleSteps": 5, "perRank": "All", "otlpEndpoint": live.otlp}
        # A machine that is busy with other things must not look like a hang: this is about the node and the NaN.
        patient = {"hang": {"mode": "Observe", "floorSeconds": 120}}
        document = spec_document("demo", corpus, steps=60, every=10, telemetry=telemetry, detection=patient)
        with LocalRun(folder / "home", document) as run:
            run.submit()
            run.until_step(25, limit_s=500)
            run.chaos("kill-node")
            run.until_recovered(1, limit_s=400)
            assert live.fired() == set(), "a lost node wakes nobody"
            run.until_step(run.step() + 15, limit_s=400)  # with a commit in between: two failures without one wake somebody
            run.chaos("nan")
            run.until_recovered(2, limit_s=400)
            run.until_phase("Succeeded", limit_s=500)
        yield live


@pytest.mark.ray
def test_every_panel_that_a_run_on_cpu_can_fill_has_data(broken_run: LivePrometheus):
    assert empty(broken_run, {Needs.NOTHING, Needs.FAULT}) == []


@pytest.mark.ray
def test_the_nan_raises_its_alert_and_nothing_else_fires(broken_run: LivePrometheus):
    assert broken_run.fired() == {"SamiteNonFinite"}


@pytest.mark.ray
def test_prometheus_knows_each_metric_by_the_registered_name_and_type(broken_run: LivePrometheus):
    assert wrong_types(broken_run) == {}
    told = {name for name in broken_run.ask("label/__name__/values") if name.startswith("samite_")}
    assert len(told) > 60
    assert told <= set(series())


@pytest.mark.ray
def test_each_attempt_is_a_trace_with_the_trainers_spans_in_it_and_a_link_to_the_one_before(broken_run: LivePrometheus):
    roots = {span.trace_id: span for span in broken_run.spans if span.name == "attempt"}
    assert len(roots) >= 3
    assert len([span for span in roots.values() if span.links]) == len(roots) - 1
    assert all(link.trace_id in roots for span in roots.values() for link in span.links)
    names = {trace: {span.name for span in broken_run.spans if span.trace_id == trace} for trace in roots}
    assert all({"attempt", "start", "load"} <= found for found in names.values())
    assert any({"provision", "train", "save", "stop"} <= found for found in names.values()) or {"train", "save", "stop"} <= set.union(
        *names.values()
    )
    assert {span.attributes[-1].key for span in roots.values() if span.status.code == 2} <= {"error.type"}


@pytest.mark.ray
@pytest.mark.network_tools
@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.uid)
def test_a_board_can_be_looked_at(broken_run: LivePrometheus, board: Board, tmp_path: Path):
    """Pictures stay in SAMITE_BOARD_PICTURES if that names a folder."""
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    from PIL import Image

    folder = Path(os.environ.get("SAMITE_BOARD_PICTURES") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    (tmp_path / "board.html").write_text(page(broken_run, board), encoding="utf-8")
    picture = folder / f"{board.uid}.png"
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        "--window-size=1280,2600",
        f"--user-data-dir={tmp_path}/profile",
    ]
    command = [CHROMIUM, *flags, f"--screenshot={picture}", (tmp_path / "board.html").as_uri()]
    subprocess.run(command, capture_output=True, timeout=100, check=True, env={**os.environ, "HOME": str(tmp_path)})
    assert len(Image.open(picture).convert("RGB").getcolors(maxcolors=1 << 24)) > 100


@pytest.mark.ray
def test_annotations_show_restarts_and_stages(broken_run: LivePrometheus):
    from samite.dashboards.export import board_texts

    marks = {entry["name"]: entry["expr"] for entry in json.loads(board_texts()["samite-run"])["annotations"]["list"]}
    assert {name for name in ("Stages and gates", "Failures", "Restarts", "Recovered") if not broken_run.curves(marks[name])} == set()


def _soon(holds: Callable[[], bool], limit_s: float = 30.0) -> bool:
    ends_s = time.monotonic() + limit_s
    while not holds():
        if time.monotonic() > ends_s:
            return False
        time.sleep(0.5)
    return True


def fed_by_the_engine(panel: Panel) -> bool:
    """Whether an engine alone feeds it, in a run that loses a machine."""
    asked = {selector.metric for query in panel.queries for selector in names_in(query.expr).selectors}
    known = series()
    sources = {known[name].source for name in asked if name in known}
    return panel.needs in (Needs.NOTHING, Needs.FAULT) and asked <= set(known) and sources <= {"supervisor", "operator", "all"}


def test_every_panel_of_the_control_plane_and_of_the_engine_has_data_from_a_real_operator(prometheus: Path, tmp_path: Path):
    sys.path.insert(0, str(ROOT / "tests" / "operators"))
    from test_operator_process import Stage

    stage = Stage(tmp_path)
    # All pods stand on one machine here, so its loss is told as the head's; and checkpoints are told by the trainer and by the storage's own watch.
    elsewhere = {"Nodes that left", "Life of checkpoints"}
    panels = {panel.title: panel for board in BOARDS for panel in board.panels if fed_by_the_engine(panel) and panel.title not in elsewhere}
    assert len(panels) > 20
    with stage.http, stage.world:
        operator = stage.operator(SAMITE_LEASE_SECONDS="60")
        scrape = f"127.0.0.1:{operator.port}"
        with running(prometheus, tmp_path / "prometheus", groups=("runs", "training", "operator"), scrape=scrape) as live:
            operator.wait_ready()
            stage.submit(slo={"ettrPercent": 90})
            stage.until_phase("Running")
            stage.until(lambda: stage.run()["status"]["progress"]["step"] > 60, limit_s=60)
            machine = next(
                pod["spec"]["nodeName"] for pod in stage.api.every(POD) if pod["metadata"]["labels"].get("ray.io/node-type") == "worker"
            )
            with stage.world.lock:
                stage.world.kuberay.machines[machine].powered = False
            stage.until(lambda: stage.run()["status"].get("recoveries"), limit_s=150)
            stage.until(lambda: not empty(live, {Needs.OPERATOR}), limit_s=120)
            assert empty(live, {Needs.OPERATOR}) == []
            missing = [title for title, panel in panels.items() if not _soon(lambda panel=panel: shows(live, panel))]
            assert missing == []
            assert live.curves("sum(samite_operator_leader_ratio) == 1")
            assert live.curves("samite_ettr_objective_ratio == 0.9")
            assert wrong_types(live) == {}
            assert live.fired() == set()
        operator.kill()
