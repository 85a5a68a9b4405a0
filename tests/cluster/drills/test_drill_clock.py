"""One node's clock is ten minutes ahead, for all that its containers can see: no false hang, no lost node, checkpoints as ever, and a recovery like others."""

import time
from collections.abc import Iterator

import pytest
from box.addresses import node_name
from drill_world import World
from drilled_run import Drilled, say

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(590)]
AHEAD_S, ODD = 600.0, 3
CLOCK = "import time; print(time.time())"


@pytest.fixture(scope="module")
def run(world: World) -> Iterator[Drilled]:
    """Three ranks, one on each node; what runs on node 3 lives ten minutes ahead."""
    world.cluster.set_clock(ODD, off_s=AHEAD_S)
    run = world.submit("early", workers=(3, 3))
    run.wait_training(limit_s=300)
    yield run
    world.clear()
    world.cluster.set_clock(ODD, off_s=0)
    assert world.refused() == []


def test_a_clock_ten_minutes_ahead_on_one_node_is_no_failure(run: Drilled, world: World):
    pods = {pod["spec"]["nodeName"]: pod["metadata"]["name"] for pod in run.pods("worker")}
    assert {run.machine_of_rank(rank) for rank in range(3)} == {1, 2, 3}
    off_s = {node: float(world.inside("exec", pod, "--", "python", "-c", CLOCK)) - time.time() for node, pod in pods.items()}
    say(f"clocks of the workers, seconds from true: {off_s}")
    assert off_s[node_name(ODD)] == pytest.approx(AHEAD_S, abs=30)
    assert off_s[node_name(2)] == pytest.approx(0, abs=30)
    saved = run.report().checkpoint_step
    with run.untouched(steps=25):
        pass
    assert run.report().checkpoint_step > saved
    assert run.status()["restarts"] == {}
    assert run.condition("Progressing")["status"] == "True"
    assert run.condition("Hung")["status"] == "False"


def test_a_rank_that_dies_there_is_recovered_from_like_any_other(run: Drilled, world: World):
    rank = next(rank for rank in range(3) if run.machine_of_rank(rank) == ODD)
    with run.recovers(levels={1}, failure_class="infra"):
        world.samite("chaos", "kill-rank", run.name, "--rank", str(rank))
