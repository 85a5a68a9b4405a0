"""Combinations that KubeRay accepts from the API server and then refuses in its controller: found before anything is applied. Pure.

KubeRay tells of them by an event or a status much later, while the run only seems to wait. Each problem says what was wanted, what was found and the
way out; paths are those of the RayCluster (or RayJob) document. Checked for everything that we render, so that a site's pod settings cannot smuggle
a refused combination in.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from samite.engines.kuberay.features import Features
from samite.errors import Problem

MAX_CLUSTER_NAME = 53
MAX_JOB_NAME = 47
MAX_KUEUE_GROUPS = 17
TOKEN_RAY_VERSION = (2, 52)
DELEGATED_TOKEN_RAY_VERSION = (2, 55)
_DNS_1035 = re.compile(r"^[a-z]([-a-z0-9]*[a-z0-9])?$")
_RESOURCE_PARAMS = ("num-cpus", "num-gpus", "memory", "resources")
_REDIS_ENVIRONMENT = ("RAY_REDIS_ADDRESS", "REDIS_PASSWORD")
_AUTOSCALER_V2 = "RAY_enable_autoscaler_v2"


def refused_cluster(cluster: Mapping[str, Any], features: Features | None = None, *, owned_by_job: bool = False) -> list[Problem]:
    """Everything about a RayCluster that KubeRay would refuse; empty if it is fine. `features`: what is installed, if known."""
    spec = cluster.get("spec") or {}
    found = [
        *_name(cluster, MAX_CLUSTER_NAME),
        *_groups(spec),
        *_tokens(spec, delegated_allowed=not owned_by_job),
        *_fault_tolerance(cluster),
        *_autoscaler(spec),
        *_upgrade(spec, owned_by_job=owned_by_job),
    ]
    if features is not None:
        found += _unknown_fields(spec, features)
    return found


def refused_job(job: Mapping[str, Any]) -> list[Problem]:
    """Everything about a RayJob that KubeRay would refuse, its cluster included."""
    spec = job.get("spec") or {}
    found = [*_name(job, MAX_JOB_NAME), *_job_modes(spec), *_job_ends(spec)]
    labels = job.get("metadata", {}).get("labels") or {}
    if "kueue.x-k8s.io/queue-name" in labels:
        found += _queued_job(spec)
    if spec.get("rayClusterSpec"):
        inner = {"metadata": {"name": "job"}, "spec": spec["rayClusterSpec"]}
        found += refused_cluster(inner, owned_by_job=True)
    return found


def _problem(path: str, wanted: str, found: str, hint: str) -> Problem:
    return Problem(path=path, wanted=wanted, found=found, hint=hint)


def _name(document: Mapping[str, Any], longest: int) -> Iterator[Problem]:
    name = str(document.get("metadata", {}).get("name", ""))
    if len(name) > longest or not _DNS_1035.match(name):
        wanted = f"at most {longest} characters: small letters, digits and dashes, the first a letter"
        yield _problem("metadata.name", wanted, f"{name!r}, {len(name)} characters", "choose a shorter run name")


def _groups(spec: Mapping[str, Any]) -> Iterator[Problem]:
    scales = bool(spec.get("enableInTreeAutoscaling"))
    places = [("spec.headGroupSpec", spec.get("headGroupSpec") or {})]
    places += [(f"spec.workerGroupSpecs[{index}]", group) for index, group in enumerate(spec.get("workerGroupSpecs") or ())]
    for path, group in places:
        params = group.get("rayStartParams") or {}
        if group.get("resources") and (both := [name for name in _RESOURCE_PARAMS if params.get(name)]):
            yield _problem(f"{path}.resources", "resources in one place", f"also {', '.join(both)} in rayStartParams", "remove one of them")
        if "labels" in params:
            yield _problem(
                f"{path}.rayStartParams.labels", "labels of the group", "labels in rayStartParams", f"move them to {path}.labels"
            )
        if not ((group.get("template") or {}).get("spec") or {}).get("containers"):
            yield _problem(f"{path}.template.spec.containers", "at least one container", "none", "give the Ray container")
    for path, group in places[1:]:
        if not scales and (group.get("minReplicas") is None or group.get("maxReplicas") is None):
            yield _problem(path, "minReplicas and maxReplicas", "one of them missing, without the autoscaler", "set both to replicas")
        if group.get("suspend") and scales:
            yield _problem(f"{path}.suspend", "false with the autoscaler on", "true", "turn the autoscaler off")


def _tokens(spec: Mapping[str, Any], *, delegated_allowed: bool) -> Iterator[Problem]:
    options = spec.get("authOptions") or {}
    version = _version(spec.get("rayVersion"))
    path = "spec.authOptions.mode"
    if options.get("mode") == "token":
        if version is None:
            yield _problem("spec.rayVersion", "Ray's version, because authOptions.mode is token", "none", "write the image's Ray version")
        elif version < TOKEN_RAY_VERSION:
            yield _problem(path, "Ray 2.52 or newer for token", f"rayVersion {spec.get('rayVersion')}", "use a newer worker image")
    if options.get("enableK8sTokenAuth"):
        path = "spec.authOptions.enableK8sTokenAuth"
        if not delegated_allowed:
            yield _problem(path, "false in a RayJob", "true", "use authOptions.mode: token")
        elif version is None or version < DELEGATED_TOKEN_RAY_VERSION:
            yield _problem(path, "Ray 2.55 or newer", f"rayVersion {spec.get('rayVersion')}", "use authOptions.mode: token")


def _fault_tolerance(cluster: Mapping[str, Any]) -> Iterator[Problem]:
    spec = cluster.get("spec") or {}
    annotations = cluster.get("metadata", {}).get("annotations") or {}
    head = spec.get("headGroupSpec") or {}
    params = head.get("rayStartParams") or {}
    variables = _variables(head)
    path, hint = "spec.headGroupSpec", "use gcsFaultToleranceOptions alone"
    if params.get("redis-username") or "REDIS_USERNAME" in variables:
        yield _problem(path, "the Redis user in gcsFaultToleranceOptions.redisUsername", "it in rayStartParams or the environment", hint)
    if not spec.get("gcsFaultToleranceOptions"):
        if "RAY_REDIS_ADDRESS" in variables and annotations.get("ray.io/ft-enabled") != "true":
            yield _problem(f"{path}.template", "gcsFaultToleranceOptions for a Redis", "RAY_REDIS_ADDRESS in the environment", hint)
        return
    for name in ("ray.io/ft-enabled", "ray.io/external-storage-namespace"):
        if annotations.get(name):
            yield _problem(f"metadata.annotations[{name}]", "no annotation beside gcsFaultToleranceOptions", annotations[name], hint)
    if params.get("redis-password"):
        yield _problem(f"{path}.rayStartParams", "the password in gcsFaultToleranceOptions.redisPassword", "redis-password", hint)
    for name in _REDIS_ENVIRONMENT:
        if name in variables:
            yield _problem(f"{path}.template", "no Redis settings in the environment", name, hint)


def _autoscaler(spec: Mapping[str, Any]) -> Iterator[Problem]:
    variables = _variables(spec.get("headGroupSpec") or {})
    options = spec.get("autoscalerOptions") or {}
    wanted_by_environment = variables.get(_AUTOSCALER_V2) in {"1", "true"}
    if not spec.get("enableInTreeAutoscaling"):
        if wanted_by_environment:
            yield _problem("spec.headGroupSpec.template", "no autoscaler", f"{_AUTOSCALER_V2} in the environment", "remove the variable")
        return
    if options.get("version") and _AUTOSCALER_V2 in variables:
        yield _problem("spec.autoscalerOptions.version", "the version in one place", f"also {_AUTOSCALER_V2}", "remove the variable")
    if options.get("version") != "v2" and not wanted_by_environment:
        return
    groups = [("spec.headGroupSpec", spec.get("headGroupSpec") or {})]
    groups += [(f"spec.workerGroupSpecs[{index}]", group) for index, group in enumerate(spec.get("workerGroupSpecs") or ())]
    for path, group in groups:
        policy = ((group.get("template") or {}).get("spec") or {}).get("restartPolicy")
        if policy not in {None, "", "Never"}:
            yield _problem(f"{path}.template.spec.restartPolicy", "Never with autoscaler v2", policy, "write Never")


def _upgrade(spec: Mapping[str, Any], *, owned_by_job: bool) -> Iterator[Problem]:
    if owned_by_job and spec.get("upgradeStrategy"):
        yield _problem("spec.upgradeStrategy", "none in a cluster that a RayJob makes", str(spec["upgradeStrategy"]), "remove it")


def _job_modes(spec: Mapping[str, Any]) -> Iterator[Problem]:
    mode, selector = spec.get("submissionMode", "K8sJobMode"), spec.get("clusterSelector")
    if spec.get("backoffLimit") and (selector or mode == "InteractiveMode"):
        yield _problem("spec.backoffLimit", "0 with clusterSelector or InteractiveMode", str(spec["backoffLimit"]), "remove it")
    if spec.get("suspend") and selector:
        yield _problem("spec.suspend", "false with clusterSelector", "true", "remove clusterSelector")
    if mode == "SidecarMode":
        for name in ("clusterSelector", "submitterPodTemplate", "submitterConfig"):
            if spec.get(name):
                yield _problem(f"spec.{name}", "nothing in SidecarMode", "a value", "remove it, or use K8sJobMode")
        head = (((spec.get("rayClusterSpec") or {}).get("headGroupSpec") or {}).get("template") or {}).get("spec") or {}
        if head.get("restartPolicy") not in {None, "", "Never"}:
            path = "spec.rayClusterSpec.headGroupSpec.template.spec.restartPolicy"
            yield _problem(path, "Never in SidecarMode", head["restartPolicy"], "write Never")


def _job_ends(spec: Mapping[str, Any]) -> Iterator[Problem]:
    shuts = bool(spec.get("shutdownAfterJobFinishes"))
    strategy = spec.get("deletionStrategy") or {}
    rules, outcomes = bool(strategy.get("deletionRules")), bool(strategy.get("onSuccess") or strategy.get("onFailure"))
    if spec.get("suspend") and not shuts:
        yield _problem("spec.suspend", "shutdownAfterJobFinishes: true beside it", "false", "set shutdownAfterJobFinishes")
    if spec.get("ttlSecondsAfterFinished") and not shuts:
        yield _problem("spec.ttlSecondsAfterFinished", "shutdownAfterJobFinishes: true beside it", "false", "set shutdownAfterJobFinishes")
    if shuts and rules:
        yield _problem("spec.deletionStrategy.deletionRules", "none with shutdownAfterJobFinishes: true", "some", "use one of the two")
    if rules and outcomes:
        yield _problem("spec.deletionStrategy", "deletionRules, or onSuccess and onFailure", "both", "use the rules")


def _queued_job(spec: Mapping[str, Any]) -> Iterator[Problem]:
    if spec.get("clusterSelector"):
        yield _problem("spec.clusterSelector", "a cluster of its own under Kueue", "an existing cluster", "remove it, or the queue")
    groups = len((spec.get("rayClusterSpec") or {}).get("workerGroupSpecs") or ())
    if groups > MAX_KUEUE_GROUPS:
        yield _problem("spec.rayClusterSpec.workerGroupSpecs", f"at most {MAX_KUEUE_GROUPS} under Kueue", str(groups), "use fewer groups")


def _unknown_fields(spec: Mapping[str, Any], features: Features) -> Iterator[Problem]:
    """Fields that the installed CRD does not have would be dropped without a word."""
    if not features.known:
        return
    for name, value in spec.items():
        inner = [f"{name}.{key}" for key in value] if isinstance(value, Mapping) else []
        for path in (name, *inner):
            if path not in features.known:
                yield _problem(f"spec.{path}", "a field of the installed RayCluster CRD", "an unknown one", "install a newer KubeRay")


def _variables(group: Mapping[str, Any]) -> dict[str, str]:
    containers: Sequence[Mapping[str, Any]] = ((group.get("template") or {}).get("spec") or {}).get("containers") or ({},)
    return {item["name"]: str(item.get("value", "")) for item in containers[0].get("env") or ()}


def _version(text: Any) -> tuple[int, int] | None:
    match = re.match(r"^v?(\d+)\.(\d+)", str(text or ""))
    return (int(match[1]), int(match[2])) if match else None
