"""The engine's requests in a real API server, without nodes or controllers: what the server itself decides about them."""

import sys
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from api_server import lone_api_server
from box.binaries import MissingToolError
from box.kubectl import Kubectl
from box.kuberay import apply_newest_crds
from box.waiting import until

from samite.checkpoint.store import MemoryStore
from samite.engines.kuberay import names
from samite.engines.kuberay.api import (
    LEASE,
    NODE,
    POD,
    RAY_CLUSTER,
    ROLE,
    ROLE_BINDING,
    SECRET,
    SERVICE_ACCOUNT,
    ConflictApiError,
    ForbiddenApiError,
    GoneApiError,
    PermanentApiError,
    RetryableApiError,
)
from samite.engines.kuberay.api_client import RealApi, connect
from samite.engines.kuberay.cluster import ray_cluster
from samite.engines.kuberay.engine import KubeRayEngine
from samite.engines.kuberay.features import Features
from samite.engines.kuberay.runtime import PodSettings, Queue, Runtime
from samite.lifecycle import Memory, ReleaseCluster, ReplaceNode, RequestCheckpoint, RunPlan, Source, StartCluster
from samite.lifecycle.evidence import Evidence
from samite.spec.lease import CONTROL, SUBMISSION, lease_name
from samite.spec.stored import run_from_object

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(200)]
NAMESPACE = "team-a"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubectl]:
    try:
        with lone_api_server(tmp_path_factory.mktemp("api-server")) as kubectl:
            from samite.cli.app import run

            assert run(["--kubeconfig", str(kubectl.kubeconfig), "crds", "apply"]) == 0
            # A definition that was made this moment has no conditions yet, which `kubectl wait` calls an error.
            until(lambda: apply_newest_crds(kubectl) is None, "KubeRay's definitions", limit_s=60)
            kubectl("create", "namespace", NAMESPACE)
            yield kubectl
    except MissingToolError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def api(server: Kubectl) -> RealApi:
    return connect(kubeconfig=str(server.kubeconfig))


@pytest.fixture
def run(server: Kubectl) -> Iterator[dict[str, Any]]:
    stage = {"name": "only", "contextLength": 128, "workers": {"max": 2}, "batch": {"tokens": 1024}, "budget": {"steps": 10}}
    document = {
        "apiVersion": "samite.dev/v1alpha1",
        "kind": "TrainingRun",
        "metadata": {"name": "demo", "namespace": NAMESPACE},
        "spec": {"engine": "RayCluster", "checkpoint": {"uri": "s3://bucket/demo"}, "stages": [stage]},
    }
    server.apply(document)
    yield server.within(NAMESPACE).get("trainingrun", "demo")
    server("-n", NAMESPACE, "delete", "trainingruns,rayclusters,leases,roles,rolebindings,secrets", "--all")


def engine_of(api: RealApi) -> KubeRayEngine:
    return KubeRayEngine(api, namespace=NAMESPACE, token_key=b"key", storage=lambda run: MemoryStore("memory://hands"))


def start(nodes: int = 2, **more: Any) -> StartCluster:
    names_of_nodes = tuple(f"n{index}" for index in range(nodes))
    return StartCluster(cluster_id="demo-s00-1f2e3", stage_index=0, nodes=names_of_nodes, ranks_per_node=1, gpus_per_node=0, **more)


def plan_of(run: dict[str, Any]) -> RunPlan:
    return RunPlan.from_run(run_from_object(run), uid=run["metadata"]["uid"])


EVERYTHING = Runtime(
    queue=Queue(name="research", topology="Required", slice_size=2),
    image_pull_secrets=("registry",),
    worker=PodSettings(
        tolerations=({"key": "gpu", "operator": "Exists"},),
        volumes=({"name": "data", "persistentVolumeClaim": {"claimName": "data"}},),
        volume_mounts=({"name": "data", "mountPath": "/data"},),
        env=({"name": "NCCL_DEBUG", "value": "INFO"},),
        shared_memory="8Gi",
    ),
)


@pytest.mark.parametrize("runtime", [Runtime(), EVERYTHING], ids=["plain", "everything"])
def test_the_server_keeps_every_field_of_our_cluster(api: RealApi, run: dict[str, Any], runtime: Runtime):
    wanted = ray_cluster(
        run,
        cluster_id="demo-s00-1f2e3",
        stage_index=0,
        replicas=2,
        gpus_per_node=0,
        runtime=runtime,
        features=Features(),
        excluded=("kb7",),
    )
    stored = api.apply(RAY_CLUSTER, NAMESPACE, deepcopy(wanted))
    assert missing(wanted["spec"], stored["spec"]) == []


def missing(wanted: Any, stored: Any, path: str = "spec") -> list[str]:
    """What was sent and not kept."""
    if isinstance(wanted, dict):
        return [found for key in wanted for found in (missing(wanted[key], (stored or {}).get(key), f"{path}.{key}"))]
    if isinstance(wanted, list):
        pairs = zip(wanted, stored or [None] * len(wanted), strict=True)
        return [found for index, (one, other) in enumerate(pairs) for found in missing(one, other, f"{path}[{index}]")]
    return [] if wanted == stored else [f"{path}: {wanted!r} became {stored!r}"]


def test_starting_twice_writes_once_and_a_new_size_is_one_more_write(api: RealApi, run: dict[str, Any]):
    engine, plan = engine_of(api), plan_of(run)
    assert engine.apply(run, plan, [start()], runtime=Runtime()) == []
    first = api.get(RAY_CLUSTER, NAMESPACE, "demo-s00-1f2e3")
    assert engine.apply(run, plan, [start()], runtime=Runtime()) == []
    assert api.get(RAY_CLUSTER, NAMESPACE, "demo-s00-1f2e3")["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    assert engine.apply(run, plan, [start(3, exclude_nodes=frozenset({"kb1"}))], runtime=Runtime()) == []
    changed = api.get(RAY_CLUSTER, NAMESPACE, "demo-s00-1f2e3")
    assert changed["spec"]["workerGroupSpecs"][0]["replicas"] == 3
    assert changed["metadata"]["uid"] == first["metadata"]["uid"]
    assert changed["metadata"]["annotations"][names.EXCLUDED] == "kb1"
    engine.close()


def test_a_run_gets_its_account_its_role_on_one_lease_and_its_token(api: RealApi, run: dict[str, Any]):
    engine, plan = engine_of(api), plan_of(run)
    assert engine.apply(run, plan, [start()], runtime=Runtime()) == []
    (rule,) = api.get(ROLE, NAMESPACE, "demo-worker")["rules"]
    assert rule == {
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"],
        "resourceNames": ["demo-heartbeat"],
        "verbs": ["get", "patch"],
    }
    for kind, name in (
        (SERVICE_ACCOUNT, "demo-worker"),
        (ROLE_BINDING, "demo-worker"),
        (LEASE, "demo-heartbeat"),
        (SECRET, "demo-s00-1f2e3-ray-token"),
    ):
        assert api.get(kind, NAMESPACE, name)["metadata"]["ownerReferences"][0]["uid"] == run["metadata"]["uid"]
    engine.close()


def test_a_worker_s_token_may_renew_its_own_lease_and_nothing_else(api: RealApi, run: dict[str, Any], server: Kubectl):
    engine, plan = engine_of(api), plan_of(run)
    assert engine.apply(run, plan, [start()], runtime=Runtime()) == []
    engine.close()
    who = f"--as=system:serviceaccount:{NAMESPACE}:demo-worker"
    within = server.within(NAMESPACE)

    def may(*words: str) -> bool:
        return within("auth", "can-i", *words, who, check=False).strip() == "yes"

    assert may("get", "lease/demo-heartbeat")
    assert may("patch", "lease/demo-heartbeat")
    for words in (
        ("update", "lease/demo-heartbeat"),
        ("delete", "lease/demo-heartbeat"),
        ("get", "lease/other-heartbeat"),
        ("list", "leases"),
        ("create", "leases"),
        ("get", "pods"),
        ("get", "secrets"),
        ("get", "trainingruns.samite.dev"),
        ("get", "rayclusters.ray.io"),
    ):
        assert not may(*words), words


def test_a_cluster_of_another_run_is_left_alone(api: RealApi, run: dict[str, Any]):
    engine, plan = engine_of(api), plan_of(run)
    other = deepcopy(run)
    other["metadata"]["uid"] = "00000000-0000-0000-0000-000000000000"
    assert engine.apply(run, plan, [start()], runtime=Runtime()) == []
    (problem,) = engine.apply(other, plan, [start()], runtime=Runtime())
    assert problem.permanent
    assert "belongs to" in problem.message
    engine.close()


def test_control_documents_reach_the_lease_and_a_newer_attempt_keeps_it(api: RealApi, run: dict[str, Any]):
    from samite.engines.kuberay.control import take_lease

    engine, plan = engine_of(api), plan_of(run)
    assert engine.apply(run, plan, [start()], runtime=Runtime()) == []
    take_lease(api, run, "demo-s00-a2")
    action = RequestCheckpoint(request_id="r1", submission_id="demo-s00-a2", stop_after=True, reason="a person asked")
    assert engine.apply(run, plan, [action, action], runtime=Runtime()) == []
    annotations = api.get(LEASE, NAMESPACE, lease_name("demo"))["metadata"]["annotations"]
    assert annotations[SUBMISSION] == "demo-s00-a2"
    assert annotations[CONTROL] == '{"stop.json": {"reason": "a person asked", "request": "r1"}}'
    with pytest.raises(Exception, match="newer than demo-s00-a1"):
        take_lease(api, run, "demo-s00-a1")
    take_lease(api, run, "demo-s00-a3")
    annotations = api.get(LEASE, NAMESPACE, lease_name("demo"))["metadata"]["annotations"]
    assert annotations[CONTROL] == "{}"
    engine.close()


def test_errors_say_whether_waiting_helps(api: RealApi, server: Kubectl, run: dict[str, Any]):
    with pytest.raises(GoneApiError):
        api.get(LEASE, NAMESPACE, "nothing")
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "one", "namespace": NAMESPACE}, "spec": {}}
    made = api.create(LEASE, NAMESPACE, lease)
    with pytest.raises(ConflictApiError):
        api.create(LEASE, NAMESPACE, lease)
    with pytest.raises(ConflictApiError):
        api.delete(LEASE, NAMESPACE, "one", uid="00000000-0000-0000-0000-000000000000")
    with pytest.raises(ConflictApiError):
        api.patch(LEASE, NAMESPACE, "one", {"metadata": {"resourceVersion": "1", "annotations": {"a": "b"}}})
    with pytest.raises(PermanentApiError):
        api.create(LEASE, NAMESPACE, {**lease, "metadata": {"name": "Not A Name"}})
    api.delete(LEASE, NAMESPACE, "one", uid=made["metadata"]["uid"])
    api.delete(LEASE, NAMESPACE, "one")
    metadata = {"name": "gone", "namespace": NAMESPACE, "uid": made["metadata"]["uid"]}
    gone = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": metadata, "spec": ray_cluster_spec(run)}
    with pytest.raises(ConflictApiError):
        api.apply(RAY_CLUSTER, NAMESPACE, gone)
    # A socket that nobody listens on.
    nobody = connect(kubeconfig=str(server.kubeconfig), timeout_s=0.5)
    nobody._host = "https://127.0.0.1:9"
    with pytest.raises(RetryableApiError):
        nobody.get(NODE, "", "x")


def ray_cluster_spec(run: dict[str, Any]) -> dict[str, Any]:
    arguments = {"cluster_id": "gone", "stage_index": 0, "replicas": 1, "gpus_per_node": 0, "runtime": Runtime(), "features": Features()}
    return ray_cluster(run, **arguments)["spec"]


def test_a_token_without_rights_is_forbidden(server: Kubectl, tmp_path: Path):
    server("-n", NAMESPACE, "create", "serviceaccount", "nobody", check=False)
    token = server("-n", NAMESPACE, "create", "token", "nobody").strip()
    text = Path(server.kubeconfig).read_text(encoding="utf-8")
    import yaml

    document = yaml.safe_load(text)
    document["users"][0]["user"] = {"token": token}
    file = tmp_path / "kubeconfig"
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    api = connect(kubeconfig=str(file))
    with pytest.raises(ForbiddenApiError, match="cannot list"):
        api.list(POD, NAMESPACE)


def test_a_release_deletes_by_uid_and_an_absent_cluster_is_seen_as_absent(api: RealApi, run: dict[str, Any]):
    from samite.lifecycle import ClusterState
    from samite.lifecycle.memory import ClusterMemory

    engine, plan = engine_of(api), plan_of(run)
    memory = Memory(cluster=ClusterMemory(cluster_id="demo-s00-1f2e3", stage_index=0, shape="2x0", nodes=("n0", "n1")))
    assert engine.observe(run, plan, memory).cluster[0].state is ClusterState.ABSENT
    assert engine.apply(run, plan, [start()], runtime=Runtime()) == []
    assert engine.observe(run, plan, memory).cluster[0].state is ClusterState.STARTING
    release = ReleaseCluster(cluster_id="demo-s00-1f2e3", reason="over")
    assert engine.apply(run, plan, [release], runtime=Runtime()) == []
    assert engine.apply(run, plan, [release], runtime=Runtime()) == []
    assert engine.observe(run, plan, memory).cluster[0].state is ClusterState.ABSENT
    engine.close()


def test_lists_come_in_pages_with_the_version_of_the_first(api: RealApi, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys.modules["samite.engines.kuberay.api_client"], "PAGE", 2)
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": {}}
    for index in range(5):
        metadata = {"name": f"page-{index}", "namespace": NAMESPACE, "labels": {"paged": "yes"}}
        api.create(LEASE, NAMESPACE, {**lease, "metadata": metadata})
    before = api.requests
    found = api.list(LEASE, NAMESPACE, labels={"paged": "yes"})
    assert len(found.items) == 5
    assert int(found.resource_version) > 0
    assert api.requests - before == 3


def test_a_pod_that_stays_terminating_on_a_lost_node_goes_on_two_facts(api: RealApi, run: dict[str, Any], server: Kubectl):
    engine, plan = engine_of(api), plan_of(run)
    assert engine.apply(run, plan, [start()], runtime=Runtime()) == []
    server.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "kb1"}})
    condition = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "lastHeartbeatTime": None}
    api.patch(NODE, "", "kb1", {"status": {"conditions": [condition]}}, subresource="status")
    labels = {names.RUN_UID: run["metadata"]["uid"], names.CLUSTER: "demo-s00-1f2e3", names.ROLE: "worker"}
    spec = {"nodeName": "kb1", "serviceAccountName": "demo-worker", "containers": [{"name": "ray-worker", "image": "x"}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "w1", "namespace": NAMESPACE, "labels": labels}, "spec": spec}
    made = api.create(POD, NAMESPACE, pod)
    api.delete(POD, NAMESPACE, "w1", uid=made["metadata"]["uid"])
    assert api.get(POD, NAMESPACE, "w1")["metadata"]["deletionTimestamp"]
    facts = (
        Evidence(source=Source.KUBERNETES, subject="node w1", says="kb1 is not Ready"),
        Evidence(source=Source.RAY_NODE, subject="node w1", says="Ray reports the node dead"),
    )
    action = ReplaceNode(cluster_id="demo-s00-1f2e3", node="w1", replacement="n2", reason="lost", evidence=facts)
    assert engine.apply(run, plan, [action], runtime=Runtime()) == []
    with pytest.raises(GoneApiError):
        api.get(POD, NAMESPACE, "w1")
    engine.close()
    server("delete", "node", "kb1")
