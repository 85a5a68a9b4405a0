"""One release, one bucket and one corpus for all drills of this folder; every run trains in real pods."""

import json
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from box.cluster import Cluster
from box.folders import REPOSITORY
from box.helm import Helm
from box.kubectl import Kubectl
from box.object_store import ObjectStore
from box.waiting import until
from drill_world import BUCKET, CRDS, ON_NODE_1, SECRET, SMALL, World
from drilled_run import PatientApi, say

from samite.checkpoint import StoreOptions
from samite.engines.kuberay.api_client import connect
from samite_workloads.data import prepare
from samite_workloads.data.documents import Document, MemorySource
from samite_workloads.data.publish import publish


@pytest.fixture(scope="package")
def world(
    cluster: Cluster, kubectl: Kubectl, helm: Helm, kuberay: str, s3: ObjectStore, worker_image: str, operator_image: str
) -> Iterator[World]:
    """The chart under the restricted pod security standard, with its own Secret of storage keys and a corpus in S3."""
    say(f"images {worker_image}, {operator_image}; KubeRay in {kuberay}")
    s3.make_bucket(BUCKET)
    push_corpus(s3)
    release_leftovers(kubectl)
    operators = {"spec": {"template": {"spec": {"nodeSelector": ON_NODE_1}}}}
    kubectl("-n", kuberay, "patch", "deployment", "kuberay-operator", "--type=merge", "-p", json.dumps(operators))
    mark = secrets.token_hex(3)
    api = PatientApi(connect(kubeconfig=str(kubectl.kubeconfig), timeout_s=20.0))
    found = World(cluster, kubectl, helm, api, s3, home=f"test-{mark}-system", team=f"test-{mark}")
    for name in (found.home, found.team):
        kubectl("create", "namespace", name)
        kubectl("label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")
    found.inside.apply(s3.secret(SECRET))
    runtimes = [{"name": "default", "spec": SMALL}]
    resources = {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"cpu": "1", "memory": "512Mi"}}
    found.values = (
        f"--set=scope.namespaces={{{found.team}}}",
        f"--set=storage.secretNames={{{SECRET}}}",
        f"--set-json=runtimes.items={json.dumps(runtimes)}",
        f"--set-json=operator.resources={json.dumps(resources)}",
        f"--set-json=operator.nodeSelector={json.dumps(ON_NODE_1)}",
    )
    found.install()
    kubectl("-n", kuberay, "rollout", "status", "deployment/kuberay-operator", "--timeout=120s", limit_s=130)
    yield found
    found.clear()
    helm("uninstall", "samite", f"--namespace={found.home}", "--ignore-not-found", "--wait", check=False)
    kubectl("delete", "clustertrainingruntimes", "--all", check=False)
    kubectl("delete", "namespace", found.home, found.team, "--wait=false", "--ignore-not-found")
    kubectl("delete", "crd", *CRDS, "--wait=false", "--ignore-not-found")


def release_leftovers(kubectl: Kubectl) -> None:
    """Definitions that other tests made without helm: helm would not take them over."""
    kubectl("delete", "crd", *CRDS, "--ignore-not-found", "--timeout=60s", limit_s=70)
    until(lambda: not set(CRDS) & {item["metadata"]["name"] for item in kubectl.items("crds")}, "old definitions to be gone", limit_s=60)


def push_corpus(s3: ObjectStore) -> None:
    """Forty short texts."""
    folder: Path = REPOSITORY / "build" / f"drill-corpus-{os.getpid()}"
    try:
        texts = [Document(parts=(f"{n} warp and weft " * (3 + n % 7),), origin=f"text:{n}") for n in range(40)]
        prepare(folder, [MemorySource(texts, name="text")], vocab_size=300, held_out_fraction=0.1)
        options = StoreOptions(endpoint=s3.outside, insecure=True, access_key=s3.access_key, secret_key=s3.secret_key, region=s3.region)
        publish(folder, f"s3://{BUCKET}/corpus", options)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
