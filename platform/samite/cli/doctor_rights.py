"""The part of `samite doctor --context` that asks the API server what this person may do: one review for each right that a verb needs."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from samite.cli.doctor import Finding

if TYPE_CHECKING:
    from samite.engines.kuberay.client import ClusterEngine

RIGHTS: tuple[tuple[str, bool, str, tuple[tuple[str, str, str], ...]], ...] = (
    ("look at runs", True, "samite-viewer", (("get", "samite.dev", "trainingruns"), ("list", "samite.dev", "trainingruns"))),
    ("submit and delete runs", True, "samite-editor", (("create", "samite.dev", "trainingruns"), ("delete", "samite.dev", "trainingruns"))),
    ("cancel, suspend, resume", True, "samite-editor", (("patch", "samite.dev", "trainingruns"),)),
    ("read pods and events", False, "view", (("list", "", "pods"), ("list", "", "events"))),
    ("read logs of nodes", False, "view", (("list", "", "pods"), ("get", "", "pods/log"))),
    (
        "break runs (chaos)",
        False,
        "edit",
        (("delete", "", "pods"), ("get", "coordination.k8s.io", "leases"), ("patch", "coordination.k8s.io", "leases")),
    ),
)
"""(what for, whether a person needs it to work at all, the role that brings it, rights as verb, group and resource)."""


def findings_of_rights(engine: "ClusterEngine") -> Iterator[Finding]:
    """One line for each group of verbs."""
    for purpose, needed, role, rights in RIGHTS:
        refused = [f"{verb} {resource}" for verb, group, resource in rights if not allowed(engine, verb, group, resource)]
        name = f"may {purpose}"
        if not refused:
            yield Finding(name=name, ok=True, found=f"{', '.join(f'{verb} {resource}' for verb, _, resource in rights)}")
            continue
        remedy = f"a RoleBinding to the ClusterRole {role} in namespace {engine.where.namespace}"
        yield Finding(name=name, ok=not needed, warn=not needed, found=f"{engine.where.user} may not {', '.join(refused)}", remedy=remedy)


def allowed(engine: "ClusterEngine", verb: str, group: str, resource: str) -> bool:
    """What the server answers to a SelfSubjectAccessReview. Everybody who is logged in may ask."""
    from samite.engines.kuberay.api import Kind

    kind = Kind(
        group="authorization.k8s.io", version="v1", plural="selfsubjectaccessreviews", kind="SelfSubjectAccessReview", namespaced=False
    )
    plural, _, subresource = resource.partition("/")
    attributes = {"namespace": engine.where.namespace, "verb": verb, "group": group, "resource": plural, "subresource": subresource}
    review = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {}, "spec": {"resourceAttributes": attributes}}
    return bool((engine.api.create(kind, "", review).get("status") or {}).get("allowed"))
