"""What the Local engine cannot do: the fields of a run that only Kubernetes can honour, and variables that this shell does not have.

Part of samite.spec.support. Nothing that was asked for is silently ignored: the message names the way of this engine.
"""

import os
from collections.abc import Iterator

from samite.spec.cluster_rules import value_sources
from samite.spec.rules import Document, Finding, part

CLUSTER_FIELDS = ("managedBy", "runtimeRef", "queue", "image", "slo", "approvals")
"""Fields of `spec` that only Kubernetes can honour."""

_LOCAL = "because the engine is Local"


def local_limits(document: Document) -> Iterator[Finding]:
    """What the Local engine cannot do."""
    spec = part(document, "spec") or {}
    for name in CLUSTER_FIELDS:
        if spec.get(name):
            found = f"{name}, which belongs to the Kubernetes engines"
            yield Finding(path=("spec", name), wanted=f"no {name}, {_LOCAL}", found=found, hint="remove it, or write engine: RayCluster")
    for source in ("secretName", "serviceAccountName"):
        if source in (part(spec, "checkpoint", "credentials") or {}):
            hint = "write profile, or leave credentials out and export AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY before samite submit"
            place = ("spec", "checkpoint", "credentials", source)
            yield Finding(path=place, wanted=f"profile, {_LOCAL}", found=f"{source}, which needs Kubernetes", hint=hint)
    for path, source_document, name in value_sources(document):
        for key in ("secretKeyRef", "configMapKeyRef"):
            if key in source_document:
                hint = f"write hostEnv: {name or 'NAME'}, and export it before samite submit"
                yield Finding(path=(*path, key), wanted=f"hostEnv, {_LOCAL}", found=f"{key}, which needs Kubernetes", hint=hint)
        host = source_document.get("hostEnv")
        if host is not None and host not in os.environ:
            wanted = f"{host} in the environment of this shell"
            yield Finding(path=(*path, "hostEnv"), wanted=wanted, found="no such variable", hint=f"run: export {host}=...")
