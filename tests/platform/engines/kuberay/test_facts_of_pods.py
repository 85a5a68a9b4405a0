"""What pods and machines say: each fact with its true source, and nothing from silence."""

from typing import Any

import pytest

from samite.engines.kuberay.api import NODE, error_of
from samite.engines.kuberay.fake_api import FakeApi
from samite.engines.kuberay.node_watch import NodeSeen, NodeWatch
from samite.engines.kuberay.pod_facts import ended, gone_node, is_complete, node_observed, why_not_starting
from samite.lifecycle import NodeFact, NodeSays, Source


def pod(*, phase: str = "Running", node: str = "kb1", deleting: bool = False, **status: Any) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": "w1", "uid": "u1", "labels": {"ray.io/node-type": "worker"}}
    if deleting:
        metadata |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30}
    return {"metadata": metadata, "spec": {"nodeName": node}, "status": {"phase": phase, "podIP": "10.0.0.1", **status}}


def machine(
    ready: str = "True", *, taints: tuple[str, ...] = (), age_s: float = 0.5, labels: dict[str, str] | None = None, **conditions: str
) -> NodeSeen:
    found = [{"type": "Ready", "status": ready, "reason": "NodeStatusUnknown" if ready != "True" else "KubeletReady"}]
    found += [{"type": kind, "status": status, "message": "XID 79"} for kind, status in conditions.items()]
    spec = {"taints": [{"key": key, "effect": "NoSchedule"} for key in taints]}
    return NodeSeen(
        document={"metadata": {"name": "kb1", "labels": labels or {}}, "spec": spec, "status": {"conditions": found}}, age_s=age_s
    )


def terminated(reason: str, code: int, *, name: str = "ray-worker") -> list[dict[str, Any]]:
    return [{"name": name, "state": {"terminated": {"reason": reason, "exitCode": code}}}]


def disrupted(reason: str) -> list[dict[str, Any]]:
    return [{"type": "DisruptionTarget", "status": "True", "reason": reason, "message": "told so"}]


def facts(document: dict[str, Any], seen: NodeSeen | None, *, ray_dead: bool = False) -> list[tuple[Source, NodeSays]]:
    node = node_observed(document, seen, ready=True, ray_dead=ray_dead, ray_age_s=0.0)
    return [(fact.source, fact.says) for fact in node.facts]


DEAD, NOTICE = NodeSays.DEAD, NodeSays.PREEMPTION_NOTICE
TABLE = {
    "healthy": (pod(), machine(), False, []),
    "machine not read": (pod(), None, False, []),
    "machine new, without a Ready condition": (pod(), NodeSeen(document={"status": {}}, age_s=0.0), False, []),
    "machine not Ready": (pod(), machine("Unknown"), False, [(Source.KUBERNETES, DEAD)]),
    "machine gone": (pod(), NodeSeen(document=None, age_s=0.0), False, [(Source.KUBERNETES, DEAD)]),
    "Ray says dead": (pod(), machine(), True, [(Source.RAY_NODE, DEAD)]),
    "both say dead": (pod(), machine("False"), True, [(Source.KUBERNETES, DEAD), (Source.RAY_NODE, DEAD)]),
    "out of memory": (pod(containerStatuses=terminated("OOMKilled", 137)), machine(), False, [(Source.KUBERNETES, DEAD)]),
    "a side container ended": (pod(containerStatuses=terminated("Completed", 0, name="sidecar")), machine(), False, []),
    "evicted": (pod(phase="Failed", reason="Evicted", message="disk pressure"), machine(), False, [(Source.KUBERNETES, DEAD)]),
    "Terminating on a lost machine": (pod(deleting=True), machine("Unknown"), False, [(Source.KUBERNETES, DEAD)]),
    "Terminating on a healthy machine": (pod(deleting=True), machine(), False, [(Source.KUBERNETES, NOTICE)]),
    "drained": (pod(conditions=disrupted("EvictionByEvictionAPI")), machine(), False, [(Source.KUBERNETES, NOTICE)]),
    "preempted": (pod(conditions=disrupted("PreemptionByScheduler")), machine(), False, [(Source.KUBERNETES, NOTICE)]),
    "evicted from a lost machine is no preemption": (
        pod(deleting=True, conditions=disrupted("DeletionByTaintManager")),
        machine("Unknown"),
        False,
        [(Source.KUBERNETES, DEAD)],
    ),
    "cloud notice": (pod(), machine(taints=("aws-node-termination-handler/spot-itn",)), False, [(Source.KUBERNETES, NOTICE)]),
    "scale-down": (pod(), machine(taints=("ToBeDeletedByClusterAutoscaler",)), False, [(Source.KUBERNETES, NOTICE)]),
    "a taint of no meaning": (pod(), machine(taints=("nvidia.com/gpu",)), False, []),
    "device monitor": (pod(), machine(GpuXidError="True"), False, [(Source.DEVICE, NodeSays.HARDWARE_FAULT)]),
}


@pytest.mark.parametrize("name", TABLE)
def test_every_fact_has_its_true_source(name: str):
    document, seen, ray_dead, wanted = TABLE[name]
    assert facts(document, seen, ray_dead=ray_dead) == wanted


def test_facts_carry_the_age_of_their_reading_and_final_ones_are_final():
    node = node_observed(pod(), machine("Unknown", age_s=7.0), ready=True, ray_dead=True, ray_age_s=3.0)
    assert [(fact.age_s, fact.final) for fact in node.facts] == [(7.0, False), (3.0, False)]
    node = node_observed(pod(containerStatuses=terminated("Error", 1)), machine(), ready=True, ray_dead=False, ray_age_s=0.0)
    assert [fact.final for fact in node.facts] == [True]
    assert node.ready is False


def test_machine_and_rack_are_named():
    node = node_observed(pod(), machine(labels={"topology.kubernetes.io/zone": "z1"}), ready=None, ray_dead=False, ray_age_s=0.0)
    assert (node.host, node.machine, node.rack, node.ready) == ("kb1", "kb1", "z1", None)


def test_an_end_that_a_watch_has_seen_outlives_the_pod():
    end = ended(pod(containerStatuses=terminated("OOMKilled", 137)))
    node = gone_node("w1", host="kb1", known_end=end, suspended=False)
    assert node.facts == (
        NodeFact(source=Source.KUBERNETES, says=DEAD, detail="container ray-worker ended: OOMKilled, exit code 137", final=True),
    )
    assert [fact.says for fact in gone_node("w1", host="", known_end=None, suspended=True).facts] == [DEAD, NOTICE]


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    state = {"waiting": {"reason": reason, "message": message}}
    return pod(phase="Pending", containerStatuses=[{"name": "ray-worker", "image": "nope:1", "state": state}])


UNSCHEDULABLE = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available"}]


@pytest.mark.parametrize(
    ("pods", "cluster", "events", "wanted"),
    [
        ([pod()], {}, [], ""),
        ([waiting("ContainerCreating")], {}, [], ""),
        ([waiting("ErrImagePull", "x")], {}, [], "image nope:1 cannot be pulled"),
        ([waiting("ImagePullBackOff", "y")], {}, [], "image nope:1 cannot be pulled"),
        (
            [waiting("CreateContainerConfigError", 'secret "s3" not found')],
            {},
            [],
            'container ray-worker cannot start: CreateContainerConfigError: secret "s3" not found',
        ),
        ([pod(phase="Pending", conditions=UNSCHEDULABLE)], {}, [], "no Kubernetes node fits a worker pod: 0/3 nodes are available"),
        ([waiting("ContainerCreating")], {}, [{"reason": "FailedMount", "message": "no such volume"}], "FailedMount: no such volume"),
        ([waiting("ContainerCreating")], {}, [{"reason": "Pulled", "message": "fine"}], ""),
        (
            [],
            {"status": {"conditions": [{"type": "ReplicaFailure", "status": "True", "message": "exceeded quota: team"}]}},
            [],
            "KubeRay cannot make pods: exceeded quota: team",
        ),
    ],
)
def test_why_a_cluster_does_not_come_up(pods, cluster, events, wanted: str):
    assert why_not_starting(cluster, pods, events) == wanted


def test_a_quota_that_refuses_pod_after_pod_is_one_reason_however_they_are_called():
    """KubeRay tries again and again, each time with a new name: the sentence must stand still, or nobody ever acts on it."""

    def refused(name: str) -> dict[str, Any]:
        message = f'FailedCreateWorkerPod\npods "demo-workers-{name}" is forbidden: exceeded quota: team, used: pods=1, limited: pods=1'
        return {"status": {"conditions": [{"type": "ReplicaFailure", "status": "True", "message": message}]}}

    first = why_not_starting(refused("abcde"), [], [])
    assert first == why_not_starting(refused("fghij"), [], [])
    assert "a pod is forbidden: exceeded quota: team" in first


def test_a_cluster_whose_workers_were_never_made_is_not_complete():
    ready = pod(conditions=[{"type": "Ready", "status": "True"}])
    cluster = {"spec": {"workerGroupSpecs": [{"replicas": 2}]}}
    assert not is_complete(cluster, [])
    assert not is_complete(cluster, [ready])
    assert not is_complete(cluster, [ready, ready, waiting("ContainerCreating")])
    assert is_complete(cluster, [ready, ready, ready])


def test_a_missing_replacement_is_no_reason_while_other_workers_are_ready():
    ready = pod(conditions=[{"type": "Ready", "status": "True"}])
    assert why_not_starting({}, [ready, pod(phase="Pending", conditions=UNSCHEDULABLE)], []) == ""


def test_machines_are_listed_seldom_and_suspects_asked_for_by_name():
    api, now = FakeApi(), [0.0]
    for name in ("kb1", "kb2"):
        api.set_node_ready(name, ready=True)
    watch = NodeWatch(api, lambda: now[0])
    watch.refresh([])
    now[0] = 5.0
    watch.refresh(["kb1"])
    watch.refresh(["kb1", ""])
    assert api.calls == [("list", "nodes", ""), ("get", "nodes", "kb1")]
    assert watch.get("kb1").age_s == 0.0
    assert watch.get("kb2").age_s == 5.0
    assert watch.get("kb9") is None


def test_a_machine_that_the_server_does_not_know_is_gone_and_one_it_does_not_answer_for_is_unknown():
    api, now = FakeApi(), [0.0]
    watch = NodeWatch(api, lambda: now[0])
    watch.refresh(["kb1"])
    assert watch.get("kb1").document is None
    api.refusals.append(("get", NODE.plural, error_of(500, "no")))
    watch.refresh(["kb2"])
    assert watch.get("kb2") is None
    now[0] = 31.0
    assert watch.get("kb1") is None
