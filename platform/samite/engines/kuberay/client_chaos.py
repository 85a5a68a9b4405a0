"""Breaking a run on Kubernetes on purpose: pods deleted without grace, faults asked of the trainer. Called by `samite chaos`.

A deleted pod is not a power cut: Kubernetes knows at once. It shows the same recovery, though, from the loss of a node on. Faults of ranks travel
as `control/faults.json` of the run's Lease, the way of every control document; nothing is executed in a pod.
"""

import json
import time
from dataclasses import asdict
from datetime import UTC, datetime

from samite.engines.base import Blow, who
from samite.engines.kuberay import names
from samite.engines.kuberay.api import EVENT, LEASE, POD, ConflictApiError, Document, KubernetesApi
from samite.engines.kuberay.client_run import ClusterRun
from samite.engines.kuberay.control import control_documents
from samite.errors import ConflictError, NotFoundError, SamiteError, UsageError
from samite.spec.lease import CONTROL, lease_name

FAULTS_FILE = "faults.json"
_OF_RANKS = {"kill-rank": "kill", "stop-rank": "stop"}
_TRIES = 5


def strike(api: KubernetesApi, run: ClusterRun, blow: Blow, *, place: str) -> str:
    """Let the blow fall; returns what was done. NotFoundError if there is nothing to hit."""
    if blow.kind in {"kill-node", "kill-head"}:
        return _kill_pod(api, run, blow)
    if blow.kind == "kill-driver":
        raise UsageError("kill-driver is for local runs: on Kubernetes the driver lives in the head's pod. Use: samite chaos kill-head")
    if blow.kind == "kill-supervisor":
        raise UsageError(
            f"kill-supervisor is for local runs: in {place} the operator looks after the run. "
            "Use: kubectl --namespace samite-system delete pod --selector app.kubernetes.io/component=operator"
        )
    return _fault(api, run, blow)


def _kill_pod(api: KubernetesApi, run: ClusterRun, blow: Blow) -> str:
    role = "head" if blow.kind == "kill-head" else "worker"
    pods = api.list(POD, run.namespace, labels={names.RUN: run.name, names.ROLE: role}).items
    alive = sorted((pod for pod in pods if _is_alive(pod)), key=lambda pod: str(pod["metadata"]["name"]))
    by_name = {name: pod for pod in alive for name in (pod["metadata"]["name"], pod["spec"].get("nodeName", ""))}
    chosen = by_name.get(blow.node) if blow.node else (alive[-1] if alive else None)
    if chosen is None:
        there = ", ".join(pod["metadata"]["name"] for pod in alive)
        raise NotFoundError(
            f"no living {role} {blow.node}".rstrip()
            + " of this run right now"
            + (f"; there are: {there}" if there else "")
            + ". See: samite status"
        )
    name = str(chosen["metadata"]["name"])
    _announce(api, run, blow.kind, name)
    api.delete(POD, run.namespace, name, uid=str(chosen["metadata"]["uid"]), grace_s=0)
    return f"deleted pod {name} of {run.name} without grace (it was on node {chosen['spec'].get('nodeName', 'none')})"


def _fault(api: KubernetesApi, run: ClusterRun, blow: Blow) -> str:
    fault = {key: value for key, value in asdict(blow).items() if key != "node"} | {"kind": _OF_RANKS.get(blow.kind, blow.kind)}
    for _ in range(_TRIES):
        try:
            lease = api.get(LEASE, run.namespace, lease_name(run.name))
        except NotFoundError:
            raise NotFoundError(f"no attempt of run {run.name!r} is under way, so no rank can be asked. See: samite status") from None
        control = control_documents(lease["metadata"].get("annotations") or {})
        faults = list((control.get(FAULTS_FILE) or {}).get("faults", ()))
        fault["id"] = f"chaos-{time.time_ns()}"
        control[FAULTS_FILE] = {"faults": [*faults, fault]}
        version = lease["metadata"]["resourceVersion"]
        patch = {"metadata": {"resourceVersion": version, "annotations": {CONTROL: json.dumps(control)}}}
        try:
            api.patch(LEASE, run.namespace, lease_name(run.name), patch)
        except ConflictApiError:
            continue  # the driver renewed in between: it does so each two seconds
        _announce(api, run, blow.kind, f"rank {blow.rank}")
        return f"asked rank {blow.rank} of {run.name} for: {blow.kind}"
    raise ConflictError(f"the Lease {lease_name(run.name)} changed {_TRIES} times while it was read; nothing was asked. Try again")


def _is_alive(pod: Document) -> bool:
    return not pod["metadata"].get("deletionTimestamp") and (pod.get("status") or {}).get("phase") == "Running"


def _announce(api: KubernetesApi, run: ClusterRun, kind: str, what: str) -> None:
    """An Event on the run. Without the right to make one the blow falls all the same: who may delete pods needs no permission to say so."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{run.name}-chaos-", "namespace": run.namespace},
        "involvedObject": {
            "apiVersion": run.document.get("apiVersion", ""),
            "kind": "TrainingRun",
            "name": run.name,
            "namespace": run.namespace,
            "uid": run.uid,
        },
        "type": "Warning",
        "reason": "ChaosInjected",
        "message": f"{kind} {what}, asked for by {who()}",
        "source": {"component": "samite-cli"},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
    try:
        api.create(EVENT, run.namespace, event)
    except SamiteError:
        return
