"""Drill 30: a gate that fails holds the run with its number, and opens by the word of somebody who did not submit it."""

import json
import time
from collections.abc import Iterator

import pytest
from box.kubectl import KubectlError
from drill_world import World
from drilled_run import Drilled, say

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(590)]


@pytest.fixture(autouse=True)
def cleared(world: World) -> Iterator[None]:
    yield
    world.clear()


def test_drill_30_a_failed_gate_holds_and_only_somebody_else_may_let_it_pass(world: World):
    """Alice submits, and may not approve: by the right that she lacks, and as the submitter even with it. Bob may."""
    inside = world.inside
    inside("create", "rolebinding", "alice", "--clusterrole=samite-editor", "--user=alice")
    inside("create", "rolebinding", "bob", "--clusterrole=samite-approver", "--user=bob")
    inside("create", "rolebinding", "alice-too", "--clusterrole=samite-approver", "--user=alice")
    document = world.document("gated", steps=(12, 8))
    document["spec"]["stages"][0]["gate"] = {"checks": [{"metric": "loss", "op": "<=", "value": 0.001, "window": 5}]}
    inside("create", "-f", "-", "--as=alice", stdin=json.dumps(document))
    run = Drilled(world, "gated")
    world.runs.append(run)
    began_s = time.monotonic()
    run.wait_phase("Held", limit_s=420)
    status = run.status()
    say(f"Held {time.monotonic() - began_s:.0f} s after submission: {status['reason']}: {status['message']}")
    assert status["reason"] == "GateFailed"
    assert "loss" in status["message"]
    assert run.condition("GateBlocked")["status"] == "True"

    def approve(who: str) -> str:
        patch = {"spec": {"approvals": [{"stage": "stage-0", "by": who, "reason": "small models are like that"}]}}
        return inside("patch", "trainingrun", run.name, "--type=merge", "-p", json.dumps(patch), f"--as={who}")

    with pytest.raises(KubectlError) as refused:
        approve("alice")
    say(str(refused.value)[-300:])
    assert "someone else than the submitter, alice" in str(refused.value)
    assert run.phase() == "Held"
    approve("bob")
    run.wait_phase("Succeeded", limit_s=300)
    assert run.status()["restarts"] == {}
    assert world.refused() == []
