"""The hands: what is deleted, how, and on whose word; what is applied twice is written once; what must not be touched is not."""

from typing import Any

import pytest

from samite.engines.kuberay import names
from samite.engines.kuberay.api import CRD, LEASE, NODE, POD, RAY_CLUSTER, SECRET, error_of
from samite.engines.kuberay.engine import KubeRayEngine
from samite.engines.kuberay.fake_api import FakeApi
from samite.engines.kuberay.runtime import PodSettings, Runtime
from samite.engines.ray_jobs import RayJobs
from samite.lifecycle import Memory, ReleaseCluster, ReplaceNode, RunPlan, Source, StartCluster, StopCluster, Submit
from samite.lifecycle.evidence import Evidence
from samite.lifecycle.plan import StagePlan

CLUSTER = "demo-s00-1f2e3"
CRD_15 = {
    "metadata": {"name": "rayclusters.ray.io"},
    "spec": {"versions": [{"name": "v1", "served": True, "schema": {"openAPIV3Schema": {"properties": {"spec": {"properties": {}}}}}}]},
}
TWO_FACTS = (
    Evidence(source=Source.KUBERNETES, subject="node w1", says="not Ready"),
    Evidence(source=Source.RAY_NODE, subject="node w1", says="dead"),
)


class Rig:
    def __init__(self, run: dict[str, Any]) -> None:
        self.run, self.api, self.now_s = run, FakeApi(), 100.0
        self.api.put(CRD, CRD_15)
        self.api.set_node_ready("kb1", ready=True)
        self.plan = RunPlan(name="demo", uid=run["metadata"]["uid"], stages=(StagePlan(name="stage-0"),))
        self.engine = KubeRayEngine(
            self.api,
            namespace="team-a",
            token_key=b"key",
            storage=lambda run: pytest.fail("no storage is needed"),
            jobs=lambda *_: RayJobs(address="http://127.0.0.1:9", timeout_s=0.2),
            excluded=lambda: frozenset({"kb9"}),
            clock=lambda: self.now_s,
        )
        self.engine._sight(self.plan.uid).storage_problem = "none"

    def do(self, *actions: Any, runtime: Runtime | None = None) -> list:
        self.now_s += 2.0
        return self.engine.apply(self.run, self.plan, actions, runtime=runtime or Runtime())

    def pod(self, name: str = "w1", *, machine: str = "kb1", uid: str = "", deleting: bool = False) -> None:
        labels = {names.RUN_UID: uid or self.plan.uid, names.CLUSTER: CLUSTER, names.ROLE: "worker"}
        metadata: dict[str, Any] = {"name": name, "namespace": "team-a", "labels": labels}
        if deleting:
            metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        self.api.put(POD, {"metadata": metadata, "spec": {"nodeName": machine}, "status": {}})

    @property
    def pod_deletes(self) -> list[tuple[str, int | None]]:
        return [(name, grace_s) for plural, name, grace_s in self.api.deletes if plural == POD.plural]


@pytest.fixture
def rig(run):
    rig = Rig(run)
    yield rig
    rig.engine.close()


def start(nodes: int = 2, **more: Any) -> StartCluster:
    wanted = tuple(f"n{index}" for index in range(nodes))
    return StartCluster(cluster_id=CLUSTER, stage_index=0, nodes=wanted, ranks_per_node=1, gpus_per_node=0, **more)


def replace(**more: Any) -> ReplaceNode:
    return ReplaceNode(cluster_id=CLUSTER, node="w1", replacement="n2", reason="lost", **more)


def test_a_pod_on_a_lost_machine_is_deleted_at_once_on_two_facts(rig):
    rig.do(start())
    rig.pod()
    rig.api.set_node_ready("kb1", ready=False)
    assert rig.do(replace(evidence=TWO_FACTS)) == []
    assert rig.pod_deletes == [("w1", 0)]
    assert rig.do(replace(evidence=TWO_FACTS)) == []
    assert len(rig.pod_deletes) == 1


def test_one_fact_never_forces(rig):
    rig.do(start())
    rig.pod()
    rig.api.set_node_ready("kb1", ready=False)
    rig.do(replace(evidence=TWO_FACTS[:1]))
    assert rig.pod_deletes == [("w1", 1)]


def test_on_a_healthy_machine_the_kubelet_ends_the_pod_and_is_asked_once(rig):
    rig.do(start())
    rig.pod(deleting=True)
    rig.do(replace(evidence=TWO_FACTS))
    assert rig.pod_deletes == []
    rig.api.delete(POD, "team-a", "w1", grace_s=0)
    rig.api.deletes.clear()
    rig.pod()
    rig.do(replace(evidence=TWO_FACTS))
    assert rig.pod_deletes == [("w1", 1)]


def test_an_evicted_node_gets_its_whole_grace(rig):
    rig.do(start())
    rig.pod()
    rig.do(replace(idle=True))
    assert rig.pod_deletes == [("w1", None)]


def test_a_machine_that_cannot_be_read_leaves_the_pod_alone(rig):
    rig.do(start())
    rig.pod(machine="kb5")
    rig.api.refusals += [("list", NODE.plural, error_of(500, "no")), ("get", NODE.plural, error_of(500, "no"))]
    (problem,) = rig.do(replace(evidence=TWO_FACTS))
    assert not problem.permanent
    assert "could not be read" in problem.message
    assert rig.pod_deletes == []


def test_a_machine_that_no_longer_exists_is_lost(rig):
    rig.do(start())
    rig.pod(machine="kb5", deleting=True)
    rig.do(replace(evidence=TWO_FACTS))
    assert rig.pod_deletes == [("w1", 0)]


def test_a_pod_of_another_run_is_never_deleted(rig):
    rig.do(start())
    rig.pod(uid="somebody-else")
    assert rig.do(replace(evidence=TWO_FACTS)) == []
    assert rig.pod_deletes == []


def test_exclusions_are_written_before_the_pod_goes_and_its_old_machine_is_avoided(rig):
    rig.do(start())
    rig.pod()
    rig.api.calls.clear()
    rig.do(replace(idle=True, exclude_nodes=frozenset({"kb3"})))
    written = [call[:2] for call in rig.api.calls if call[0] in {"apply", "delete"}]
    assert written == [("apply", "rayclusters"), ("delete", "pods")]
    cluster = rig.api.look(RAY_CLUSTER, "team-a", CLUSTER)
    affinity = cluster["spec"]["workerGroupSpecs"][0]["template"]["spec"]["affinity"]["nodeAffinity"]
    (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchExpressions"][0]["values"] == ["kb3", "kb9"]
    (wish,) = affinity["preferredDuringSchedulingIgnoredDuringExecution"]
    assert wish["preference"]["matchExpressions"][0]["values"] == ["kb1"]
    assert cluster["spec"]["workerGroupSpecs"][0]["replicas"] == 2


def test_starting_twice_writes_once(rig):
    rig.do(start())
    rig.api.calls.clear()
    assert rig.do(start()) == []
    assert [call for call in rig.api.calls if call[0] in {"apply", "create", "patch"}] == []
    rig.do(start(3))
    assert rig.api.look(RAY_CLUSTER, "team-a", CLUSTER)["spec"]["workerGroupSpecs"][0]["replicas"] == 3


def test_a_start_that_was_cut_off_is_finished_by_the_next_one(rig):
    rig.api.refusals.append(("create", SECRET.plural, error_of(503, "no")))
    (problem,) = rig.do(start())
    assert not problem.permanent
    assert rig.api.look(RAY_CLUSTER, "team-a", CLUSTER) is None
    assert rig.do(start()) == []
    assert rig.api.look(LEASE, "team-a", "demo-heartbeat") is not None


def test_a_cluster_that_is_going_is_not_brought_back(rig):
    rig.do(start())
    known = rig.api.look(RAY_CLUSTER, "team-a", CLUSTER)
    rig.api.put(RAY_CLUSTER, {"metadata": known["metadata"] | {"finalizers": ["x"]}})
    rig.do(ReleaseCluster(cluster_id=CLUSTER, reason="over"))
    before = rig.api.look(RAY_CLUSTER, "team-a", CLUSTER)
    assert before["metadata"]["deletionTimestamp"]
    rig.do(start(5))
    assert rig.api.look(RAY_CLUSTER, "team-a", CLUSTER) == before


def test_what_is_terminating_on_a_lost_machine_goes_with_its_cluster(rig):
    rig.do(start())
    rig.pod(deleting=True)
    rig.pod("w2", machine="kb2")
    rig.api.set_node_ready("kb2", ready=True)
    rig.api.set_node_ready("kb1", ready=False)
    rig.do(StopCluster(cluster_id=CLUSTER, reason="head lost", evidence=TWO_FACTS))
    assert rig.pod_deletes == [("w1", 0)]
    rig.do(StopCluster(cluster_id=CLUSTER, reason="head lost", evidence=TWO_FACTS))
    assert rig.pod_deletes == [("w1", 0), ("w2", None)]


def test_a_missing_installation_and_a_refused_combination_say_so_for_good(rig):
    redis = {"name": "RAY_REDIS_ADDRESS", "value": "redis:6379"}
    (problem,) = rig.do(start(), runtime=Runtime(head=PodSettings(env=(redis,))))
    assert problem.permanent
    assert "gcsFaultToleranceOptions" in problem.message
    assert rig.api.look(RAY_CLUSTER, "team-a", CLUSTER) is None
    rig.api.delete(CRD, "", "rayclusters.ray.io")
    rig.now_s += 1000.0
    (problem,) = rig.do(start())
    assert problem.permanent
    assert "install KubeRay" in problem.message


def test_without_the_right_to_read_the_definition_the_oldest_kuberay_is_assumed(rig):
    rig.api.refusals.append(("get", CRD.plural, error_of(403, "no")))
    assert rig.do(start()) == []
    assert "authOptions" not in rig.api.look(RAY_CLUSTER, "team-a", CLUSTER)["spec"]


def test_a_server_that_does_not_answer_ends_the_turn_s_actions(rig):
    rig.api.down = True
    problems = rig.do(start(), start(3))
    assert [problem.permanent for problem in problems] == [False]


def test_a_submission_that_ray_does_not_take_is_no_permanent_problem(rig):
    rig.do(start())
    submit = Submit(
        cluster_id=CLUSTER,
        submission_id="demo-s00-a1",
        attempt=1,
        stage_index=0,
        num_workers=2,
        num_nodes=2,
        worker_group_restarts=0,
        resume="none",
    )
    (problem,) = rig.do(submit)
    assert (problem.action, problem.permanent) == ("Submit", False)
    assert rig.api.look(LEASE, "team-a", "demo-heartbeat")["metadata"]["annotations"]["samite.dev/submission"] == "demo-s00-a1"


def test_nothing_is_asked_of_the_server_before_the_run_wants_a_cluster(rig):
    rig.api.calls.clear()
    observed = rig.engine.observe(rig.run, rig.plan, Memory())
    assert rig.api.calls == []
    assert observed.cluster == ()
    assert observed.storage.probe is False
    assert observed.storage.message == "none"


def test_fields_that_kuberay_s_definition_does_not_know_are_named_each_time_and_stop_no_replacement(rig):
    rig.api.unknown["rayclusters"] = ("spec.rayVersion", "spec.headGroupSpec.template.spec.affinity")
    for _ in range(2):
        (problem,) = rig.do(start())
        assert problem.permanent
        assert "spec.rayVersion" in problem.message
        assert "spec.headGroupSpec.template.spec.affinity" in problem.message
        assert "KubeRay's CRDs" in problem.message
    rig.pod()
    rig.api.set_node_ready("kb1", ready=False)
    assert rig.do(replace(evidence=TWO_FACTS)) == []
    assert rig.pod_deletes == [("w1", 0)]
