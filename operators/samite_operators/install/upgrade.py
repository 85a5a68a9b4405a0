"""The check before an upgrade: would the new release fit what the cluster holds? Reads only; a problem stops the upgrade.

Looked at: which versions of our kinds are stored, who else manages the CRDs, what KubeRay serves, and how many runs will see a new operator.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from samite.engines.kuberay.api import CRD, TRAINING_RUN, Document, ForbiddenApiError, GoneApiError, KubernetesApi
from samite.engines.kuberay.features import Features
from samite.spec.run import API_VERSION
from samite_operators.install.release import Release

GROUP, VERSION = API_VERSION.split("/")
KINDS = ("clustertrainingruntimes", "nodeblames", "trainingruns", "trainingruntimes")
CHART_MANAGER = "helm"
SETTLED = frozenset({"Succeeded", "Failed", "Cancelled", "Held", "Suspended"})


@dataclass(slots=True)
class Findings:
    """What was seen, and what stands in the way."""

    seen: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def check_upgrade(api: KubernetesApi, release: Release) -> Findings:
    """Look at the cluster. Raises ApiError if it does not answer."""
    findings = Findings()
    for plural in KINDS:
        _check_definition(api, f"{plural}.{GROUP}", release, findings)
    _check_kuberay(api, findings)
    active = [run for run in _runs(api, release, findings) if (run.get("status") or {}).get("phase", "Pending") not in SETTLED]
    findings.seen.append(f"{len(active)} runs are active; they go on while the operator is replaced")
    return findings


def _check_definition(api: KubernetesApi, name: str, release: Release, findings: Findings) -> None:
    try:
        crd = api.get(CRD, "", name)
    except GoneApiError:
        if release.crds_by_chart:
            findings.seen.append(f"{name} is not there yet; the chart installs it")
        else:
            findings.problems.append(f"{name} is not installed and crds.install is false; first run: samite crds apply")
        return
    stored = crd.get("status", {}).get("storedVersions") or []
    unknown = sorted(set(stored) - {VERSION})
    if unknown:
        findings.problems.append(
            f"{name} has objects stored as {', '.join(unknown)}, which this release does not serve; upgrade to the newest release that serves "
            "them first"
        )
    others = sorted(_managers(crd) - {CHART_MANAGER})
    if release.crds_by_chart and others:
        findings.problems.append(
            f"{name} is managed by {', '.join(others)} as well as by the chart; choose one: crds.install=false, or no more of the other"
        )
    findings.seen.append(f"{name}: stored as {', '.join(stored) or 'nothing'}")


def _managers(crd: Document) -> set[str]:
    """Who applied fields below `spec`. The API server's own writes are updates of `status`."""
    entries: list[dict[str, Any]] = crd["metadata"].get("managedFields") or []
    return {entry["manager"] for entry in entries if entry.get("operation") == "Apply" and "f:spec" in (entry.get("fieldsV1") or {})}


def _check_kuberay(api: KubernetesApi, findings: Findings) -> None:
    try:
        crd = api.get(CRD, "", "rayclusters.ray.io")
    except GoneApiError:
        findings.seen.append("KubeRay is not installed: runs wait until it is")
        return
    try:
        features = Features.from_crd(crd)
    except ValueError as error:
        findings.problems.append(str(error))
        return
    findings.seen.append("KubeRay serves rayclusters.ray.io/v1" + (", with token authentication" if features.auth_mode else ""))


def _runs(api: KubernetesApi, release: Release, findings: Findings) -> Iterator[Document]:
    """Runs that will see a new operator. This check still has the rights of the release that is there, which may not serve a new namespace yet."""
    for namespace in release.namespaces or ("",):
        try:
            yield from api.list(TRAINING_RUN, namespace).items
        except GoneApiError:
            return
        except ForbiddenApiError:
            findings.seen.append(f"namespace {namespace or '*'} is new to this release: its runs begin to be looked after")
