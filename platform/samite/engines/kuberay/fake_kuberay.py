"""Machines, kubelets, the node controller and KubeRay in virtual time, on top of `fake_api.FakeApi`. For tests and rehearsals.

Strict where the real ones are: a machine that loses power is called NotReady only after `NOT_READY_AFTER_S`; its pods then get a deletion time and
stay Terminating for ever; KubeRay counts such a pod as a replica and replaces nothing until the object is gone; an ended pod is deleted at once.
"""

import uuid
from dataclasses import dataclass, field
from typing import Any

from samite.engines.kuberay import names
from samite.engines.kuberay.api import NODE, POD, RAY_CLUSTER, Document
from samite.engines.kuberay.fake_api import FakeApi

NOT_READY_AFTER_S = 10.0
EVICTED_AFTER_S = 15.0
STARTS_IN_S = 2.0
GRACE_S = 8.0
RAY_DEAD_AFTER_S = 8.0


@dataclass(slots=True)
class Machine:
    """One Kubernetes node."""

    name: str
    powered: bool = True
    down_since_s: float = 0.0
    slots: int = 4
    """Pods that fit."""


@dataclass(slots=True)
class FakeKubeRay:
    """The world below the API server. `tick` lets a second pass."""

    api: FakeApi
    machines: dict[str, Machine] = field(default_factory=dict)
    now_s: float = 0.0
    started_at_s: dict[str, float] = field(default_factory=dict)
    """By pod uid: when its container started."""
    leaving_since_s: dict[str, float] = field(default_factory=dict)
    stopped: bool = False
    """True: KubeRay's operator is down."""
    next_address: int = 1
    unpullable: set[str] = field(default_factory=set)
    """Images that no registry has."""

    def add_machine(self, name: str, *, slots: int = 4) -> None:
        """Put a machine into the cluster."""
        self.machines[name] = Machine(name=name, slots=slots)
        self.api.put(NODE, {"metadata": {"name": name, "labels": {names.HOSTNAME_LABEL: name}}})
        self.api.set_node_ready(name, ready=True)

    def cut_power(self, name: str) -> None:
        """Everything on the machine stops; nobody is told."""
        self.machines[name].powered = False
        self.api.dead_machines.add(name)
        self.machines[name].down_since_s = self.now_s

    def restore(self, name: str) -> None:
        """Power is back: the kubelet finishes the pods that were to go."""
        self.machines[name].powered = True
        self.api.dead_machines.discard(name)
        self.api.set_node_ready(name, ready=True)
        for pod in self.pods_on(name):
            self.api.delete(POD, pod["metadata"]["namespace"], pod["metadata"]["name"], grace_s=0)

    def end_container(self, pod_name: str, *, reason: str = "Error", exit_code: int = 1) -> None:
        """A pod's Ray container ends."""
        for pod in self.api.every(POD):
            if pod["metadata"]["name"] == pod_name:
                container = pod["spec"]["containers"][0]["name"]
                terminated = {"reason": reason, "exitCode": exit_code}
                status = {
                    "phase": "Failed",
                    "containerStatuses": [{"name": container, "state": {"terminated": terminated}}],
                    "conditions": [],
                }
                self.api.put(POD, {"metadata": pod["metadata"], "status": status})

    def pods_on(self, machine: str) -> tuple[Document, ...]:
        """Pods of a machine."""
        return tuple(pod for pod in self.api.every(POD) if pod["spec"].get("nodeName") == machine)

    def runs(self, pod: Document) -> bool:
        """True if the pod's processes are alive, whatever the API server says."""
        machine = self.machines.get(pod["spec"].get("nodeName", ""))
        uid = pod["metadata"]["uid"]
        started = self.started_at_s.get(uid)
        return (
            machine is not None
            and machine.powered
            and started is not None
            and self.now_s - started >= STARTS_IN_S
            and pod.get("status", {}).get("phase") == "Running"
        )

    def ran_for_s(self, pod: Document) -> float:
        """How long ago its container started to run; negative before."""
        return self.now_s - self.started_at_s.get(pod["metadata"]["uid"], self.now_s) - STARTS_IN_S

    def down_for_s(self, pod: Document) -> float:
        """How long the pod's machine has been without power; 0 if it has some."""
        machine = self.machines[pod["spec"]["nodeName"]]
        return 0.0 if machine.powered else self.now_s - machine.down_since_s

    def tick(self) -> None:
        """A second passes."""
        self.now_s += 1.0
        for machine in self.machines.values():
            self._control(machine)
        if not self.stopped:
            for cluster in self.api.every(RAY_CLUSTER):
                self._reconcile(cluster)
        for pod in self.api.every(POD):
            self._schedule(pod)
            self._start(pod)

    def _control(self, machine: Machine) -> None:
        if machine.powered or self.now_s - machine.down_since_s < NOT_READY_AFTER_S:
            return
        self.api.set_node_ready(machine.name, ready=False)
        for pod in self.pods_on(machine.name):
            _set_ready(self.api, pod, ready=False)
            if self.now_s - machine.down_since_s >= EVICTED_AFTER_S and not pod["metadata"].get("deletionTimestamp"):
                self.api.delete(POD, pod["metadata"]["namespace"], pod["metadata"]["name"])

    def _reconcile(self, cluster: Document) -> None:
        if cluster["metadata"].get("deletionTimestamp"):
            return
        mine = [pod for pod in self.api.every(POD) if pod["metadata"]["labels"].get(names.RAY_CLUSTER_LABEL) == cluster["metadata"]["name"]]
        if cluster["spec"].get("suspend"):
            for pod in mine:
                self._end_gently(pod)
            return
        for pod in mine:
            if pod.get("status", {}).get("phase") in {"Failed", "Succeeded"} and not pod["metadata"].get("deletionTimestamp"):
                self.api.delete(POD, pod["metadata"]["namespace"], pod["metadata"]["name"])
                return
        group = cluster["spec"]["workerGroupSpecs"][0]
        for kind, template, count in (
            ("head", cluster["spec"]["headGroupSpec"]["template"], 1),
            ("worker", group["template"], group["replicas"]),
        ):
            have = [pod for pod in mine if pod["metadata"]["labels"][names.RAY_NODE_TYPE_LABEL] == kind]
            for _ in range(count - len(have)):
                self._make_pod(cluster, kind, template)
            for pod in have[count:]:
                self._end_gently(pod)

    def _end_gently(self, pod: Document) -> None:
        """A pod is asked to go, and goes after its grace."""
        metadata = pod["metadata"]
        began_s = self.leaving_since_s.setdefault(metadata["uid"], self.now_s)
        if self.now_s - began_s >= GRACE_S:
            self.api.delete(POD, metadata["namespace"], metadata["name"], grace_s=0)
        elif not metadata.get("deletionTimestamp"):
            self.api.put(POD, {"metadata": {**metadata, "deletionTimestamp": "2026-01-01T00:00:00Z"}})

    def _make_pod(self, cluster: Document, kind: str, template: Document) -> None:
        metadata = cluster["metadata"]
        labels = {**template["metadata"]["labels"], names.RAY_CLUSTER_LABEL: metadata["name"], names.RAY_NODE_TYPE_LABEL: kind}
        owner = {"apiVersion": RAY_CLUSTER.api_version, "kind": RAY_CLUSTER.kind, "name": metadata["name"], "uid": metadata["uid"]}
        self.api.put(
            POD,
            {
                "metadata": {
                    "name": f"{metadata['name']}-{kind}-{uuid.uuid4().hex[:5]}",
                    "namespace": metadata["namespace"],
                    "labels": labels,
                    "ownerReferences": [owner],
                },
                "spec": template["spec"],
                "status": {"phase": "Pending", "conditions": []},
            },
        )

    def _schedule(self, pod: Document) -> None:
        if pod["spec"].get("nodeName"):
            return
        left_out = _excluded(pod)
        for machine in self.machines.values():
            if machine.powered and machine.name not in left_out and len(self.pods_on(machine.name)) < machine.slots:
                self.api.put(POD, {"metadata": pod["metadata"], "spec": {"nodeName": machine.name}})
                self.started_at_s[pod["metadata"]["uid"]] = self.now_s
                return
        message = f"0/{len(self.machines)} nodes are available"
        scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        self.api.put(POD, {"metadata": pod["metadata"], "status": {"conditions": [scheduled]}})

    def _start(self, pod: Document) -> None:
        started = self.started_at_s.get(pod["metadata"]["uid"])
        machine = self.machines.get(pod["spec"].get("nodeName", ""))
        if pod["status"]["phase"] != "Pending" or started is None or machine is None or not machine.powered:
            return
        container = pod["spec"]["containers"][0]
        if container["image"] in self.unpullable:
            reason = ("ErrImagePull", "ImagePullBackOff")[int(self.now_s) % 2]
            waiting = {"name": container["name"], "image": container["image"], "state": {"waiting": {"reason": reason}}}
            self.api.put(POD, {"metadata": pod["metadata"], "status": {"containerStatuses": [waiting]}})
        elif self.now_s - started >= STARTS_IN_S:
            address = f"10.0.{self.next_address // 250}.{self.next_address % 250 + 1}"
            self.next_address += 1
            ready = [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "True"}]
            self.api.put(POD, {"metadata": pod["metadata"], "status": {"phase": "Running", "podIP": address, "conditions": ready}})


def _set_ready(api: FakeApi, pod: Document, *, ready: bool) -> None:
    others = [item for item in pod.get("status", {}).get("conditions", ()) if item["type"] != "Ready"]
    api.put(POD, {"metadata": pod["metadata"], "status": {"conditions": [*others, {"type": "Ready", "status": str(ready)}]}})


def _excluded(pod: Document) -> set[str]:
    node: dict[str, Any] = (pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    terms = (node.get("requiredDuringSchedulingIgnoredDuringExecution") or {}).get("nodeSelectorTerms") or ()
    return {
        value
        for term in terms
        for rule in term.get("matchExpressions", ())
        if rule["key"] == names.HOSTNAME_LABEL and rule["operator"] == "NotIn"
        for value in rule["values"]
    }
