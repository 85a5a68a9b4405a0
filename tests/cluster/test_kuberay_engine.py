"""The kuberay engine against a real API server, real KubeRay and real Ray: its cluster comes up, a job runs, a node loses power, its pod is replaced.

The engine runs here, outside, with an administrator's kubeconfig; what it may do as the operator's service account is the operator's tests' matter.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from box.cluster import Cluster
from box.kubectl import Kubectl
from box.waiting import until

from samite.checkpoint.store import MemoryStore
from samite.engines.kuberay import names
from samite.engines.kuberay.api import POD, RAY_CLUSTER, KubernetesApi
from samite.engines.kuberay.api_client import connect
from samite.engines.kuberay.engine import KubeRayEngine
from samite.engines.kuberay.pod_facts import is_head, name_of
from samite.engines.kuberay.runtime import PodSettings, Runtime
from samite.engines.ray_jobs import JobStatus, RayJobs
from samite.lifecycle import (
    ClusterState,
    Memory,
    NodeObserved,
    NodeSays,
    Observed,
    ReleaseCluster,
    ReplaceNode,
    RunPlan,
    Source,
    StartCluster,
)
from samite.lifecycle.evidence import Evidence, sufficient
from samite.lifecycle.memory import AttemptMemory, ClusterMemory
from samite.spec.stored import run_from_object

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(560)]

CLUSTER_ID = "demo-s00-1f2e3"
JOB = "demo-by-hand"


def training_run(namespace: str) -> dict[str, Any]:
    return {
        "apiVersion": "samite.dev/v1alpha1",
        "kind": "TrainingRun",
        "metadata": {"name": "demo", "namespace": namespace},
        "spec": {
            "engine": "RayCluster",
            "checkpoint": {"uri": "s3://bucket/demo"},
            "stages": [
                {
                    "name": "only",
                    "contextLength": 128,
                    "workers": {"min": 2, "max": 2},
                    "batch": {"tokens": 1024},
                    "budget": {"steps": 10},
                }
            ],
        },
    }


@pytest.fixture(scope="module")
def definitions(kubectl: Kubectl) -> None:
    """Samite's CRDs: a RayCluster whose owner does not exist would be collected as garbage."""
    from samite.cli.app import run

    assert run(["--kubeconfig", str(kubectl.kubeconfig), "crds", "apply"]) == 0


@dataclass
class Rig:
    """The engine, the run object it serves, and a way to Ray's dashboard from outside."""

    cluster: Cluster
    api: KubernetesApi
    namespace: str
    run: dict[str, Any]
    runtime: Runtime
    ports: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.plan = RunPlan.from_run(run_from_object(self.run), uid=self.run["metadata"]["uid"])
        self.engine = KubeRayEngine(
            self.api,
            namespace=self.namespace,
            token_key=b"a key of the test",
            storage=lambda run: MemoryStore(f"memory://{self.namespace}"),
            jobs=self.jobs,
        )
        cluster = ClusterMemory(cluster_id=CLUSTER_ID, stage_index=0, shape="2x0", nodes=("n0", "n1"))
        live = AttemptMemory(
            submission_id=JOB,
            attempt=1,
            stage_index=0,
            cluster_id=CLUSTER_ID,
            num_workers=2,
            num_nodes=2,
            worker_group_restarts=0,
            resume="none",
        )
        self.memory = Memory(cluster=cluster, live=live)

    def pods(self) -> list[dict[str, Any]]:
        return self.api.list(POD, self.namespace, labels={names.CLUSTER: CLUSTER_ID}).items

    def jobs(self, cluster_id: str = CLUSTER_ID, namespace: str = "", token: str = "") -> RayJobs:
        head = next(pod for pod in self.pods() if is_head(pod))
        address = head["status"]["podIP"]
        if address not in self.ports:
            self.ports[address] = self.cluster.forward(address, names.DASHBOARD_PORT)
        return RayJobs(address=f"http://127.0.0.1:{self.ports[address]}", token=token or self.token, timeout_s=5.0)

    @property
    def token(self) -> str:
        from samite.engines.kuberay.access import ray_token

        return ray_token(b"a key of the test", self.plan.uid, CLUSTER_ID)

    def look(self) -> Observed:
        return self.engine.observe(self.run, self.plan, self.memory)

    def apply(self, action: Any) -> None:
        assert self.engine.apply(self.run, self.plan, [action], runtime=self.runtime) == []

    def ready(self) -> list[NodeObserved]:
        return [node for node in self.look().cluster[0].nodes if node.ready and not node.head]


@pytest.fixture
def rig(cluster: Cluster, kubectl: Kubectl, kuberay: str, namespace: str, worker_image: str, definitions: None) -> Iterator[Rig]:
    kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    kubectl.within(namespace).apply(training_run(namespace))
    run = kubectl.within(namespace).get("trainingrun", "demo")
    toleration = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}
    small = PodSettings(
        cpu="200m",
        memory="2Gi",
        tolerations=tuple({"key": f"node.kubernetes.io/{key}", **toleration} for key in ("not-ready", "unreachable")),
    )
    rig = Rig(cluster, connect(kubeconfig=str(kubectl.kubeconfig)), namespace, run, Runtime(image=worker_image, head=small, worker=small))
    yield rig
    rig.engine.close()


def seconds(what: str, began: float) -> float:
    took_s = time.monotonic() - began
    print(f"\n{what}: {took_s:.1f} s", flush=True)
    return took_s


def start(rig: Rig) -> StartCluster:
    action = StartCluster(cluster_id=CLUSTER_ID, stage_index=0, nodes=("n0", "n1"), ranks_per_node=1, gpus_per_node=0)
    rig.apply(action)
    return action


def test_a_lost_node_s_pod_is_replaced_on_two_facts_and_a_job_runs_again(rig: Rig, cluster: Cluster):
    assert rig.look().cluster[0].state is ClusterState.ABSENT
    began = time.monotonic()
    action = start(rig)
    until(lambda: len(rig.ready()) == 2, "two workers that joined Ray", limit_s=240)
    seconds("StartCluster to two ready workers", began)
    before = rig.api.get(RAY_CLUSTER, rig.namespace, CLUSTER_ID)["metadata"]["resourceVersion"]
    rig.apply(action)
    assert rig.api.get(RAY_CLUSTER, rig.namespace, CLUSTER_ID)["metadata"]["resourceVersion"] == before

    began = time.monotonic()
    assert rig.jobs().submit(JOB, "python -c 'import time; print(41 + 1, flush=True); time.sleep(600)'", {})
    assert not rig.jobs().submit(JOB, "python -c 'print(0)'", {})
    until(lambda: rig.look().attempts[0].job_status == "RUNNING", "a running job", limit_s=120)
    until(lambda: "42" in rig.jobs().logs(JOB), "its output", limit_s=60)
    seconds("submitted to running", began)

    head_host = next(node.host for node in rig.look().cluster[0].nodes if node.head)
    victim = next(node for node in rig.ready() if node.host != head_host)
    number = int(victim.host[-1])
    began = time.monotonic()
    cluster.node(number).kill()
    try:
        evidence = lost(rig, victim.name, began)
        until(lambda: terminating(rig, victim.name), "Kubernetes to mark the pod", limit_s=60)
        seconds("kill to Terminating", began)
        assert rig.api.get(POD, rig.namespace, victim.name)["metadata"]["deletionTimestamp"]
        rig.apply(ReplaceNode(cluster_id=CLUSTER_ID, node=victim.name, replacement="n2", reason="lost", evidence=evidence))
        until(lambda: victim.name not in {name_of(pod) for pod in rig.pods()}, "the pod's object to go", limit_s=10)
        seconds("kill to force-deleted", began)
        until(lambda: len([node for node in rig.ready() if node.host != victim.host]) == 2, "the replacement", limit_s=180)
        seconds("kill to replacement ready", began)
        assert rig.look().attempts[0].job_status == "RUNNING"
    finally:
        cluster.start_node(number)

    began = time.monotonic()
    until(lambda: released(rig), "the cluster to be gone", limit_s=60)
    seconds("ReleaseCluster to absent", began)


def lost(rig: Rig, pod: str, began: float) -> tuple[Evidence, ...]:
    """Wait for two facts about the node; prints when each was first seen."""
    first: dict[Source, float] = {}

    def facts() -> tuple[Evidence, ...]:
        node = next(node for node in rig.look().cluster[0].nodes if node.name == pod)
        found = tuple(
            Evidence(source=fact.source, subject=f"node {pod}", says=fact.detail, age_s=fact.age_s, final=fact.final)
            for fact in node.facts
            if fact.says is NodeSays.DEAD
        )
        for item in found:
            if item.source not in first:
                first[item.source] = seconds(f"kill to {item.source}: {item.says}", began)
        return found

    until(lambda: sufficient(facts()), "two facts", limit_s=60)
    found = facts()
    assert {item.source for item in found} == {Source.RAY_NODE, Source.KUBERNETES}
    return found


def terminating(rig: Rig, pod: str) -> bool:
    return any(name_of(item) == pod and item["metadata"].get("deletionTimestamp") for item in rig.pods())


def released(rig: Rig) -> bool:
    rig.apply(ReleaseCluster(cluster_id=CLUSTER_ID, reason="the test is over"))
    return rig.look().cluster[0].state is ClusterState.ABSENT


def test_a_stopped_job_is_reported_as_stopped(rig: Rig):
    start(rig)
    until(lambda: rig.look().cluster[0].state is ClusterState.READY, "a head that answers", limit_s=240)
    assert rig.jobs().submit(JOB, "python -c 'import time; time.sleep(600)'", {})
    until(lambda: rig.look().attempts[0].job_status == "RUNNING", "a running job", limit_s=120)
    rig.jobs().stop(JOB)
    until(lambda: rig.look().attempts[0].job_status == "STOPPED", "the job to stop", limit_s=30)
    assert rig.jobs().job(JOB).status is JobStatus.STOPPED
    until(lambda: released(rig), "the cluster to be gone", limit_s=60)
