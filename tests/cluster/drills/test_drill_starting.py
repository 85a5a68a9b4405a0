"""Drills 24 and 27: runs that cannot start say why within two minutes, and what is left when a namespace or the operator goes first."""

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from box.waiting import until
from drill_world import SECRET, World
from drilled_run import say

from samite.engines.kuberay.api import POD, GoneApiError

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(590)]
LIMIT_S = 120.0


@pytest.fixture(autouse=True)
def cleared(world: World) -> Iterator[None]:
    yield
    world.clear()


def held(world: World, name: str, **options: object) -> dict:
    """The status of a run that is held; the seconds from the reason to the hold are the engine's own 60."""
    run = world.submit(name, **options)
    if "image" in options:  # a node without a way out takes up to a minute to find out that it cannot pull
        until(lambda: any(unpulled(pod) for pod in run.pods()), "the kubelet to say so", limit_s=120)
    began_s = time.monotonic()
    run.wait_phase("Held", limit_s=LIMIT_S)
    say(f"{name} is Held {time.monotonic() - began_s:.0f} s after it was submitted, or its image was refused: {run.status()['message']}")
    assert run.status()["reason"] == "CannotStart"
    assert run.status()["restarts"] == {}
    return run.status()


def test_drill_24_an_image_that_cannot_be_pulled_holds_the_run_with_its_name(world: World):
    image = "ghcr.io/samite-dev/worker:no-such-version"
    status = held(world, "unpulled", image=image)
    assert status["message"] == f"image {image} cannot be pulled"
    assert "RunHeld" in world.runs[0].reasons()
    shown = world.samite("status", "unpulled")
    assert image in shown


def test_drill_24_a_request_that_no_node_can_give_holds_the_run_with_the_scheduler_s_words(world: World):
    runtime = {"apiVersion": "samite.dev/v1alpha1", "kind": "TrainingRuntime", "metadata": {"name": "huge"}}
    world.inside.apply(runtime | {"spec": {"head": {"cpu": "100m", "memory": "2Gi"}, "worker": {"cpu": "64", "memory": "2Gi"}}})
    status = held(world, "huge", runtimeRef={"kind": "TrainingRuntime", "name": "huge"})
    assert "no Kubernetes node fits a worker pod" in status["message"]
    assert "Insufficient cpu" in status["message"]


def test_drill_24_a_quota_that_has_no_room_holds_the_run_with_kuberay_s_words(world: World):
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "tight"}, "spec": {"hard": {"pods": "1"}}}
    world.inside.apply(quota)
    try:
        until(lambda: world.inside.get("resourcequota", "tight").get("status", {}).get("hard"), "the quota to be in force", limit_s=60)
        assert "exceeded quota" in held(world, "tight")["message"]
    finally:
        world.inside("delete", "resourcequota", "tight")


def test_drill_27_training_outlives_an_operator_that_is_uninstalled_and_doctor_frees_a_run_that_nobody_clears_away(world: World):
    run = world.submit("orphaned")
    run.wait_training(limit_s=420)
    uids, step = {pod["metadata"]["uid"] for pod in run.pods()}, run.step()
    try:
        world.helm("uninstall", "samite", f"--namespace={world.home}", "--wait")
        until(lambda: not world.api.list(POD, world.home), "the operator to be gone", limit_s=60)
        run.wait_step(step + 20, limit_s=90)
        assert {pod["metadata"]["uid"] for pod in run.pods()} == uids
        assert "operator" in world.samite("doctor", code=13)
        world.inside("delete", "trainingrun", run.name, "--wait=false")
        assert run.object()["metadata"]["deletionTimestamp"]
        began_s = time.monotonic()
        said = world.samite("doctor", "--fix-finalizers", "--yes", code=None)
        say("\n".join(line for line in said.splitlines() if "finalizer" in line.lower() or run.name in line))
        until(lambda: gone(run.object), "the run to be gone", limit_s=60)
        until(lambda: not run.clusters() and not run.pods(), "cluster and pods to be collected", limit_s=120)
        say(f"run, cluster and pods gone {time.monotonic() - began_s:.0f} s after doctor")
    finally:
        world.install()
        world.forgive()


def test_drill_27_a_namespace_that_is_deleted_while_its_run_trains_is_gone_in_five_minutes(world: World):
    doomed = replace(world, team=f"{world.team}-doomed", runs=[])
    world.kubectl("create", "namespace", doomed.team)
    world.kubectl("label", "namespace", doomed.team, "pod-security.kubernetes.io/enforce=restricted")
    doomed.inside.apply(world.s3.secret(SECRET))
    both = f"--set=scope.namespaces={{{world.team},{doomed.team}}}"
    doomed.values = (*world.values, both)
    doomed.install()
    try:
        doomed.submit("doomed").wait_training(limit_s=420)
        began_s = time.monotonic()
        world.kubectl("delete", "namespace", doomed.team, "--timeout=300s", limit_s=310)
        say(f"the namespace was gone {time.monotonic() - began_s:.0f} s after its deletion, while its run trained")
    finally:
        world.kubectl("delete", "namespace", doomed.team, "--ignore-not-found", "--wait=false")
        world.install()
    operator = world.operator()
    assert operator["status"]["containerStatuses"][0]["ready"]
    assert world.refused() == []


def unpulled(pod: dict[str, Any]) -> bool:
    containers = [*(pod["status"].get("initContainerStatuses") or ()), *(pod["status"].get("containerStatuses") or ())]
    return any((one["state"].get("waiting") or {}).get("reason") in {"ErrImagePull", "ImagePullBackOff"} for one in containers)


def gone(look) -> bool:
    try:
        look()
    except GoneApiError:
        return True
    return False
