"""The command line and the operator's own process around one real API server: what a person asks is answered, and the story reads as it happened.

Controllers, machines and Ray are played (`server_world`); no pod runs.
"""

import contextlib
import io
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from api_server import lone_api_server
from box.binaries import MissingToolError
from box.kubectl import Kubectl
from server_world import ServerApi, install_definitions, make_namespace

sys.path.insert(0, str(Path(__file__).parents[1] / "operators"))

from operator_process import OperatorProcess
from played_world import PlayedWorld, training_run

from samite.cli.app import run
from samite.engines.kuberay import names
from samite.engines.kuberay.api import POD, RAY_CLUSTER, TRAINING_RUN
from samite.engines.kuberay.api_client import RealApi, connect

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(290)]
TEAM = "team-a"


@pytest.fixture(scope="module")
def lone_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubectl]:
    try:
        with lone_api_server(tmp_path_factory.mktemp("api-server")) as kubectl:
            api = connect(kubeconfig=str(kubectl.kubeconfig), timeout_s=60.0)
            install_definitions(api, kubectl.kubeconfig)
            for name in (TEAM, "samite-system"):
                make_namespace(api, name)
            yield kubectl
    except MissingToolError as error:
        pytest.skip(str(error))


@pytest.fixture
def api(lone_server: Kubectl) -> RealApi:
    return connect(kubeconfig=str(lone_server.kubeconfig), timeout_s=60.0)


@pytest.fixture
def world(api: RealApi, tmp_path: Path) -> Iterator[PlayedWorld]:
    (tmp_path / "checkpoints").mkdir()
    with PlayedWorld(ServerApi(api), tmp_path / "checkpoints") as found:
        yield found


@pytest.fixture
def operator(lone_server: Kubectl, world: PlayedWorld, tmp_path: Path) -> Iterator[OperatorProcess]:
    process = OperatorProcess(lone_server.kubeconfig, tmp_path / "operator.log", played_ray=world.dashboard_url, SAMITE_LEASE_SECONDS="60")
    try:
        process.wait_ready()
        yield process
    finally:
        process.kill()


@pytest.fixture
def samite(lone_server: Kubectl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., SimpleNamespace]:
    monkeypatch.setenv("SAMITE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SAMITE_NO_INPUT", "1")

    def call(*words: str, code: int = 0) -> SimpleNamespace:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            found = run(["--kubeconfig", str(lone_server.kubeconfig), "-n", TEAM, *words])
        assert found == code, f"samite {' '.join(words)}: exit {found}, wanted {code}\n{out.getvalue()}{err.getvalue()}"
        return SimpleNamespace(stdout=out.getvalue(), stderr=err.getvalue())

    return call


def until(what: Callable[[], object], describe: Callable[[], object], *, limit_s: float = 120.0) -> None:
    ends_s = time.monotonic() + limit_s
    while not what():
        assert time.monotonic() < ends_s, describe()
        time.sleep(0.3)


def asked(api: RealApi) -> list[str]:
    """Requests that nobody has answered yet."""
    annotations = api.get(TRAINING_RUN, TEAM, "demo")["metadata"].get("annotations") or {}
    return [name for name in annotations if name.startswith(names.REQUEST_PREFIX)]


def test_what_a_person_asks_is_answered_and_told_once(
    samite: Callable[..., SimpleNamespace], operator: OperatorProcess, world: PlayedWorld, api: RealApi, tmp_path: Path
):
    spec = tmp_path / "run.json"
    spec.write_text(json.dumps(training_run("demo", TEAM, uri=f"{world.store_uri}/demo")), encoding="utf-8")

    def status() -> dict[str, object]:
        return dict(json.loads(samite("status", "demo", "-o", "json").stdout))

    samite("submit", "-f", str(spec), "--wait=Running", "--timeout", "120")
    assert samite("status", "demo").stdout.startswith("demo   Running   stage 1/1 only")
    found = {item["name"]: item for item in json.loads(samite("doctor", "-o", "json").stdout)["items"]}
    assert found["operator"]["level"] == "ok"
    assert found["watch"]["found"].startswith("1 runs")

    samite("suspend", "demo", "--wait", "--timeout", "120")
    until(lambda: api.list(RAY_CLUSTER, TEAM).items == [], lambda: api.list(RAY_CLUSTER, TEAM).items)
    samite("resume", "demo", "--wait", "--timeout", "120")

    attempt = int(str(status()["attempt"]))
    samite("restart", "demo", "--level", "L2", "--yes")
    until(lambda: int(str(status()["attempt"])) > attempt and status()["phase"] == "Running", status)
    until(lambda: not asked(api), lambda: asked(api))

    before = {pod["metadata"]["uid"] for pod in api.list(POD, TEAM).items}
    assert "without grace" in samite("chaos", "kill-node", "demo").stderr
    until(lambda: status()["recoveries"] and status()["phase"] == "Running", status)
    assert {pod["metadata"]["uid"] for pod in api.list(POD, TEAM).items} - before

    samite("cancel", "demo", "--yes", "--wait", "--timeout", "120")
    operator.terminate()
    story = [item for item in json.loads(samite("events", "demo", "-o", "json").stdout)["items"] if "phase" in item["name"].lower()]
    assert [item["name"] for item in story if item["name"].startswith("kubernetes.")] == [], (
        "the operator's events are in storage, and told once"
    )
    reached = [item["attributes"]["samite.phase.to"] for item in story]
    assert [reached.index(phase) for phase in ("Running", "Suspended", "Cancelled")] == sorted(
        map(reached.index, ("Running", "Suspended", "Cancelled"))
    )
    assert max(Counter(item["time"] for item in story).values()) == 1
    assert samite("report", "demo", "-o", str(tmp_path / "report.html")).stdout.endswith("report.html\n")
    samite("delete", "demo", "--yes")
    assert "deletion is stuck: demo" in samite("doctor", code=13).stdout
    samite("doctor", "--fix-finalizers", "--yes")
    assert "none yet" in samite("status", "demo", code=5).stderr
