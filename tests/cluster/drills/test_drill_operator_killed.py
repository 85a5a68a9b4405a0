"""Drill 9: the operator dies at thirty random moments of one run, in whatever phase, by SIGKILL and by deletion of its pod in turns.

The run ends as an unbroken one: one cluster for both stages, and as many drivers in it as the operator
remembers submissions. The operator's Lease is 6 s here instead of 15.
"""

import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest
from box.waiting import until
from drill_world import World
from drilled_run import Drilled, say

from samite.engines.kuberay.api import POD, ApiError

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1500)]
KILLS = 30


def operators() -> list[int]:
    """Processes of operators that run in pods of the box."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if (
                folder.name.isdigit()
                and b"samite_operators" in (folder / "cmdline").read_bytes()
                and "kubepods" in (folder / "cgroup").read_text()
            ):
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def test_drill_9_an_operator_that_dies_thirty_times_makes_one_cluster_and_one_submission_of_each_stage(world: World):
    values = world.values
    world.values = (*values, "--set=operator.leaseSeconds=6")
    world.install()
    dice, struck = random.Random(9), Counter[str]()
    run = world.submit("watched", steps=(130, 90))
    clusters, submissions, attempts = set(), [], set()

    def look() -> None:
        status = run.status()
        clusters.update(item["metadata"]["uid"] for item in run.clusters())
        attempts.add((status.get("stageIndex"), status.get("attempt")))
        if (found := status.get("submissionId")) and found not in submissions:
            submissions.append(found)

    try:
        for kill in range(KILLS):
            pause_s = dice.uniform(0.5, 12.0)
            ends_s = time.monotonic() + pause_s
            while time.monotonic() < ends_s:
                look()
                time.sleep(0.5)
            phase = run.phase() or "Unseen"
            assert phase not in {"Succeeded", "Failed", "Held"}, f"{run.told()} after {kill} kills: the run is too short for thirty"
            struck[phase] += 1
            if kill % 2:
                strike_pod(world)
            else:
                strike_process(world)
        say(f"killed {KILLS} times, in these phases: {dict(struck)}")
        assert (len(clusters), drivers(run)) == (1, sorted(submissions)), "a cluster or a submission that nobody remembers"
        finish(run, look)
    finally:
        world.values = values
    status = run.status()
    say(f"{submissions}, clusters {len(clusters)}, attempts {sorted(attempts, key=str)}, restarts {status['restarts']}")
    # A machine that is starved may lose a Ray node on its own; nothing may be laid at the operator's door.
    assert set(status["restarts"]) <= {"infra"}
    assert len(submissions) == len(set(submissions))
    assert {name.rpartition("-a")[0] for name in submissions} == {"watched-s00", "watched-s01"}
    assert len(struck) >= 3
    assert world.refused() == []
    world.clear()
    world.install()


def drivers(run: Drilled) -> list[str]:
    """Submissions whose driver Ray's head has started, each once, by its logs."""
    names = run.world.inside("exec", run.head()["metadata"]["name"], "--", "sh", "-c", "ls /tmp/ray/session_latest/logs").split()
    return sorted(name.removeprefix("job-driver-").removesuffix(".log") for name in names if name.startswith("job-driver-"))


def finish(run: Drilled, look) -> None:
    def over() -> bool:
        look()
        return run.phase() in {"Succeeded", "Failed", "Held"}

    until(over, "the end of the run", limit_s=600, every_s=0.5)
    assert run.phase() == "Succeeded", run.told()


def strike_process(world: World) -> None:
    """SIGKILL; the kubelet starts the container again. Waits for one that runs, so that every kill hits."""
    until(operators, "an operator's process", limit_s=120)
    for pid in operators():
        os.kill(pid, signal.SIGKILL)
    assert world.home


def strike_pod(world: World) -> None:
    """The pod goes without grace, and another is made, which has to wait for the Lease."""
    until(operators, "an operator's process", limit_s=120)
    for pod in world.api.list(POD, world.home, labels={"app.kubernetes.io/component": "operator"}):
        try:
            world.api.delete(POD, world.home, pod["metadata"]["name"], grace_s=0)
        except ApiError:
            continue
