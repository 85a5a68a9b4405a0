"""The RayCluster that the builders make: what it must hold, and that KubeRay's own schema takes it."""

import json
from dataclasses import replace
from typing import Any

import jsonschema
import pytest

from samite.engines.kuberay.cluster import ray_cluster
from samite.engines.kuberay.features import Features
from samite.engines.kuberay.pods import without_nodes
from samite.engines.kuberay.refusals import refused_cluster
from samite.engines.kuberay.runtime import HeadFaultTolerance, PodSettings, Queue, Runtime

PLAIN = Runtime()
OLD = Features()
NEW = Features(auth_mode=True, auth_secret_name=True, upgrade_strategy=True)


def cluster_of(run: dict[str, Any], *, runtime: Runtime = PLAIN, features: Features = OLD, gpus: int = 0, excluded=()) -> dict[str, Any]:
    return ray_cluster(
        run,
        cluster_id="demo-s00-1f2e3",
        stage_index=0,
        replicas=3,
        gpus_per_node=gpus,
        runtime=runtime,
        features=features,
        excluded=excluded,
    )


def pod_specs(cluster: dict[str, Any]) -> list[dict[str, Any]]:
    spec = cluster["spec"]
    return [spec["headGroupSpec"]["template"]["spec"], spec["workerGroupSpecs"][0]["template"]["spec"]]


def variables(pod: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {item["name"]: item for item in pod["containers"][0]["env"]}


RUNTIMES = {
    "plain": Runtime(),
    "gpu": Runtime(
        worker=PodSettings(cpu="32", memory="512Gi", resources={"rdma/hca": "8"}, capabilities=("IPC_LOCK",), shared_memory="64Gi")
    ),
    "queued": Runtime(queue=Queue(name="research", priority_class="high", topology="Required", topology_level="rack", slice_size=4)),
    "fault-tolerant": Runtime(head_fault_tolerance=HeadFaultTolerance(redis_address="redis:6379", password_secret="redis")),
    "everything": Runtime(
        image_pull_secrets=("registry",),
        worker=PodSettings(
            node_selector={"pool": "h100"},
            tolerations=({"key": "gpu", "operator": "Exists"},),
            volumes=({"name": "data", "persistentVolumeClaim": {"claimName": "data"}},),
            volume_mounts=({"name": "data", "mountPath": "/data", "readOnly": True},),
            env=({"name": "NCCL_IB_HCA", "value": "mlx5"},),
            affinity={"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
            priority_class="training",
            scheduler="volcano",
            runtime_class="nvidia",
            host_network=True,
        ),
    ),
}


@pytest.mark.parametrize("name", RUNTIMES)
def test_the_schema_of_kuberay_1_7_takes_every_cluster_and_knows_every_field(run, crd_17, name: str):
    features = Features.from_crd(crd_17)
    cluster = cluster_of(run, runtime=RUNTIMES[name], features=features, gpus=8 if name == "gpu" else 0, excluded=("node-7",))
    version = next(item for item in crd_17["spec"]["versions"] if item["name"] == "v1")
    schema = strict(version["schema"]["openAPIV3Schema"]["properties"]["spec"])
    jsonschema.Draft7Validator(schema).validate(cluster["spec"])
    assert refused_cluster(cluster, features) == []


def strict(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with unknown keys refused: the API server would drop them without a word."""
    found = {key: value for key, value in schema.items() if not key.startswith("x-kubernetes") and key != "format"}
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    if "properties" in schema:
        found["properties"] = {key: strict(value) for key, value in schema["properties"].items()}
        found["additionalProperties"] = False
    if isinstance(schema.get("items"), dict):
        found["items"] = strict(schema["items"])
    if isinstance(schema.get("additionalProperties"), dict):
        found["additionalProperties"] = strict(schema["additionalProperties"])
    return found


def test_features_are_read_from_the_schema(crd_17):
    found = Features.from_crd(crd_17)
    assert (found.auth_mode, found.auth_secret_name, found.upgrade_strategy, found.fault_tolerance) == (True, True, True, True)
    assert "workerGroupSpecs.template" in found.known


def test_a_crd_without_v1_is_refused_with_what_it_serves():
    with pytest.raises(ValueError, match="serves v1alpha1; wanted v1"):
        Features.from_crd({"spec": {"versions": [{"name": "v1alpha1", "served": True}]}})


def test_on_kuberay_1_5_the_token_comes_by_environment_from_a_secret(run):
    cluster = cluster_of(run)
    assert "authOptions" not in cluster["spec"]
    for pod in pod_specs(cluster):
        assert variables(pod)["RAY_AUTH_MODE"]["value"] == "token"
        reference = variables(pod)["RAY_AUTH_TOKEN"]["valueFrom"]["secretKeyRef"]
        assert reference == {"name": "demo-s00-1f2e3-ray-token", "key": "auth_token"}


def test_where_kuberay_knows_auth_options_they_name_the_same_secret_beside_the_variables(run):
    cluster = cluster_of(run, features=NEW)
    assert cluster["spec"]["authOptions"] == {"mode": "token", "secretName": "demo-s00-1f2e3-ray-token"}
    assert cluster["spec"]["upgradeStrategy"] == {"type": "None"}
    for pod in pod_specs(cluster):  # an operator that is older than the installed definitions ignores authOptions
        assert variables(pod)["RAY_AUTH_MODE"]["value"] == "token"
        assert "valueFrom" in variables(pod)["RAY_AUTH_TOKEN"]


def test_auth_options_without_a_secret_name_are_not_used(run):
    cluster = cluster_of(run, features=Features(auth_mode=True))
    assert "authOptions" not in cluster["spec"]
    assert "RAY_AUTH_TOKEN" in variables(pod_specs(cluster)[0])


def test_pods_meet_the_restricted_standard(run):
    for pod in pod_specs(cluster_of(run)):
        container = pod["containers"][0]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] == 1000
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        writable = {mount["mountPath"] for mount in container["volumeMounts"]}
        assert writable == {"/var/lib/samite", "/tmp"}


def test_ray_notices_a_dead_node_in_seconds_and_starves_no_rank(run):
    for pod in pod_specs(cluster_of(run)):
        found = {name: item.get("value") for name, item in variables(pod).items()}
        assert found["RAY_health_check_period_ms"] == "1000"
        assert found["RAY_health_check_failure_threshold"] == "4"
        assert found["RAY_worker_niceness"] == "0"
        assert found["PYTHONSAFEPATH"] == "1"
        assert found["RAY_gcs_rpc_server_reconnect_timeout_s"] == "10"
        assert variables(pod)["SAMITE_NODE"]["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.name"


def test_with_a_head_that_comes_back_workers_wait_for_it(run):
    cluster = cluster_of(run, runtime=RUNTIMES["fault-tolerant"])
    assert variables(pod_specs(cluster)[1])["RAY_gcs_rpc_server_reconnect_timeout_s"]["value"] == "120"
    assert cluster["spec"]["gcsFaultToleranceOptions"] == {
        "redisAddress": "redis:6379",
        "redisPassword": {"valueFrom": {"secretKeyRef": {"name": "redis", "key": "password"}}},
    }


def test_no_rank_runs_on_the_head_and_a_worker_has_one_slot_for_each_rank(run):
    cluster = cluster_of(run, gpus=8, features=OLD)
    head, worker = cluster["spec"]["headGroupSpec"], cluster["spec"]["workerGroupSpecs"][0]
    assert (head["rayStartParams"]["num-cpus"], head["rayStartParams"]["num-gpus"]) == ("0", "0")
    assert (worker["rayStartParams"]["num-cpus"], worker["rayStartParams"]["num-gpus"]) == ("8", "8")
    assert worker["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "8"
    assert (worker["replicas"], worker["minReplicas"], worker["maxReplicas"]) == (3, 3, 3)


def test_open_files_are_raised_to_the_hard_limit_and_no_further(run):
    for pod in pod_specs(cluster_of(run)):
        assert pod["containers"][0]["args"] == ['ulimit -n "$(ulimit -H -n)"; eval "exec $KUBERAY_GEN_RAY_START_CMD"']
    assert cluster_of(run)["metadata"]["annotations"]["ray.io/overwrite-container-cmd"] == "true"


def test_a_hanging_dashboard_ends_no_pod(run):
    head, worker = (pod["containers"][0] for pod in pod_specs(cluster_of(run)))
    assert head["livenessProbe"]["tcpSocket"] == {"port": 6379}
    assert head["readinessProbe"]["tcpSocket"] == {"port": 6379}
    assert "httpGet" not in worker["livenessProbe"]


def test_only_the_head_gets_a_service_account_token(run):
    head, worker = pod_specs(cluster_of(run))
    assert (head["automountServiceAccountToken"], worker["automountServiceAccountToken"]) == (True, False)
    assert head["serviceAccountName"] == "demo-worker"


def test_lost_nodes_are_tolerated_for_thirty_seconds_unless_the_site_says_otherwise(run):
    tolerations = {item["key"]: item["tolerationSeconds"] for item in pod_specs(cluster_of(run))[1]["tolerations"]}
    assert tolerations == {"node.kubernetes.io/not-ready": 30, "node.kubernetes.io/unreachable": 30}
    own = {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}
    runtime = Runtime(worker=PodSettings(tolerations=(own,)))
    tolerations = [item for item in pod_specs(cluster_of(run, runtime=runtime))[1]["tolerations"] if item["key"] == own["key"]]
    assert tolerations == [own]


def test_excluded_nodes_are_left_out_of_every_alternative(run):
    affinity = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "gpu", "operator": "Exists"}]},
                    {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]},
                ]
            }
        },
        "podAffinity": {"x": 1},
    }
    found = without_nodes(affinity, {"node-2", "node-1"})
    rule = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["node-1", "node-2"]}
    terms = found["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert [term["matchExpressions"][-1] for term in terms] == [rule, rule]
    assert found["podAffinity"] == {"x": 1}
    assert without_nodes({}, ()) == {}
    assert cluster_of(run, excluded=("b", "a"))["metadata"]["annotations"]["samite.dev/excluded-nodes"] == "a,b"


def test_the_head_keeps_away_from_the_workers_of_its_own_cluster_and_from_what_the_site_says(run):
    own = {"weight": 7, "podAffinityTerm": {"topologyKey": "zone"}}
    site = {
        "nodeAffinity": {"x": 1},
        "podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [own],
            "requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "rack"}],
        },
    }
    for affinity, kept in (({}, []), (site, [own])):
        head, worker = pod_specs(cluster_of(run, runtime=Runtime(head=PodSettings(affinity=affinity), worker=PodSettings())))
        *others, wish = head["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
        assert others == kept
        assert wish["podAffinityTerm"]["topologyKey"] == "kubernetes.io/hostname"
        labels = cluster_of(run)["spec"]["workerGroupSpecs"][0]["template"]["metadata"]["labels"]
        assert wish["podAffinityTerm"]["labelSelector"]["matchLabels"].items() <= labels.items()
        assert "podAntiAffinity" not in worker.get("affinity", {})
    assert head["affinity"]["nodeAffinity"] == {"x": 1}
    assert head["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] == [{"topologyKey": "rack"}]


def test_workers_load_what_ranks_need_while_they_wait_and_the_head_gives_a_stopped_driver_time_for_its_last_words(run):
    head, worker = map(variables, pod_specs(cluster_of(run)))
    assert worker["RAY_preload_python_modules"]["value"].split(",")[-1] == "samite_workloads.train.loop"
    assert "RAY_preload_python_modules" not in head
    assert float(head["RAY_JOB_STOP_WAIT_TIME_S"]["value"]) >= 3


def test_kueue_is_asked_by_labels_and_topology_annotations(run):
    cluster = cluster_of(run, runtime=RUNTIMES["queued"])
    assert cluster["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "research"
    assert cluster["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] == "high"
    annotations = cluster["spec"]["workerGroupSpecs"][0]["template"]["metadata"]["annotations"]
    assert annotations["kueue.x-k8s.io/podset-required-topology"] == "rack"
    assert annotations["kueue.x-k8s.io/podset-slice-size"] == "4"
    assert "kueue.x-k8s.io/podset-required-topology" not in cluster["spec"]["headGroupSpec"]["template"]["metadata"]["annotations"]
    assert "suspend" not in cluster["spec"]


def test_secrets_come_by_reference_and_literals_stay_out_of_the_pods(make_run):
    run = make_run(
        env=[
            {"name": "MODE", "value": "fast"},
            {"name": "WANDB_API_KEY", "valueFrom": {"secretKeyRef": {"name": "wandb", "key": "key"}}},
        ],
        checkpoint={"uri": "s3://bucket/demo", "credentials": {"secretName": "s3-keys"}},
    )
    for pod in pod_specs(cluster_of(run)):
        assert variables(pod)["WANDB_API_KEY"] == {"name": "WANDB_API_KEY", "valueFrom": {"secretKeyRef": {"name": "wandb", "key": "key"}}}
        assert "MODE" not in variables(pod)
        assert pod["containers"][0]["envFrom"] == [{"secretRef": {"name": "s3-keys"}}]
        # And as files, which follow a Secret that is rotated while the pod runs.
        assert {"name": "storage-keys", "secret": {"secretName": "s3-keys"}} in pod["volumes"]
        folder = variables(pod)["SAMITE_STORAGE_KEYS"]["value"]
        assert {"name": "storage-keys", "mountPath": folder, "readOnly": True} in pod["containers"][0]["volumeMounts"]


def test_a_run_without_a_secret_mounts_none(run):
    for pod in pod_specs(cluster_of(run)):
        assert "storage-keys" not in {volume["name"] for volume in pod["volumes"]}
        assert "SAMITE_STORAGE_KEYS" not in variables(pod)


def test_the_site_cannot_override_what_the_engine_sets(run):
    runtime = Runtime(worker=PodSettings(env=({"name": "SAMITE_NODE", "value": "liar"}, {"name": "NCCL_DEBUG", "value": "INFO"})))
    found = pod_specs(cluster_of(run, runtime=runtime))[1]["containers"][0]["env"]
    assert next(item for item in found if item["name"] == "SAMITE_NODE").get("value") is None
    assert len({item["name"] for item in found}) == len(found)
    assert {"name": "NCCL_DEBUG", "value": "INFO"} in found


def test_the_run_owns_the_cluster_and_everything_is_labelled(run):
    cluster = cluster_of(run)
    (owner,) = cluster["metadata"]["ownerReferences"]
    assert (owner["uid"], owner["controller"], owner["blockOwnerDeletion"]) == (run["metadata"]["uid"], True, True)
    labels = cluster["spec"]["workerGroupSpecs"][0]["template"]["metadata"]["labels"]
    assert labels["samite.dev/run"] == "demo"
    assert labels["samite.dev/role"] == "worker"
    assert labels["samite.dev/stage"] == "stage-0"


def test_the_same_arguments_give_the_same_object(run):
    once, again = cluster_of(run, excluded=("b", "a")), cluster_of(json.loads(json.dumps(run)), excluded=("a", "b"))
    assert once == again
    assert len(json.dumps(once)) < 40_000
    assert replace(Runtime(), image="other") != Runtime()
