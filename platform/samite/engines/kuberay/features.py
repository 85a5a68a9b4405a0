"""What the installed KubeRay can do, read from the schema of its RayCluster CRD. Pure.

KubeRay 1.5 to 1.7 are told apart by their fields, never by a version string: clusters run one version's operator with another's CRDs.

    1.5.0  labels, resources on groups        1.5.1  authOptions.mode
    1.6    authOptions.secretName, upgradeStrategy
    1.7    gcsFaultToleranceOptions.backend, networkPolicy, tlsOptions
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from samite.engines.kuberay.api import Document


@dataclass(frozen=True, kw_only=True, slots=True)
class Features:
    """Fields of RayCluster `v1` that are rendered only where they exist. The default is KubeRay 1.5.0."""

    auth_mode: bool = False
    auth_secret_name: bool = False
    """Only with it may `authOptions` be used: otherwise KubeRay makes a token of its own in a Secret that nobody else may read."""
    upgrade_strategy: bool = False
    fault_tolerance: bool = True
    known: frozenset[str] = field(default=frozenset(), repr=False)
    """Dotted names of every field below `spec`, three levels deep; empty: not read."""

    @classmethod
    def from_crd(cls, crd: Mapping[str, Any]) -> "Features":
        """Read the CustomResourceDefinition `rayclusters.ray.io`. Raises ValueError if it does not serve `v1`."""
        spec = _schema(crd)
        known = frozenset(_fields(spec, depth=3))
        return cls(
            auth_mode="authOptions.mode" in known,
            auth_secret_name="authOptions.secretName" in known,
            upgrade_strategy="upgradeStrategy.type" in known,
            fault_tolerance="gcsFaultToleranceOptions" in known,
            known=known,
        )


def _schema(crd: Mapping[str, Any]) -> Document:
    for version in crd.get("spec", {}).get("versions", ()):
        if version.get("name") == "v1" and version.get("served"):
            found: Document = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
            return found
    served = ", ".join(str(version.get("name")) for version in crd.get("spec", {}).get("versions", ())) or "nothing"
    raise ValueError(f"the CRD rayclusters.ray.io serves {served}; wanted v1: install KubeRay 1.5 to 1.7")


def _fields(schema: Mapping[str, Any], *, depth: int, prefix: str = "") -> Iterator[str]:
    for name, part in (schema.get("properties") or {}).items():
        yield f"{prefix}{name}"
        if depth > 1:
            inner = part.get("items", part) if part.get("type") == "array" else part
            yield from _fields(inner, depth=depth - 1, prefix=f"{prefix}{name}.")
