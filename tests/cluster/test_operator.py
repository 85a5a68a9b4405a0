"""The operator's own process, with kopf's watches, against a real API server: conditions, restarts, a second one, deletions.

Controllers, machines and Ray are played (`server_world`); no pod runs.
"""

import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from api_server import lone_api_server
from box.binaries import MissingToolError
from box.kubectl import Kubectl
from server_world import ServerApi, install_definitions, make_namespace

sys.path.insert(0, str(Path(__file__).parents[1] / "operators"))

from operator_process import OperatorProcess
from played_world import PlayedWorld, condition, training_run

from samite.cli.app import run as samite
from samite.engines.kuberay.api import EVENT, LEASE, POD, RAY_CLUSTER, TRAINING_RUN, Document, GoneApiError
from samite.engines.kuberay.api_client import RealApi, connect

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]
TEAM = "team-a"


@pytest.fixture(scope="module")
def lone_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubectl]:
    try:
        with lone_api_server(tmp_path_factory.mktemp("api-server")) as kubectl:
            api = connect(kubeconfig=str(kubectl.kubeconfig), timeout_s=20.0)
            install_definitions(api, kubectl.kubeconfig)
            for name in (TEAM, "samite-system"):
                make_namespace(api, name)
            yield kubectl
    except MissingToolError as error:
        pytest.skip(str(error))


@pytest.fixture
def api(lone_server: Kubectl) -> Iterator[RealApi]:
    found = connect(kubeconfig=str(lone_server.kubeconfig), timeout_s=20.0)
    yield found
    for run in found.list(TRAINING_RUN).items:
        metadata = run["metadata"]
        found.patch(TRAINING_RUN, metadata["namespace"], metadata["name"], {"metadata": {"finalizers": []}})
        found.delete(TRAINING_RUN, metadata["namespace"], metadata["name"])
    for kind in (RAY_CLUSTER, POD, LEASE, EVENT):
        for item in found.list(kind, TEAM).items:
            found.delete(kind, TEAM, item["metadata"]["name"], grace_s=0)
    for item in found.list(LEASE, "samite-system").items:
        found.delete(LEASE, "samite-system", item["metadata"]["name"])


@pytest.fixture
def world(api: RealApi, tmp_path: Path) -> Iterator[PlayedWorld]:
    (tmp_path / "checkpoints").mkdir()
    with PlayedWorld(ServerApi(api), tmp_path / "checkpoints") as found:
        yield found


@pytest.fixture
def start(lone_server: Kubectl, world: PlayedWorld, tmp_path: Path) -> Iterator[Callable[..., OperatorProcess]]:
    started: list[OperatorProcess] = []

    def make(identity: str = "operator-0", **settings: str) -> OperatorProcess:
        log = tmp_path / f"operator-{len(started)}.log"
        started.append(OperatorProcess(lone_server.kubeconfig, log, played_ray=world.dashboard_url, identity=identity, **settings))
        return started[-1]

    yield make
    for process in started:
        process.kill()


def until(what: Callable[[], Any], describe: Callable[[], Any], *, limit_s: float = 60.0) -> Any:
    ends_s = time.monotonic() + limit_s
    while not (found := what()):
        assert time.monotonic() < ends_s, describe()
        time.sleep(0.2)
    return found


def submit(api: RealApi, world: PlayedWorld, name: str = "demo", **spec: Any) -> Document:
    return api.create(TRAINING_RUN, TEAM, training_run(name, TEAM, uri=f"{world.store_uri}/{name}", **spec))


def phase(api: RealApi, name: str = "demo") -> str:
    return (api.get(TRAINING_RUN, TEAM, name).get("status") or {}).get("phase", "")


def wait_phase(api: RealApi, wanted: str, name: str = "demo", *, limit_s: float = 180.0) -> Document:
    until(lambda: phase(api, name) == wanted, lambda: api.get(TRAINING_RUN, TEAM, name).get("status"), limit_s=limit_s)
    return api.get(TRAINING_RUN, TEAM, name)


def is_gone(api: RealApi, name: str = "demo") -> bool:
    try:
        api.get(TRAINING_RUN, TEAM, name)
    except GoneApiError:
        return True
    return False


def test_a_run_is_looked_after_from_its_creation_to_its_deletion(api: RealApi, world: PlayedWorld, start: Any, lone_server: Kubectl):
    operator = start()
    submit(api, world)
    operator.wait_ready()
    run = wait_phase(api, "Running")
    assert run["metadata"]["finalizers"] == ["samite.dev/finalizer"]
    assert set(run["metadata"].get("annotations") or {}) == set()
    types = [item["type"] for item in run["status"]["conditions"]]
    assert {"Validated", "CapacityReady", "Progressing", "Failed"} <= set(types)
    assert all(item["lastTransitionTime"].endswith("Z") for item in run["status"]["conditions"])
    until(lambda: api.get(TRAINING_RUN, TEAM, "demo")["status"]["progress"]["step"] > 5, lambda: "no progress")
    assert condition(api.get(TRAINING_RUN, TEAM, "demo"), "Progressing")["status"] == "True"
    table = lone_server.within(TEAM)("get", "trun")
    assert table.split()[:10] == ["NAME", "PHASE", "STAGE", "CTX", "STEP", "DONE%", "ETTR", "RESTARTS", "LASTCKPT", "NODES"]
    assert table.splitlines()[1].split()[:4] == ["demo", "Running", "only", "128"]
    described = lone_server.within(TEAM)("describe", "trun", "demo")
    assert "RunPhaseChanged" in described
    assert "Starting -> Running" in described
    api.delete(TRAINING_RUN, TEAM, "demo")
    until(lambda: is_gone(api), lambda: api.get(TRAINING_RUN, TEAM, "demo"))
    assert api.list(RAY_CLUSTER, TEAM).items == []
    assert world.running() == []
    assert operator.probe("/healthz")[0] == 200
    assert operator.terminate() == 0
    holder = api.get(LEASE, "samite-system", "samite-operator")["spec"].get("holderIdentity", "")
    assert holder == ""


def test_an_operator_that_is_killed_thirty_times_makes_one_cluster_and_one_submission(api: RealApi, world: PlayedWorld, start: Any):
    dice = random.Random(7)
    submit(api, world)
    clusters, submissions = set(), set()
    for _ in range(30):
        operator = start()
        time.sleep(dice.uniform(1.0, 5.0))
        operator.kill()
        clusters |= {item["metadata"]["uid"] for item in api.list(RAY_CLUSTER, TEAM).items}
        submissions |= set(world.training.submitted)
        assert len(world.running()) <= 1
    start().wait_ready()
    wait_phase(api, "Running")
    clusters |= {item["metadata"]["uid"] for item in api.list(RAY_CLUSTER, TEAM).items}
    assert len(clusters) == 1
    assert set(world.training.submitted) == {"demo-s00-a1"}
    assert len(world.training.submitted) == 1


def test_a_restarted_operator_changes_nothing_that_runs(api: RealApi, world: PlayedWorld, start: Any):
    operator = start()
    submit(api, world)
    wait_phase(api, "Running")
    pods = {item["metadata"]["uid"] for item in api.list(POD, TEAM).items}
    cluster = api.list(RAY_CLUSTER, TEAM).items[0]
    assert operator.terminate() == 0
    again = start("operator-1")
    again.wait_ready()
    step = api.get(TRAINING_RUN, TEAM, "demo")["status"]["progress"]["step"]
    until(lambda: api.get(TRAINING_RUN, TEAM, "demo")["status"]["progress"]["step"] > step + 10, lambda: "no progress")
    assert {item["metadata"]["uid"] for item in api.list(POD, TEAM).items} == pods
    (now,) = api.list(RAY_CLUSTER, TEAM).items
    assert (now["metadata"]["uid"], now["metadata"]["generation"]) == (cluster["metadata"]["uid"], cluster["metadata"]["generation"])
    assert world.training.submitted == ["demo-s00-a1"]
    assert phase(api) == "Running"


def test_a_second_operator_waits_and_takes_over_when_the_first_is_gone(api: RealApi, world: PlayedWorld, start: Any):
    first = start("operator-a")
    first.wait_ready()
    second = start("operator-b")
    until(lambda: "held by operator-a" in str(second.probe("/readyz")), lambda: second.log.read_text()[-2000:])
    assert second.probe("/readyz")[0] == 503
    assert second.probe("/healthz")[0] == 200
    first.kill()
    killed_s = time.monotonic()
    second.wait_ready(limit_s=60)
    print(f"the second was ready {time.monotonic() - killed_s:.1f} s after the first was killed; the Lease lasts 6 s")
    assert time.monotonic() - killed_s > 2.0
    submit(api, world)
    wait_phase(api, "Running")


def test_a_spec_that_the_server_lets_through_is_failed_and_no_crash_loop(api: RealApi, world: PlayedWorld, start: Any):
    operator = start()
    operator.wait_ready()
    document = training_run("demo", TEAM, uri=f"{world.store_uri}/demo")
    document["spec"]["stages"][0]["kind"] = "SFT"  # right in itself, and not in this version
    api.create(TRAINING_RUN, TEAM, document)
    run = wait_phase(api, "Failed", limit_s=60)
    assert run["status"]["reason"] == "ValidationFailed"
    assert "spec.stages[0].kind" in condition(run, "Validated")["message"]
    assert operator.process.poll() is None
    assert operator.probe("/healthz")[0] == 200


def test_a_lost_machine_is_replaced_under_a_real_server(api: RealApi, world: PlayedWorld, start: Any):
    start().wait_ready()
    for machine in world.kuberay.machines.values():
        machine.slots = 1
    submit(api, world, nodes={"spares": 1})
    wait_phase(api, "Running")
    until(lambda: world.training.jobs["demo-s00-a1"].step > 55, lambda: "no checkpoint")
    with world.lock:
        machine = world.training.jobs["demo-s00-a1"].ranks[1]["spec"]["nodeName"]
        world.kuberay.cut_power(machine)
    cut_s = time.monotonic()
    until(lambda: "demo-s00-a2" in world.running(), lambda: api.get(TRAINING_RUN, TEAM, "demo")["status"], limit_s=90)
    print(f"second attempt {time.monotonic() - cut_s:.1f} s after the power cut, {world.tick_s} s a virtual second")
    run = wait_phase(api, "Running")
    assert run["status"]["restarts"] == {"infra": 1}
    assert run["status"]["recoveries"] or run["status"]["attempt"] == 2


def test_a_status_field_that_an_older_definition_drops_is_named_and_the_run_trains(
    api: RealApi, world: PlayedWorld, start: Any, lone_server: Kubectl
):
    """Scenario S21: an operator of the next version on the definitions of this one."""
    kubectl, name = lone_server, "trainingruns.samite.dev"
    older = kubectl.get("crd", name)
    for key in ("managedFields", "resourceVersion", "uid", "creationTimestamp", "generation"):
        older["metadata"].pop(key, None)
    older.pop("status", None)
    known = older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
    del known["ettr"]
    kubectl("replace", "-f", "-", stdin=json.dumps(older))
    try:
        start().wait_ready()
        submit(api, world)
        wait_phase(api, "Running")
        found = until(
            lambda: condition(api.get(TRAINING_RUN, TEAM, "demo"), "Applied").get("message", ""), lambda: "no condition", limit_s=30
        )
        assert "status.ettr" in found
        assert "samite crds diff" in found
        until(lambda: api.get(TRAINING_RUN, TEAM, "demo")["status"]["progress"]["step"] > 5, lambda: "no progress")
        before = api.get(TRAINING_RUN, TEAM, "demo")
        time.sleep(20.0)
        after = api.get(TRAINING_RUN, TEAM, "demo")
        assert condition(after, "Applied")["lastTransitionTime"] == condition(before, "Applied")["lastTransitionTime"], "no flapping"
        assert "ettr" not in after["status"]
    finally:
        assert samite(["--kubeconfig", str(kubectl.kubeconfig), "crds", "apply", "--force-conflicts"]) == 0


def test_a_missing_right_is_said_in_a_condition(api: RealApi, world: PlayedWorld, start: Any, lone_server: Kubectl, tmp_path: Path):
    """An operator that may do everything but make RayClusters."""
    kubectl = lone_server
    kubectl("create", "serviceaccount", "narrow", "-n", "samite-system")
    rules = [
        {"apiGroups": ["samite.dev"], "resources": ["*"], "verbs": ["*"]},
        {"apiGroups": ["ray.io"], "resources": ["rayclusters"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": [""], "resources": ["pods", "events", "secrets", "serviceaccounts", "nodes"], "verbs": ["*"]},
        {"apiGroups": ["coordination.k8s.io", "rbac.authorization.k8s.io"], "resources": ["*"], "verbs": ["*"]},
        {"apiGroups": ["apiextensions.k8s.io"], "resources": ["customresourcedefinitions"], "verbs": ["get"]},
    ]
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "narrow"}, "rules": rules}
    kubectl.apply(role)
    kubectl("create", "clusterrolebinding", "narrow", "--clusterrole=narrow", "--serviceaccount=samite-system:narrow")
    token = kubectl("create", "token", "narrow", "-n", "samite-system").strip()
    text = Path(kubectl.kubeconfig).read_text()
    document = json.loads(text)
    document["users"][0]["user"] = {"token": token}
    narrow = tmp_path / "narrow.json"
    narrow.write_text(json.dumps(document))
    log = tmp_path / "narrow.log"
    with OperatorProcess(narrow, log, played_ray=world.dashboard_url) as operator:
        submit(api, world)
        operator.wait_ready()
        until(
            lambda: condition(api.get(TRAINING_RUN, TEAM, "demo"), "Permitted").get("status") == "False",
            lambda: (api.get(TRAINING_RUN, TEAM, "demo").get("status"), log.read_text()[-2000:]),
            limit_s=80,
        )
        message = condition(api.get(TRAINING_RUN, TEAM, "demo"), "Permitted")["message"]
        assert "patch rayclusters" in message
        reasons = [item["reason"] for item in api.list(EVENT, TEAM).items]
        assert "OperatorPermissionMissing" in reasons
        assert operator.process.poll() is None
