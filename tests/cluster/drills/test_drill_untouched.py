"""One run, and everything that must leave it alone: a node that flaps, a dashboard or an API server that is away, forgotten history,
new keys, a new operator and new definitions. Same pods, same submission, no restart, and steps go on.

Of the waits, drill 12's 10 minutes are 90 s here: no limit of the product depends on how long a dashboard is silent (the simulated drill waits them).
"""

import json
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from box import object_store
from box.waiting import until
from drill_world import CHART, CRDS, SECRET, World
from drilled_run import Drilled, say, signal_in

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(500)]


@pytest.fixture(scope="module")
def trained(world: World) -> Iterator[Drilled]:
    """Three ranks, one on each node."""
    run = world.submit("steady", workers=(3, 3))
    run.wait_training(limit_s=420)
    yield run
    world.clear()
    assert world.refused() == []


@pytest.fixture
def keys_put_back(world: World) -> Iterator[None]:
    """Other tests use the same server, with the keys that it began with."""
    first = world.s3
    yield
    world.s3 = object_store.with_other_keys(world.cluster, world.s3, access_key=first.access_key, secret_key=first.secret_key)
    world.inside.apply(world.s3.secret(SECRET))


@pytest.fixture
def run(trained: Drilled) -> Drilled:
    """The run as the last test left it: training."""
    trained.wait_phase("Running", limit_s=120)
    return trained


def test_drill_11_a_node_that_is_not_ready_for_20_s_is_left_alone(run: Drilled, world: World):
    number = next(run.machine_of_rank(rank) for rank in range(3) if run.machine_of_rank(rank) == 2)
    with run.untouched():
        world.cluster.node(number).pause_kubelet(paused=True)
        try:
            world.cluster.wait_not_ready(number, limit_s=40)
            began_step = run.step()
            time.sleep(20)
        finally:
            world.cluster.node(number).pause_kubelet(paused=False)
        assert run.step() > began_step, "training stood still although only a kubelet was silent"
        world.cluster.wait_ready(number, limit_s=60)
    assert world.cluster.is_ready(number)


def test_drill_12_a_silent_dashboard_is_no_lost_job_and_the_conditions_say_what_is_unknown(run: Drilled, world: World):
    head = run.head()["metadata"]["name"]
    with run.untouched(limit_s=120):
        said = signal_in(world.inside, head, r"dashboard/dashboard\.py|ray-dashboard|ray::Dashboard", "SIGSTOP")
        say(f"stopped: {said}")
        try:
            began_step = run.step()
            until(lambda: run.condition("Progressing").get("reason") == "HeartbeatOnly", "the silence in a condition", limit_s=60)
            assert run.condition("CapacityReady")["status"] == "Unknown"
            time.sleep(90)
            assert run.step() > began_step + 10
            assert run.phase() == "Running"
        finally:
            signal_in(world.inside, head, r"dashboard/dashboard\.py|ray-dashboard|ray::Dashboard", "SIGCONT")
        until(lambda: run.condition("Progressing").get("reason") == "Heartbeat", "the dashboard to be heard again", limit_s=60)


def test_an_api_server_that_is_down_for_60_s_costs_no_training(run: Drilled, world: World):
    operator = world.operator()["metadata"]["uid"]
    began_step = run.step()
    with run.untouched(steps=10, limit_s=120):
        took_s = world.cluster.restart_api_server(down_for_s=60)
        now = run.step()
        say(f"API server back {took_s:.0f} s after its start; step {began_step} before, {now} after")
    until(lambda: run.status()["progress"]["step"] > began_step + 40, "the operator to report what was trained meanwhile", limit_s=120)
    assert world.operator()["metadata"]["uid"] == operator


@contextmanager
def every_request_refused(world: World) -> Iterator[None]:
    """The API server's own flow control answers each request of the operator with 429 Too Many Requests."""
    api, name = "flowcontrol.apiserver.k8s.io/v1", "drill-13"
    level = {"nominalConcurrencyShares": 0, "borrowingLimitPercent": 0, "lendablePercent": 0, "limitResponse": {"type": "Reject"}}
    whom = {"kind": "ServiceAccount", "serviceAccount": {"name": "samite-operator", "namespace": world.home}}
    everything = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"], "clusterScope": True}
    schema = {
        "priorityLevelConfiguration": {"name": name},
        "matchingPrecedence": 50,
        "rules": [{"subjects": [whom], "resourceRules": [everything], "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}]}],
    }
    kinds = {"PriorityLevelConfiguration": {"type": "Limited", "limited": level}, "FlowSchema": schema}
    world.kubectl.apply(*({"apiVersion": api, "kind": kind, "metadata": {"name": name}, "spec": spec} for kind, spec in kinds.items()))
    try:
        yield
    finally:
        world.kubectl("delete", "flowschema,prioritylevelconfiguration", name)


def answers_429(world: World) -> int:
    """Requests of the operator that were answered so, up to now."""
    account = f"system:serviceaccount:{world.home}:samite-operator"
    return sum(
        event["user"].get("username") == account and event.get("responseStatus", {}).get("code") == 429 for event in world.cluster.audit()
    )


def test_drill_13_an_api_server_that_answers_429_for_minutes_costs_no_training_and_is_not_stormed(run: Drilled, world: World):
    operator = world.operator()["metadata"]["uid"]
    began_step, before = run.step(), answers_429(world)
    with run.untouched(steps=10, limit_s=120):
        with every_request_refused(world):
            until(lambda: answers_429(world) > before + 3, "the operator to be refused", limit_s=60)
            time.sleep(120)
            refused = answers_429(world) - before
            assert run.step() > began_step + 30, "training stood still although only the operator was refused"
        say(f"{refused} requests answered with 429 in two minutes")
        # One run, one operator: a few turns, listings, watches and renewals of the Lease, each backing off.
        assert refused < 600
    until(lambda: run.status()["progress"]["step"] > began_step + 60, "the operator to report what was trained meanwhile", limit_s=180)
    assert world.operator()["metadata"]["uid"] == operator


def test_forgotten_history_410_begins_the_watches_anew(run: Drilled, world: World):
    with run.untouched(limit_s=120):
        world.cluster.control_plane.stop_api_server()
        revision = world.cluster.control_plane.compact_etcd()
        world.cluster.control_plane.start_api_server(wait=False)
        world.cluster.control_plane.wait_until_ready(limit_s=60)
        world.cluster.control_plane.start_controllers()
        say(f"etcd forgot everything before revision {revision}")
    # A wish proves that the operator's watch of runs tells again.
    request = {
        "metadata": {"annotations": {"samite.dev/request-410": json.dumps({"verb": "uncordon", "argument": "node9", "by": "drill"})}}
    }
    world.inside("patch", "trainingrun", run.name, "--type=merge", "-p", json.dumps(request))
    gone = lambda: "samite.dev/request-410" not in (run.object()["metadata"].get("annotations") or {})  # noqa: E731
    say(f"a wish was answered {until(gone, 'the wish to be answered', limit_s=60):.1f} s later")


@pytest.mark.usefixtures("keys_put_back")
def test_drill_22_a_rotated_secret_is_taken_up_without_a_restart(run: Drilled, world: World):
    old = world.s3
    saved = run.report().checkpoint_step
    with run.untouched(limit_s=120):
        world.s3 = object_store.with_other_keys(world.cluster, old, access_key="second-key", secret_key="second-secret")
        world.inside.apply(world.s3.secret(SECRET))
        began_s = time.monotonic()
        until(lambda: run.report().checkpoint_step > saved + 10, "a checkpoint with the new keys", limit_s=240, every_s=1)
        say(f"first commit with the new keys {time.monotonic() - began_s:.0f} s after the Secret changed")
        until(lambda: run.condition("CheckpointHealthy").get("status") == "True", "the operator to see it with the new keys", limit_s=90)


def test_drill_28_definitions_and_operator_are_upgraded_under_a_run(run: Drilled, world: World, tmp_path: Path):
    """First to a chart whose definitions differ in a description, then back to ours: the same pods all along."""
    other = tmp_path / "samite"
    shutil.copytree(CHART, other)
    file = other / "templates" / "crd" / "trainingruns.yaml"
    text = file.read_text(encoding="utf-8")
    changed = re.sub(r"description: (\S)", r"description: Changed. \1", text, count=1)
    assert changed != text
    file.write_text(changed, encoding="utf-8")
    before = {name: world.kubectl.get("crd", name)["metadata"] for name in CRDS}
    operator = world.operator()["metadata"]["uid"]
    values = world.values
    with run.untouched(limit_s=120):
        world.values = (*values, "--set=operator.progressSeconds=5")
        world.install(other)
        assert world.operator()["metadata"]["uid"] != operator
        assert world.kubectl.get("crd", CRDS[2])["metadata"]["generation"] > before[CRDS[2]]["generation"]
    with run.untouched(limit_s=120):
        world.values = values
        world.install()
    after = {name: world.kubectl.get("crd", name)["metadata"] for name in CRDS}
    assert {name: item["uid"] for name, item in after.items()} == {name: item["uid"] for name, item in before.items()}
