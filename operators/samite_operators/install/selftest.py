"""`helm test`: does the API server serve our kinds, does the operator have every right of its roles, and none that it must not have?

Runs as the operator's service account, so the answers are about the operator itself.
"""

from samite.engines.kuberay.api import CRD, Document, GoneApiError, Kind, KubernetesApi
from samite_operators.install.release import Release, Right
from samite_operators.install.upgrade import GROUP, KINDS, Findings

ACCESS_REVIEW = Kind(
    group="authorization.k8s.io", version="v1", plural="selfsubjectaccessreviews", kind="SelfSubjectAccessReview", namespaced=False
)
FORBIDDEN = (
    ("", "secrets", "get"),
    ("", "secrets", "list"),
    ("", "secrets", "watch"),
    ("", "pods/exec", "create"),
    ("", "pods", "create"),
    ("rbac.authorization.k8s.io", "roles", "escalate"),
    ("rbac.authorization.k8s.io", "roles", "bind"),
    ("samite.dev", "trainingruns", "create"),
    ("", "nodes", "patch"),
)
"""What would let a stolen token of the operator read secrets, run code in pods, or give itself more."""


def self_test(api: KubernetesApi, release: Release) -> Findings:
    """Ask the API server. Raises ApiError if it does not answer."""
    findings = Findings()
    for plural in KINDS:
        _check_served(api, f"{plural}.{GROUP}", findings)
    missing = [right for right in release.rights if not _allowed(api, right)]
    findings.problems += [f"missing right: {right}; run helm upgrade, or compare the roles with the chart's" for right in missing]
    findings.seen.append(f"{len(release.rights) - len(missing)} of {len(release.rights)} rights are there")
    places = release.namespaces or ("",)
    forbidden = [
        Right(group=group, resource=resource, verb=verb, namespace=place) for place in places for group, resource, verb in FORBIDDEN
    ]
    excess = [right for right in forbidden if _allowed(api, right)]
    findings.problems += [
        f"a right too many: {right}; look for a binding of the operator's service account that is not the chart's" for right in excess
    ]
    findings.seen.append(f"{len(forbidden) - len(excess)} of {len(forbidden)} rights that it must not have are refused")
    return findings


def _check_served(api: KubernetesApi, name: str, findings: Findings) -> None:
    try:
        crd = api.get(CRD, "", name)
    except GoneApiError:
        findings.problems.append(f"{name} is not installed; set crds.install=true, or run: samite crds apply")
        return
    conditions = {item["type"]: item["status"] for item in crd.get("status", {}).get("conditions") or ()}
    if conditions.get("Established") != "True":
        findings.problems.append(f"{name} is not served yet; see kubectl describe crd {name}")


def _allowed(api: KubernetesApi, right: Right) -> bool:
    resource, _, subresource = right.resource.partition("/")
    attributes: Document = {"group": right.group, "resource": resource, "verb": right.verb}
    attributes |= {"namespace": right.namespace} if right.namespace else {}
    attributes |= {"subresource": subresource} if subresource else {}
    attributes |= {"name": right.name} if right.name else {}
    review = {
        "apiVersion": ACCESS_REVIEW.api_version,
        "kind": ACCESS_REVIEW.kind,
        "metadata": {},
        "spec": {"resourceAttributes": attributes},
    }
    return bool(api.create(ACCESS_REVIEW, "", review)["status"]["allowed"])
