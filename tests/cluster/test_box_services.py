"""What tests find in the box besides Kubernetes: KubeRay starts a Ray cluster from the worker image, and pods reach the object store."""

import re
from typing import Any

import pytest
from box.kubectl import Kubectl
from box.object_store import ObjectStore
from box.waiting import until

pytestmark = pytest.mark.cluster

WRITE = """
import boto3, os
client = boto3.client("s3")
client.put_object(Bucket="box", Key="from-a-pod", Body=b"written in a pod")
print(client.get_object(Bucket="box", Key="from-the-test")["Body"].read().decode())
"""


def ray_pod(image: str, *, memory: str) -> dict[str, Any]:
    """A pod template of a Ray node."""
    limits = {"cpu": "1", "memory": memory}
    container = {"name": "ray", "image": image, "resources": {"requests": {"cpu": "100m", "memory": "300Mi"}, "limits": limits}}
    return {"spec": {"containers": [container], "terminationGracePeriodSeconds": 5}}


@pytest.mark.timeout(400)
def test_kuberay_brings_up_a_ray_cluster_from_the_worker_image(kubectl: Kubectl, namespace: str, kuberay: str, worker_image: str):
    import ray

    inside = kubectl.within(namespace)
    start = {"dashboard-host": "0.0.0.0", "num-cpus": "0", "object-store-memory": "80000000"}
    group = {"groupName": "workers", "replicas": 1, "minReplicas": 0, "maxReplicas": 4}
    workers = {**group, "rayStartParams": {"object-store-memory": "80000000"}, "template": ray_pod(worker_image, memory="1500Mi")}
    spec = {
        "rayVersion": ray.__version__,
        "headGroupSpec": {"rayStartParams": start, "template": ray_pod(worker_image, memory="3Gi")},
        "workerGroupSpecs": [workers],
    }
    inside.apply({"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": "small"}, "spec": spec})
    took_s = until(
        lambda: inside.get("raycluster", "small")["status"]["readyWorkerReplicas"] == 1, "the worker to be ready", limit_s=180, every_s=1
    )
    head = inside.items("pods", "-l", "ray.io/node-type=head")[0]["metadata"]["name"]
    # Ray names a node by its id while it works, and by its group once it idles.
    nodes = re.findall(r"^ 1 (node_\w+|headgroup|workers)$", inside("exec", head, "--", "ray", "status", limit_s=60), re.MULTILINE)
    assert len(nodes) == 2
    print(f"Ray head and worker ready after {took_s:.0f} s, KubeRay in {kuberay}")


def test_pods_and_tests_share_an_object_store(kubectl: Kubectl, namespace: str, s3: ObjectStore, worker_image: str):
    import boto3

    s3.make_bucket("box")
    keys = {"aws_access_key_id": s3.access_key, "aws_secret_access_key": s3.secret_key, "region_name": s3.region}
    client = boto3.client("s3", endpoint_url=s3.outside, **keys)
    client.put_object(Bucket="box", Key="from-the-test", Body=b"written by the test")
    inside = kubectl.within(namespace)
    container = {
        "name": "main",
        "image": worker_image,
        "command": ["python", "-c", WRITE],
        "envFrom": [{"secretRef": {"name": "store"}}],
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "writer"},
        "spec": {"restartPolicy": "Never", "containers": [container]},
    }
    inside.apply(s3.secret("store"), pod)
    until(lambda: inside.get("pod", "writer")["status"]["phase"] in {"Succeeded", "Failed"}, "the pod to end", limit_s=60)
    assert inside("logs", "writer").strip() == "written by the test"
    assert client.get_object(Bucket="box", Key="from-a-pod")["Body"].read() == b"written in a pod"
