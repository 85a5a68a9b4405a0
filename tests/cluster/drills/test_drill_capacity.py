"""Drills 15 and 25: a node that fails again and again, and a quota that shrinks under a run."""

import time
from collections.abc import Iterator

import pytest
from box.waiting import until
from drill_world import World
from drilled_run import say

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(590)]


@pytest.fixture(autouse=True)
def cleared(world: World) -> Iterator[None]:
    yield
    world.clear()
    world.kubectl("delete", "nodeblames", "--all")
    assert world.refused() == []


def test_drill_15_a_machine_whose_rank_fails_again_and_again_is_left_and_its_blame_is_there_for_all(world: World):
    """In place twice; then its pod is exchanged, on another machine. The blame is an object of the cluster; a person excludes, and takes it back."""
    run = world.submit("blamed", nodes={"spares": 1})
    run.wait_training(limit_s=420)
    machine = run.machine_of_rank(1)
    for level in (1, 1, 2):
        rank = next(rank for rank in (0, 1) if run.machine_of_rank(rank) == machine)
        with run.recovers(levels={level}, failure_class="infra"):
            world.samite("chaos", "kill-rank", run.name, "--rank", str(rank))
        step = run.step()
        until(lambda step=step: run.report().checkpoint_step > step, "a checkpoint before the next", limit_s=60)
    assert machine not in {run.machine_of_rank(rank) for rank in (0, 1)}, "the same machine a fourth time"
    blame = world.kubectl.get("nodeblame", f"node{machine}")
    say(f"node{machine}: {blame['status']}")
    assert float(blame["status"]["strikes"]) == pytest.approx(1.5, abs=0.01)
    assert len(blame["status"]["evidence"]) == 3
    world.samite("nodes", "exclude", run.name, f"node{machine}")
    until(
        lambda: world.kubectl.get("nodeblame", f"node{machine}")["status"].get("quarantinedUntil"),
        "the exclusion, with its end",
        limit_s=60,
    )
    until(lambda: f"node{machine}" in (run.status().get("excludedNodes") or ()), "the run to say so", limit_s=30)
    world.samite("nodes", "uncordon", run.name, f"node{machine}")
    until(lambda: not run.status().get("excludedNodes"), "the run to trust it again", limit_s=60)


def test_drill_25_a_quota_that_shrinks_costs_one_preemption_and_the_run_goes_on_with_fewer_workers(world: World):
    run = world.submit("squeezed", workers=(1, 2))
    run.wait_training(limit_s=420)
    pod = next(sign.heartbeat.node for sign in run.report().signs if sign.heartbeat.rank == 1)
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "shrunk"}, "spec": {"hard": {"pods": "2"}}}
    world.inside.apply(quota)
    try:
        until(lambda: world.inside.get("resourcequota", "shrunk").get("status", {}).get("used"), "the quota to be in force", limit_s=60)
        began_s = time.monotonic()
        with run.recovers(levels={2, 3}, failure_class="preemption", limit_s=300):
            world.inside("delete", "pod", pod, "--grace-period=5", "--wait=false")
        assert run.report().num_ranks == 1
        assert run.condition("Degraded")["reason"] == "FewerWorkers"
        say(f"one worker goes on {time.monotonic() - began_s:.0f} s after the other was taken; KubeRay may make no third pod")
    finally:
        world.inside("delete", "resourcequota", "shrunk")
    until(
        lambda: len([one for one in run.pods("worker") if one["status"].get("phase") == "Running"]) == 2, "the second worker", limit_s=180
    )
    world.samite("restart", run.name, "--yes", code=None)
    until(lambda: run.report().num_ranks == 2, "both workers to train again", limit_s=200)
    assert run.status()["restarts"] == {"preemption": 1}
