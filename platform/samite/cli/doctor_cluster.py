"""`samite doctor --context`: is this cluster fit for runs, may this person use it, and does its operator look after them.

Each check says what it found and, unless all is well, one thing to do. Changes nothing, but for the dry runs that ask the API server what it would
store, a few small objects of the storage probe, and `--fix-finalizers`.
"""

import os
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from samite.cli.doctor import Finding
from samite.errors import NotAllowedError, SamiteError

if TYPE_CHECKING:
    from samite.engines.kuberay.client import ClusterEngine

UNSEEN_S = 60.0
"""A change of a run that the operator has not looked at for so long was missed."""
MIN_KUBERNETES = (1, 31)


def findings_of_cluster(engine: "ClusterEngine") -> Iterator[Finding]:
    """Every check of cluster, rights and operator. The first that finds no server ends them."""
    from samite.cli.doctor_finalizers import findings_of_finalizers
    from samite.cli.doctor_rights import findings_of_rights

    try:
        yield _server(engine)
    except SamiteError as error:
        yield Finding(name="api server", ok=False, found=str(error), remedy="kubectl cluster-info tells the same without samite")
        return
    for check in (_crds, _kuberay, findings_of_rights, _operator, _runs, findings_of_finalizers):
        yield from _told(check, engine)


def _told(check: "Callable[[ClusterEngine], Iterator[Finding]]", engine: "ClusterEngine") -> Iterator[Finding]:
    """What a check finds; a right that is missing, or a server that falls silent, is a finding too."""
    name = check.__name__.removeprefix("findings_of_").strip("_").replace("_", " ")
    try:
        yield from check(engine)
    except NotAllowedError as error:
        yield Finding(name=name, ok=None, found=f"not allowed to look: {error}", remedy="ask somebody who may, or for the right")
    except SamiteError as error:
        yield Finding(name=name, ok=False, found=str(error))


def _server(engine: "ClusterEngine") -> Finding:
    began_s = time.monotonic()
    version = engine.api.read("/version")
    took_ms = (time.monotonic() - began_s) * 1000
    number = tuple(int("".join(filter(str.isdigit, str(version.get(key, "0")))) or 0) for key in ("major", "minor"))
    found = f"Kubernetes {version.get('gitVersion', 'unknown')} at {engine.where.address} in {took_ms:.0f} ms, as {engine.where.user}"
    if number < MIN_KUBERNETES:
        return Finding(name="api server", ok=False, found=found, remedy="Samite needs Kubernetes 1.31 or newer")
    return Finding(name="api server", ok=True, found=found)


def _crds(engine: "ClusterEngine") -> Iterator[Finding]:
    """Each definition beside this version's, field by field and rule by rule. Whoever may change definitions has `samite crds diff` for the texts too."""
    from samite.crds import custom_resource_definitions
    from samite.engines.kuberay.api import CRD, GoneApiError

    context = f"--context {engine.where.context}"
    for definition in custom_resource_definitions().values():
        name = str(definition["metadata"]["name"])
        try:
            stored = engine.api.get(CRD, "", name)
        except GoneApiError:
            remedy = f"install the chart, or: samite crds apply {context}"
            yield Finding(name="crd", ok=False, found=f"{name} is not there", remedy=remedy)
            continue
        ours, theirs = set(fields_of(definition)), set(fields_of(stored))
        missing, unknown = sorted(ours - theirs), sorted(theirs - ours)
        remedy = f"samite crds diff {context}, then samite crds apply {context}"
        if missing:
            yield Finding(name="crd", ok=False, found=f"{name} is older than this samite: it drops {_some(missing)}", remedy=remedy)
        elif unknown:
            found = f"{name} is newer than this samite: it also has {_some(unknown)}"
            yield Finding(name="crd", ok=True, warn=True, found=found, remedy="pip install --upgrade samite")
        elif rules_of(stored) != rules_of(definition):
            yield Finding(name="crd", ok=True, warn=True, found=f"{name} has the same fields, but other rules", remedy=remedy)
        else:
            yield Finding(name="crd", ok=True, found=f"{name} is of this version")


def fields_of(definition: dict[str, Any]) -> Iterator[str]:
    """Dotted names of every field of every served version."""
    for version in definition["spec"]["versions"]:
        schema = (version.get("schema") or {}).get("openAPIV3Schema") or {}
        yield from (f"{version['name']}:{path}" for path in _paths(schema, ""))


def rules_of(definition: dict[str, Any]) -> list[tuple[str, str]]:
    """(place, rule) of every CEL rule, in order."""

    def of(schema: dict[str, Any], place: str) -> Iterator[tuple[str, str]]:
        for rule in schema.get("x-kubernetes-validations") or ():
            yield place, str(rule.get("rule"))
        for name, part in (schema.get("properties") or {}).items():
            yield from of(part, f"{place}.{name}")
        for key in ("items", "additionalProperties"):
            if isinstance(schema.get(key), dict):
                yield from of(schema[key], f"{place}[]")

    versions = definition["spec"]["versions"]
    return sorted(rule for version in versions for rule in of((version.get("schema") or {}).get("openAPIV3Schema") or {}, version["name"]))


def _paths(schema: dict[str, Any], place: str) -> Iterator[str]:
    for name, part in (schema.get("properties") or {}).items():
        path = f"{place}.{name}" if place else name
        yield path
        yield from _paths(part, path)
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from _paths(schema[key], f"{place}[]")


def _kuberay(engine: "ClusterEngine") -> Iterator[Finding]:
    from samite.engines.kuberay.api import CRD, GoneApiError
    from samite.engines.kuberay.features import Features

    remedy = "install KubeRay 1.6 or newer: https://docs.ray.io/en/latest/cluster/kubernetes/getting-started.html"
    try:
        features = Features.from_crd(engine.api.get(CRD, "", "rayclusters.ray.io"))
    except GoneApiError:
        yield Finding(name="kuberay", ok=False, found="rayclusters.ray.io is not there", remedy=remedy)
        return
    except ValueError as error:
        yield Finding(name="kuberay", ok=False, found=str(error), remedy=remedy)
        return
    version = "1.6 or newer" if features.upgrade_strategy else "1.5"
    if not features.auth_secret_name:
        found = f"KubeRay {version} by the fields of its CRD; it cannot be given a token for Ray, so the operator passes one itself"
        yield Finding(name="kuberay", ok=True, warn=True, found=found, remedy=remedy)
    else:
        yield Finding(name="kuberay", ok=True, found=f"KubeRay {version} by the fields of its CRD")


def _operator(engine: "ClusterEngine") -> Iterator[Finding]:
    """The operator's own Lease: who holds it, and whether it is being renewed."""
    leases = list(_operator_leases(engine))
    if not leases:
        remedy = "install the chart, or name its namespace: export SAMITE_OPERATOR_NAMESPACE=..."
        yield Finding(name="operator", ok=False, found="no Lease of an operator: nobody looks after the runs", remedy=remedy)
    for lease in leases:
        yield _lease_finding(engine, lease)


def _operator_leases(engine: "ClusterEngine") -> Iterator[dict[str, Any]]:
    from samite.engines.kuberay.api import LEASE
    from samite.engines.kuberay.client import OPERATOR_NAMESPACE

    places = (os.environ.get("SAMITE_OPERATOR_NAMESPACE") or OPERATOR_NAMESPACE, engine.where.namespace, "")
    for namespace in dict.fromkeys(places):
        try:
            found = engine.api.list(LEASE, namespace).items
        except NotAllowedError:
            if namespace == places[0]:
                continue
            raise
        operators = [lease for lease in found if lease["metadata"]["name"].endswith("operator") and "samite" in lease["metadata"]["name"]]
        if operators:
            yield from operators
            return


def _lease_finding(engine: "ClusterEngine", lease: dict[str, Any]) -> Finding:
    """No clock of another machine is believed: a Lease that looks old is looked at twice."""
    from samite.engines.kuberay.api import LEASE
    from samite.engines.kuberay.client_run import seconds

    metadata, spec = lease["metadata"], lease.get("spec") or {}
    name, holder = f"{metadata['namespace']}/{metadata['name']}", str(spec.get("holderIdentity") or "")
    if not holder:
        remedy = "kubectl get pods -A -l app.kubernetes.io/component=operator"
        return Finding(name="operator", ok=False, found=f"{name} was given back: the operator ended", remedy=remedy)
    duration_s = float(spec.get("leaseDurationSeconds") or 15)
    age_s = time.time() - (seconds(spec.get("renewTime")) or 0.0)
    if abs(age_s) <= duration_s:
        return Finding(name="operator", ok=True, found=f"{holder} renewed {name} {max(age_s, 0):.0f} s ago")
    time.sleep(duration_s / 3.0 + 1.0)
    again = engine.api.get(LEASE, str(metadata["namespace"]), str(metadata["name"]))
    if again["metadata"].get("resourceVersion") != metadata.get("resourceVersion"):
        found = f"{holder} renews {name}, but its clock and this machine's are {abs(age_s):.0f} s apart"
        return Finding(name="operator", ok=True, warn=True, found=found, remedy="set the clocks; Samite itself compares none of them")
    remedy = f"kubectl -n {metadata['namespace']} logs {holder}"
    return Finding(name="operator", ok=False, found=f"{holder} renewed {name} {age_s:.0f} s ago and not since", remedy=remedy)


def _runs(engine: "ClusterEngine") -> Iterator[Finding]:
    """What the operator has not looked at: its watch may be dead while its process lives."""
    from samite.engines.kuberay.client_run import seconds

    runs = engine.runs()
    unseen = []
    for run in runs:
        metadata, status = run.document["metadata"], run.document.get("status") or {}
        changed = [entry.get("time") for entry in metadata.get("managedFields") or () if not entry.get("subresource")]
        since_s = max((found for found in map(seconds, [*changed, metadata.get("creationTimestamp")]) if found), default=0.0)
        behind = int(status.get("observedGeneration") or 0) < int(metadata.get("generation") or 1)
        if behind and time.time() - since_s > UNSEEN_S:
            unseen.append(f"{run.name} ({time.time() - since_s:.0f} s)")
    if unseen:
        remedy = "kubectl -n samite-system rollout restart deployment -l app.kubernetes.io/component=operator; runs go on"
        yield Finding(name="watch", ok=False, found=f"changes that no operator has looked at: {_some(unseen)}", remedy=remedy)
    else:
        yield Finding(name="watch", ok=True, found=f"{len(runs)} runs in {engine.place}, every change was looked at")


def operator_may_be_alive(engine: "ClusterEngine") -> bool:
    """False only if it is known that no operator renews a Lease."""
    try:
        return any(finding.ok for finding in _operator(engine))
    except SamiteError:
        return True


def _some(names: list[str], limit: int = 5) -> str:
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")
