"""The operator's own process, with kopf's watches, over HTTP: from creation to deletion, killed, doubled, cut off, and with watches that die."""

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from api_over_http import ApiOverHttp, WatchedApi
from operator_process import OperatorProcess
from played_world import PlayedWorld, condition, training_run

from samite.engines.kuberay.api import CRD, LEASE, NODE, POD, RAY_CLUSTER, TRAINING_RUN, Document

pytestmark = pytest.mark.timeout(200)
TEAM = "team-a"


class Stage:
    """A played world, its API server, and operators on it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.api = folder, WatchedApi()
        version = {"name": "v1", "served": True, "schema": {"openAPIV3Schema": {"properties": {"spec": {"properties": {}}}}}}
        self.api.put(CRD, {"metadata": {"name": "rayclusters.ray.io"}, "spec": {"versions": [version]}})
        (folder / "checkpoints").mkdir()
        self.http = ApiOverHttp(self.api)
        self.world = PlayedWorld(self.api, folder / "checkpoints", tick_s=0.2)
        self.started: list[OperatorProcess] = []

    def operator(self, identity: str = "operator-0", **settings: str) -> OperatorProcess:
        log = self.folder / f"operator-{len(self.started)}.log"
        quick = {"SAMITE_LEASE_SECONDS": "9", "SAMITE_TURN_SECONDS": "0.3", **settings}
        kubeconfig = self.http.kubeconfig(self.folder)
        self.started.append(OperatorProcess(kubeconfig, log, played_ray=self.world.dashboard_url, identity=identity, **quick))
        return self.started[-1]

    def submit(self, name: str = "demo", **spec: Any) -> None:
        spec = {"suspendPolicy": {"graceSeconds": 1.0}, **spec}
        document = training_run(name, TEAM, uri=f"{self.world.store_uri}/{name}", **spec)
        document["metadata"]["generation"] = 1
        self.api.put(TRAINING_RUN, document)

    def run(self, name: str = "demo") -> Document | None:
        return self.api.look(TRAINING_RUN, TEAM, name)

    def phase(self, name: str = "demo") -> str:
        return ((self.run(name) or {}).get("status") or {}).get("phase", "")

    def until(self, what: Callable[[], Any], *, limit_s: float = 80.0) -> None:
        ends_s = time.monotonic() + limit_s
        while not what():
            logs = "\n".join(process.log.read_text()[-1500:] for process in self.started[-2:])
            assert time.monotonic() < ends_s, f"{(self.run() or {}).get('status')}\n{logs}"
            time.sleep(0.05)

    def until_phase(self, phase: str, *, limit_s: float = 80.0) -> None:
        self.until(lambda: self.phase() == phase, limit_s=limit_s)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    found = Stage(tmp_path)
    with found.http, found.world:
        yield found
        for process in found.started:
            process.kill()
    assert found.world.errors == []
    assert found.api.by_kopf == []


def test_a_run_is_looked_after_from_its_creation_to_its_deletion(stage: Stage):
    operator = stage.operator()
    stage.submit()
    operator.wait_ready()
    stage.until_phase("Running")
    run = stage.run()
    assert run["metadata"]["finalizers"] == ["samite.dev/finalizer"]
    assert not run["metadata"].get("annotations")
    assert condition(run, "CapacityReady")["status"] == "True"
    stage.until(lambda: stage.run()["status"]["progress"]["step"] > 5, limit_s=30)
    status, metrics = operator.probe("/metrics")
    assert status == 200
    assert "samite_operator_turns_total" in metrics
    assert 'samite_run_status{k8s_namespace_name="team-a",samite_run_name="demo"' in metrics
    stage.api.delete(TRAINING_RUN, TEAM, "demo")
    stage.until(lambda: stage.run() is None)
    assert stage.api.every(RAY_CLUSTER) == ()
    assert stage.world.running() == []
    assert operator.probe("/healthz")[0] == 200
    assert operator.terminate() == 0
    assert stage.api.look(LEASE, "samite-system", "samite-operator")["spec"]["holderIdentity"] == ""


def test_an_operator_that_is_killed_at_random_moments_makes_one_cluster_and_one_submission(stage: Stage):
    dice = random.Random(3)
    stage.submit()
    clusters = set()
    for _ in range(6):
        operator = stage.operator()
        time.sleep(dice.uniform(1.5, 4.0))
        operator.kill()
        clusters |= {item["metadata"]["uid"] for item in stage.api.every(RAY_CLUSTER)}
        assert len(stage.world.running()) <= 1
    stage.operator()
    stage.until_phase("Running")
    clusters |= {item["metadata"]["uid"] for item in stage.api.every(RAY_CLUSTER)}
    assert len(clusters) == 1
    assert stage.world.training.submitted == ["demo-s00-a1"]


def test_a_second_operator_waits_and_takes_over(stage: Stage):
    first = stage.operator("operator-a")
    first.wait_ready()
    second = stage.operator("operator-b")
    stage.until(lambda: second.probe("/readyz")[0] == 503)
    stage.until(lambda: "held by operator-a" in str(second.probe("/readyz")[1]))
    assert second.probe("/healthz")[0] == 200
    stage.submit()
    stage.until_phase("Running")
    pods = {pod["metadata"]["uid"] for pod in stage.api.every(POD)}
    first.kill()
    second.wait_ready(limit_s=40)
    step = stage.run()["status"]["progress"]["step"]
    stage.until(lambda: stage.run()["status"]["progress"]["step"] > step + 5)
    assert {pod["metadata"]["uid"] for pod in stage.api.every(POD)} == pods
    assert stage.world.training.submitted == ["demo-s00-a1"]


def test_an_api_server_that_is_away_for_a_while_costs_no_training(stage: Stage):
    operator = stage.operator(SAMITE_LEASE_SECONDS="30")
    stage.submit()
    stage.until_phase("Running")
    stage.api.down = True
    time.sleep(8)
    assert operator.process.poll() is None
    stage.api.down = False
    step = stage.run()["status"]["progress"]["step"]
    stage.until(lambda: stage.run()["status"]["progress"]["step"] > step + 10)
    assert stage.phase() == "Running"
    assert stage.run()["status"]["restarts"] == {}
    stage.world.errors.clear()  # the played controllers missed it as well


def test_a_watch_that_is_answered_with_410_begins_anew(stage: Stage):
    operator = stage.operator()
    stage.submit()
    stage.until_phase("Running")
    with stage.api.news:
        # Nobody has told this one, and nobody will: it is compacted before.
        stage.api.put(NODE, {"metadata": {"name": "machine-0", "labels": {"seen": "by-nobody"}}})
        stage.api.gone_before = stage.api._version
        stage.api.news.notify_all()
    stage.api.put(TRAINING_RUN, {"metadata": {"name": "demo", "namespace": TEAM, "generation": 2}, "spec": {"suspend": True}})
    stage.until_phase("Suspended")
    assert operator.process.poll() is None


def test_watches_that_say_nothing_more_are_found_and_work_goes_on_meanwhile(stage: Stage):
    operator = stage.operator(SAMITE_RESYNC_SECONDS="1")
    stage.submit()
    stage.until_phase("Running")
    stage.api.mute = True
    time.sleep(0.6)
    stage.api.put(TRAINING_RUN, {"metadata": {"name": "demo", "namespace": TEAM, "generation": 2}, "spec": {"suspend": True}})
    stage.until_phase("Suspended")
    stage.until(lambda: "samite_operator_watch_stalled 0" not in operator.probe("/metrics")[1])
    stage.api.delete(TRAINING_RUN, TEAM, "demo")
    stage.until(lambda: stage.run() is None)
    stage.api.mute = False


def test_without_the_definition_of_runs_it_waits_and_says_so(stage: Stage):
    plain = stage.api.list

    def missing(kind: Any, namespace: str = "", **how: Any) -> Any:
        from samite.engines.kuberay.api import error_of

        if kind == TRAINING_RUN:
            raise error_of(404, "the server could not find the requested resource")
        return plain(kind, namespace, **how)

    stage.api.list = missing
    operator = stage.operator()
    stage.until(lambda: "the definition of TrainingRun" in str(operator.probe("/readyz")[1]))
    assert operator.probe("/healthz")[0] == 200
    stage.api.list = plain
    operator.wait_ready(limit_s=20)


def test_settings_that_make_no_sense_end_it_with_code_2(tmp_path: Path):
    import os
    import subprocess
    import sys

    environment = {**os.environ, "SAMITE_TURN_SECONDS": "soon"}
    done = subprocess.run(
        [sys.executable, "-m", "samite_operators"], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert "SAMITE_TURN_SECONDS must be seconds" in done.stderr
    environment = {key: value for key, value in os.environ.items() if not key.startswith("SAMITE_")}
    done = subprocess.run(
        [sys.executable, "-m", "samite_operators"], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert "SAMITE_TOKEN_KEY_FILE" in done.stderr
