"""Drill 8 with fault tolerance: Ray's head dies and comes back with its state from a Redis; the cluster stays, the next attempt resumes in it."""

import shutil
from collections.abc import Iterator

import pytest
from box.waiting import until
from drill_world import SMALL, World
from drilled_run import Drilled, say

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(590)]
PORT = 6390


@pytest.fixture(scope="module")
def redis(world: World) -> Iterator[str]:
    """A Redis beside the control plane, which outlives every node; nothing of it is stored."""
    server = shutil.which("redis-server")
    if server is None:
        pytest.skip("a head with fault tolerance needs a Redis: apt-get install --no-install-recommends redis-server")
    folder = world.cluster.folders.run / "redis"
    folder.mkdir(exist_ok=True)
    words = [
        server,
        "--bind",
        "0.0.0.0",
        "--protected-mode",
        "no",
        "--port",
        str(PORT),
        "--save",
        "",
        "--appendonly",
        "no",
        "--dir",
        folder,
    ]
    world.cluster.start_in_hub("redis", words)
    yield f"{world.cluster.hub_address}:{PORT}"
    world.cluster.stop_in_hub("redis")


@pytest.fixture
def run(world: World, redis: str) -> Iterator[Drilled]:
    runtime = {"apiVersion": "samite.dev/v1alpha1", "kind": "TrainingRuntime", "metadata": {"name": "kept-head"}}
    world.inside.apply(runtime | {"spec": SMALL | {"headFaultTolerance": {"redisAddress": redis}}})
    run = world.submit("kept", runtimeRef={"kind": "TrainingRuntime", "name": "kept-head"})
    run.wait_training(limit_s=420)
    yield run
    world.clear()
    assert world.refused() == []


def test_drill_8_a_killed_head_with_fault_tolerance_is_recovered_from(run: Drilled, world: World):
    assert run.clusters()[0]["spec"]["gcsFaultToleranceOptions"]["redisAddress"]
    workers, head = {pod["metadata"]["uid"] for pod in run.pods("worker")}, run.head()["metadata"]["uid"]
    before = run.status()
    with run.recovers(levels={2, 3}, failure_class="infra", limit_s=400):
        world.samite("chaos", "kill-head", run.name)
        until(lambda: run.head()["metadata"]["uid"] != head, "another head", limit_s=200)
    after = run.status()
    assert after["attempt"] == before["attempt"] + 1
    kept = len(workers & {pod["metadata"]["uid"] for pod in run.pods("worker")})
    say(f"cluster {'kept' if after['clusterId'] == before['clusterId'] else 'replaced'}, {kept} of {len(workers)} worker pods kept")
