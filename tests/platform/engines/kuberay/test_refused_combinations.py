"""KubeRay's refused combinations, one by one: each is found before anything is applied, and says the way out."""

from copy import deepcopy
from typing import Any

import pytest

from samite.engines.kuberay.cluster import ray_cluster
from samite.engines.kuberay.features import Features
from samite.engines.kuberay.refusals import refused_cluster, refused_job
from samite.engines.kuberay.runtime import Runtime


@pytest.fixture
def cluster(run) -> dict[str, Any]:
    return ray_cluster(run, cluster_id="demo-s00-1f2e3", stage_index=0, replicas=2, gpus_per_node=0, runtime=Runtime(), features=Features())


def changed(document: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    found = deepcopy(document)
    *parents, last = path.split("/")
    place: Any = found
    for key in parents:
        place = place[int(key)] if isinstance(place, list) else place.setdefault(key, {})
    if value is None:
        del place[last]
    else:
        place[last] = value
    return found


def env(**variables: str) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in variables.items()]


HEAD_ENV = "spec/headGroupSpec/template/spec/containers/0/env"
FT = {"redisAddress": "redis:6379"}
V2 = {"enableInTreeAutoscaling": True, "autoscalerOptions": {"version": "v2"}}

CLUSTERS = {
    "name too long": ([("metadata/name", "a" * 54)], "metadata.name"),
    "name with capitals": ([("metadata/name", "Demo")], "metadata.name"),
    "no min replicas": ([("spec/workerGroupSpecs/0/minReplicas", None)], "spec.workerGroupSpecs[0]"),
    "resources twice": ([("spec/workerGroupSpecs/0/resources", {"CPU": "1"})], "spec.workerGroupSpecs[0].resources"),
    "labels in params": ([("spec/headGroupSpec/rayStartParams/labels", "a=b")], "spec.headGroupSpec.rayStartParams.labels"),
    "no container": ([("spec/headGroupSpec/template/spec/containers", [])], "spec.headGroupSpec.template.spec.containers"),
    "suspended group with autoscaler": (
        [("spec/enableInTreeAutoscaling", True), ("spec/workerGroupSpecs/0/suspend", True)],
        "spec.workerGroupSpecs[0].suspend",
    ),
    "token without version": ([("spec/authOptions", {"mode": "token"}), ("spec/rayVersion", None)], "spec.rayVersion"),
    "token with old Ray": ([("spec/authOptions", {"mode": "token"}), ("spec/rayVersion", "2.51.1")], "spec.authOptions.mode"),
    "delegated token with old Ray": (
        [("spec/authOptions", {"enableK8sTokenAuth": True}), ("spec/rayVersion", "2.54.0")],
        "spec.authOptions.enableK8sTokenAuth",
    ),
    "fault tolerance twice": (
        [("spec/gcsFaultToleranceOptions", FT), ("metadata/annotations", {"ray.io/ft-enabled": "true"})],
        "metadata.annotations[ray.io/ft-enabled]",
    ),
    "storage namespace twice": (
        [("spec/gcsFaultToleranceOptions", FT), ("metadata/annotations", {"ray.io/external-storage-namespace": "x"})],
        "metadata.annotations[ray.io/external-storage-namespace]",
    ),
    "redis password in params": (
        [("spec/gcsFaultToleranceOptions", FT), ("spec/headGroupSpec/rayStartParams/redis-password", "$PW")],
        "spec.headGroupSpec.rayStartParams",
    ),
    "redis password in env": (
        [("spec/gcsFaultToleranceOptions", FT), (HEAD_ENV, env(REDIS_PASSWORD="x"))],
        "spec.headGroupSpec.template",
    ),
    "redis address without options": ([(HEAD_ENV, env(RAY_REDIS_ADDRESS="redis:6379"))], "spec.headGroupSpec.template"),
    "redis user in env": ([(HEAD_ENV, env(REDIS_USERNAME="me"))], "spec.headGroupSpec"),
    "autoscaler v2 by env alone": ([(HEAD_ENV, env(RAY_enable_autoscaler_v2="1"))], "spec.headGroupSpec.template"),
    "autoscaler version twice": (
        [*[(f"spec/{key}", value) for key, value in V2.items()], (HEAD_ENV, env(RAY_enable_autoscaler_v2="1"))],
        "spec.autoscalerOptions.version",
    ),
    "autoscaler v2 with restarts": (
        [*[(f"spec/{key}", value) for key, value in V2.items()], ("spec/workerGroupSpecs/0/template/spec/restartPolicy", "Always")],
        "spec.workerGroupSpecs[0].template.spec.restartPolicy",
    ),
}


@pytest.mark.parametrize("name", CLUSTERS)
def test_a_refused_cluster_is_named_with_its_path(cluster, name: str):
    changes, path = CLUSTERS[name]
    for place, value in changes:
        cluster = changed(cluster, place, value)
    problems = refused_cluster(cluster)
    assert [problem.path for problem in problems] == [path]
    assert all(problem.wanted and problem.found and problem.hint for problem in problems)


def test_what_we_render_is_not_refused(cluster):
    assert refused_cluster(cluster) == []


def test_an_upgrade_strategy_is_refused_in_a_cluster_that_a_job_makes(cluster):
    job = {"metadata": {"name": "demo"}, "spec": {"rayClusterSpec": {**cluster["spec"], "upgradeStrategy": {"type": "None"}}}}
    assert [problem.path for problem in refused_job(job)] == ["spec.upgradeStrategy"]


def test_a_field_that_the_installed_crd_lacks_is_named(cluster, crd_17):
    features = Features.from_crd(crd_17)
    cluster["spec"]["tlsOption"] = {}
    assert [problem.path for problem in refused_cluster(cluster, features)] == ["spec.tlsOption"]


JOBS = {
    "retries on an existing cluster": ({"backoffLimit": 2, "clusterSelector": {"a": "b"}}, "spec.backoffLimit"),
    "retries by hand": ({"backoffLimit": 2, "submissionMode": "InteractiveMode"}, "spec.backoffLimit"),
    "suspended on an existing cluster": (
        {"suspend": True, "clusterSelector": {"a": "b"}, "shutdownAfterJobFinishes": True},
        "spec.suspend",
    ),
    "suspended without shutdown": ({"suspend": True}, "spec.suspend"),
    "time to live without shutdown": ({"ttlSecondsAfterFinished": 10}, "spec.ttlSecondsAfterFinished"),
    "rules and shutdown": (
        {"shutdownAfterJobFinishes": True, "deletionStrategy": {"deletionRules": [{"policy": "DeleteCluster"}]}},
        "spec.deletionStrategy.deletionRules",
    ),
    "rules and outcomes": (
        {"deletionStrategy": {"deletionRules": [{}], "onSuccess": {"policy": "DeleteCluster"}}},
        "spec.deletionStrategy",
    ),
    "sidecar with a submitter": ({"submissionMode": "SidecarMode", "submitterConfig": {"backoffLimit": 1}}, "spec.submitterConfig"),
}


@pytest.mark.parametrize("name", JOBS)
def test_a_refused_job_is_named_with_its_path(name: str):
    spec, path = JOBS[name]
    assert [problem.path for problem in refused_job({"metadata": {"name": "demo"}, "spec": spec})] == [path]


def test_a_sidecar_needs_a_head_that_is_never_restarted(cluster):
    inner = changed({"spec": cluster["spec"]}, "spec/headGroupSpec/template/spec/restartPolicy", "Always")["spec"]
    job = {"metadata": {"name": "demo"}, "spec": {"submissionMode": "SidecarMode", "rayClusterSpec": inner}}
    assert [problem.path for problem in refused_job(job)] == ["spec.rayClusterSpec.headGroupSpec.template.spec.restartPolicy"]


def test_kueue_takes_no_existing_cluster_and_at_most_seventeen_groups(cluster):
    queued = {"name": "demo", "labels": {"kueue.x-k8s.io/queue-name": "q"}}
    spec = {"clusterSelector": {"a": "b"}}
    assert [problem.path for problem in refused_job({"metadata": queued, "spec": spec})] == ["spec.clusterSelector"]
    group = cluster["spec"]["workerGroupSpecs"][0]
    inner = {**cluster["spec"], "workerGroupSpecs": [{**group, "groupName": f"g{index}"} for index in range(18)]}
    problems = refused_job({"metadata": queued, "spec": {"rayClusterSpec": inner}})
    assert [problem.path for problem in problems] == ["spec.rayClusterSpec.workerGroupSpecs"]


def test_a_job_name_is_shorter_than_a_cluster_name():
    assert refused_job({"metadata": {"name": "a" * 47}, "spec": {}}) == []
    assert [problem.path for problem in refused_job({"metadata": {"name": "a" * 48}, "spec": {}})] == ["metadata.name"]
