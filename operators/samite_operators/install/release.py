"""What the chart says about the release: served namespaces, who brings the CRDs, and the rights that the roles give. Read by all Jobs."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from samite.errors import UsageError

DEFAULT_FOLDER = Path("/etc/samite/documents")
FILE = "release.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Right:
    """One verb on one resource. Empty `namespace`: in the whole cluster; empty `name`: any name."""

    group: str
    resource: str
    verb: str
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        """`patch pods in team-a`."""
        kind = f"{self.resource}.{self.group}" if self.group else self.resource
        return f"{self.verb} {kind}" + (f" {self.name}" if self.name else "") + (f" in {self.namespace}" if self.namespace else "")


@dataclass(frozen=True, kw_only=True, slots=True)
class Release:
    """The release as its chart rendered it."""

    namespaces: tuple[str, ...]
    """Served namespaces; empty: all."""
    crds_by_chart: bool
    """True if the release brings the CRDs."""
    rights: tuple[Right, ...]
    """What the operator's roles give, one verb each."""

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read `release.json`. Raises UsageError if it is not there or not what the chart renders."""
        try:
            document = json.loads((folder / FILE).read_text(encoding="utf-8"))
            rights = [right for item in document["roles"] for right in _rights(item["namespace"], item["rules"])]
            return cls(
                namespaces=tuple(document["namespaces"]), crds_by_chart=bool(document["crdsInstall"]), rights=tuple(dict.fromkeys(rights))
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"{folder / FILE}: wanted the chart's release document, found: {error!r}. This command runs in the chart's Jobs"
            ) from error


def _rights(namespace: str, rules: list[Mapping[str, Any]]) -> list[Right]:
    return [
        Right(group=group, resource=resource, verb=verb, namespace=namespace, name=name)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames") or ("",)
    ]
