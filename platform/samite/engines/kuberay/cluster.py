"""The RayCluster of one stage shape, as a document. Pure: the same arguments give the same object, so applying it again changes nothing.

One worker group with fixed replicas, spares included; no autoscaler (a parallel layout has one size), no job inside: attempts are submissions.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from samite.engines.kuberay import names
from samite.engines.kuberay.api import RAY_CLUSTER, Document
from samite.engines.kuberay.features import Features
from samite.engines.kuberay.pods import OVERWRITE_COMMAND, head_template, worker_template
from samite.engines.kuberay.runtime import Queue, Runtime


def ray_cluster(
    run: Mapping[str, Any],
    *,
    cluster_id: str,
    stage_index: int,
    replicas: int,
    gpus_per_node: int,
    runtime: Runtime,
    features: Features,
    excluded: Iterable[str] = (),
    avoided: Iterable[str] = (),
) -> Document:
    """The object for server-side apply. `run` is the TrainingRun object, `replicas` worker pods with `gpus_per_node` GPUs each.

    New workers are never put on `excluded` machines, and on `avoided` ones only if there is no other.
    """
    left_out = sorted(set(excluded))
    spec: Document = {
        "rayVersion": runtime.ray_version,
        "enableInTreeAutoscaling": False,
        "headGroupSpec": {
            "serviceType": "ClusterIP",
            "rayStartParams": _start_params(runtime, cpus=0, gpus=0) | {"dashboard-host": "0.0.0.0"},  # noqa: S104 - the pod's own address
            "template": head_template(run, cluster_id, stage_index, runtime),
        },
        "workerGroupSpecs": [
            {
                "groupName": names.WORKER_GROUP,
                "replicas": replicas,
                "minReplicas": replicas,
                "maxReplicas": replicas,
                "numOfHosts": 1,
                "rayStartParams": _start_params(runtime, cpus=max(gpus_per_node, 1), gpus=gpus_per_node),
                "template": worker_template(
                    run, cluster_id, stage_index, runtime, gpus=gpus_per_node, excluded=left_out, avoided=avoided
                ),
            }
        ],
    }  # fmt: skip
    if features.auth_secret_name:
        # Beside the variables of the containers, which carry the token alone where an older operator runs under newer definitions.
        spec["authOptions"] = {"mode": "token", "secretName": names.token_secret(cluster_id)}
    if features.upgrade_strategy:
        # A changed exclusion list must not restart pods that train.
        spec["upgradeStrategy"] = {"type": "None"}
    if runtime.head_fault_tolerance is not None and features.fault_tolerance:
        spec["gcsFaultToleranceOptions"] = _fault_tolerance(runtime)
    metadata: Document = {
        "name": cluster_id,
        "namespace": run["metadata"]["namespace"],
        "labels": {**_labels(run, cluster_id, stage_index), **_queue_labels(runtime.queue)},
        "annotations": {OVERWRITE_COMMAND: "true", names.EXCLUDED: ",".join(left_out)},
        "ownerReferences": [owner_reference(run)],
    }
    return {"apiVersion": RAY_CLUSTER.api_version, "kind": RAY_CLUSTER.kind, "metadata": metadata, "spec": spec}


def owner_reference(run: Mapping[str, Any]) -> Document:
    """The run owns it: Kubernetes deletes it after the run."""
    return {
        "apiVersion": run.get("apiVersion", "samite.dev/v1alpha1"),
        "kind": run.get("kind", "TrainingRun"),
        "name": run["metadata"]["name"],
        "uid": run["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _start_params(runtime: Runtime, *, cpus: int, gpus: int) -> dict[str, str]:
    return {
        "num-cpus": str(cpus),
        "num-gpus": str(gpus),
        "object-store-memory": str(runtime.object_store_bytes),
        "min-worker-port": "0",
        "max-worker-port": "0",
        "disable-usage-stats": "true",
    }


def _labels(run: Mapping[str, Any], cluster_id: str, stage_index: int) -> dict[str, str]:
    metadata = run["metadata"]
    return {
        **names.run_labels(metadata["name"], metadata["uid"]),
        names.STAGE: run["spec"]["stages"][stage_index]["name"],
        names.CLUSTER: cluster_id,
    }


def _queue_labels(queue: Queue | None) -> dict[str, str]:
    if queue is None:
        return {}
    priority = {"kueue.x-k8s.io/priority-class": queue.priority_class} if queue.priority_class else {}
    return {"kueue.x-k8s.io/queue-name": queue.name, **priority}


def _fault_tolerance(runtime: Runtime) -> Document:
    wanted = runtime.head_fault_tolerance
    assert wanted is not None
    options: Document = {"redisAddress": wanted.redis_address}
    if wanted.password_secret:
        options["redisPassword"] = {"valueFrom": {"secretKeyRef": {"name": wanted.password_secret, "key": wanted.password_key}}}
    if wanted.storage_namespace:
        options["externalStorageNamespace"] = wanted.storage_namespace
    return options
