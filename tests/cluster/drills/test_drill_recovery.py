"""One run, and everything that it must recover from: driver, head, network, power, notice, kills inside a save. Each costs one recovery that resumes
from a committed checkpoint; the next drill begins when two checkpoints more are committed.

Two workers and a spare on three nodes; node 1 has the operators and Ray's head, so the nodes that die are 2 and 3.
"""

import contextlib
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from box.waiting import until
from drill_world import World
from drilled_run import Drilled, say, signal_in

from samite.checkpoint import Catalog, State
from samite.checkpoint.layout import checkpoint_prefix

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(590)]


@pytest.fixture(scope="module")
def trained(world: World) -> Iterator[Drilled]:
    """Two ranks and a spare."""
    run = world.submit("hurt", nodes={"spares": 1, "excludeBlamed": False})
    run.wait_training(limit_s=420)
    yield run
    world.clear()
    assert world.refused() == []


@pytest.fixture
def run(trained: Drilled) -> Drilled:
    """Training, with two more checkpoints than at the last failure, and all three workers there."""
    trained.wait_phase("Running", limit_s=200)
    now = trained.step()
    until(lambda: trained.report().checkpoint_step >= now + 10, "two more checkpoints", limit_s=120, every_s=1)
    until(lambda: sum(ready(pod) for pod in trained.pods("worker")) == 3, "three workers", limit_s=200, every_s=1)
    return trained


def half_written(world: World, run: Drilled, *, before_attempt: int = 1 << 30) -> list[str]:
    """Checkpoints without a manifest that hold something, of attempts before that one. (A folder that is left of a deleted one holds nothing.)"""
    store = world.store(run.name)
    unfinished = [one for one in Catalog(store).list() if one.state in {State.WRITING, State.ABORTED} and one.epoch < before_attempt]
    return [one.checkpoint_id for one in unfinished if [*store.list(checkpoint_prefix(one.checkpoint_id))]]


def ready(pod: dict[str, Any]) -> bool:
    conditions = pod.get("status", {}).get("conditions") or ()
    return "deletionTimestamp" not in pod["metadata"] and any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def victim(run: Drilled) -> tuple[int, str]:
    """A node other than the first that trains, and its pod."""
    for rank in (1, 0):
        number = run.machine_of_rank(rank)
        if number != 1:
            (pod,) = {sign.heartbeat.node for sign in run.report().signs if sign.heartbeat.rank == rank}
            return number, pod
    raise AssertionError("both ranks train on node 1: the workers were not spread")


def ask_for(run: Drilled, **fault: object) -> None:
    """A fault of a rank, the way of every control document: through the Lease."""
    lease = f"{run.name}-heartbeat"
    known = json.loads(run.world.inside.get("lease", lease)["metadata"]["annotations"].get("samite.dev/control") or "{}")
    faults = (known.get("faults.json") or {}).get("faults", [])
    known["faults.json"] = {"faults": [*faults, {"id": f"drill-{time.time_ns()}", **fault}]}
    patch = {"metadata": {"annotations": {"samite.dev/control": json.dumps(known)}}}
    run.world.inside("patch", "lease", lease, "--type=merge", "-p", json.dumps(patch))


def test_drill_7_a_killed_driver_gets_one_new_attempt(run: Drilled, world: World):
    before, head = run.status(), run.head()["metadata"]["name"]
    with run.recovers(levels={2}, failure_class="infra"):
        killed = signal_in(world.inside, head, r"samite_workloads\.entrypoint", "SIGKILL")
        say(f"killed: {killed}")
    after = run.status()
    assert after["attempt"] == before["attempt"] + 1
    assert after["clusterId"] == before["clusterId"]


@pytest.mark.parametrize("point", ["checkpoint.shard", "checkpoint.commit"])
def test_drill_18_a_rank_killed_while_it_saves_leaves_no_partial_checkpoint_that_counts(run: Drilled, world: World, point: str):
    """In the middle of the shards, and between shards and manifest."""
    saved = run.report().checkpoint_step
    with run.recovers(levels={1, 2}, failure_class="infra"):
        ask_for(run, kind="kill", rank=0, point=point, step=run.step())
    until(lambda: run.report().checkpoint_step > saved + 10, "a newer checkpoint", limit_s=90)
    torn = half_written(world, run)
    say(f"after a kill at {point}: half written {torn}; chosen {run.report().checkpoint_id}")
    assert run.report().checkpoint_id not in torn
    say(world.samite("checkpoints", "verify", run.name).strip())


def test_drill_10_a_node_without_network_is_replaced_on_two_facts_and_its_old_attempt_is_fenced(run: Drilled, world: World):
    number, pod = victim(run)
    before = run.status()
    with run.recovers(levels={2}, failure_class="infra"), mended(world, number):
        world.cluster.node(number).partition()
        until(
            lambda: pod not in {one["metadata"]["name"] for one in run.pods()},
            "the pod of the lost node to be deleted by force",
            limit_s=120,
        )
        assert not world.cluster.is_ready(number)
        until(lambda: run.status()["attempt"] > before["attempt"], "the next attempt", limit_s=120)
    assert {sign.heartbeat.submission_id for sign in run.report().signs} == {run.status()["submissionId"]}
    now = run.status()["attempt"]
    until(
        lambda: not half_written(world, run, before_attempt=now), "what earlier attempts left half written to be cleared away", limit_s=90
    )
    events = world.samite("events", run.name)
    say("\n".join(line for line in events.splitlines() if "node" in line.lower())[-1500:])


def test_a_node_dies_while_kuberay_is_down_and_the_spare_takes_its_place(run: Drilled, world: World):
    number, _ = victim(run)
    deployment = ("-n", "kuberay-system", "scale", "deployment/kuberay-operator")
    with contextlib.ExitStack() as stack:
        stack.callback(world.cluster.start_node, number)
        stack.callback(world.kubectl, *deployment, "--replicas=1")
        world.kubectl(*deployment, "--replicas=0")
        until(lambda: not world.kubectl.within("kuberay-system").items("pods"), "KubeRay to be gone", limit_s=60)
        with run.recovers(levels={2}, failure_class="infra"):
            began_s = time.monotonic()
            world.cluster.node(number).kill()
            until(lambda: run.phase() == "Recovering", "the loss to be noticed", limit_s=60)
            say(f"noticed {time.monotonic() - began_s:.0f} s after the power cut")
        assert run.condition("Degraded")["status"] == "True"
    until(lambda: sum(ready(pod) for pod in run.pods("worker")) == 3, "the third worker, made by KubeRay once it was back", limit_s=180)


def test_drill_8_a_killed_head_without_fault_tolerance_costs_a_new_cluster(run: Drilled, world: World):
    before = run.status()
    with run.recovers(levels={3}, failure_class="infra", limit_s=400):
        world.samite("chaos", "kill-head", run.name)
    after = run.status()
    assert after["clusterId"] != before["clusterId"]
    assert after["attempt"] == before["attempt"] + 1


def test_drill_25_a_notice_of_preemption_is_answered_by_an_early_save_and_costs_no_other_budget(run: Drilled, world: World):
    number, pod = victim(run)
    node, taint = f"node{number}", "cloud.google.com/impending-node-termination"
    with run.recovers(levels={2}, failure_class="preemption"):
        try:
            step = run.step()
            world.kubectl("taint", "node", node, f"{taint}=now:NoSchedule")
            until(lambda: run.report().checkpoint_step >= step and run.report().checkpoint_step % 10, "an early save", limit_s=30)
            say(f"notice at step {step}, saved at step {run.report().checkpoint_step} outside its interval")
            time.sleep(2)
            world.inside("delete", "pod", pod, "--grace-period=5", "--wait=false")
            until(lambda: run.phase() == "Recovering", "the loss to be noticed", limit_s=90)
        finally:
            world.kubectl("taint", "node", node, f"{taint}-", check=False)


@contextlib.contextmanager
def mended(world: World, number: int) -> Iterator[None]:
    """Whatever happens inside, the node has its network again afterwards."""
    try:
        yield
    finally:
        world.cluster.node(number).heal()
        world.cluster.wait_ready(number, limit_s=90)
