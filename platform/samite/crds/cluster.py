"""The definitions in a cluster: how they differ from this version's, whose they are, and bringing them up to date by server-side apply.

Three ways lead CRDs into a cluster: the chart's templates, `samite crds apply`, and `kubectl apply` of what `samite crds show` prints. One cluster
follows one of them; so nothing is taken from another owner unless asked for by force.
"""

import difflib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from samite.crds.definitions import Definition
from samite.crds.text import yaml_text
from samite.errors import ConflictError, WaitTimeoutError

MANAGER = "samite-cli"
"""Field manager of `samite crds apply`."""

_SERVERS_OWN = frozenset({"kube-apiserver", "kube-controller-manager"})
_KEPT = ("apiVersion", "kind", "spec")


class Server(Protocol):
    """What is asked of the API server about CustomResourceDefinitions; a seam, so that decisions are tested without one."""

    def find(self, name: str) -> Definition | None:
        """The stored definition; None if there is none."""
        ...

    def apply(self, definition: Definition, *, force: bool, dry_run: bool) -> Definition:
        """Server-side apply as `MANAGER`; what is stored then, or would be."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """One definition of this version beside the cluster's."""

    name: str
    state: str
    """missing | same | different"""
    owners: tuple[str, ...]
    """Field managers of its spec other than `MANAGER`."""
    difference: str
    """Unified diff of the YAML, from the cluster's to this version's; empty if the same."""

    def to_document(self) -> dict[str, Any]:
        """JSON-able."""
        return {"name": self.name, "state": self.state, "owners": list(self.owners), "difference": self.difference}


def compare(server: Server, definitions: Mapping[str, Definition]) -> list[Comparison]:
    """Each definition beside the cluster's. Changes nothing; what would be stored is asked of the server, which knows its own defaults."""
    return [_compared(server, definition) for definition in definitions.values()]


def _compared(server: Server, definition: Definition) -> Comparison:
    name = str(definition["metadata"]["name"])
    found = server.find(name)
    if found is None:
        return Comparison(name=name, state="missing", owners=(), difference=_difference(name, "", yaml_text(definition)))
    wanted = server.apply(definition, force=True, dry_run=True)
    difference = _difference(name, _shown(found), _shown(wanted)) if _kept(found) != _kept(wanted) else ""
    return Comparison(name=name, state="different" if difference else "same", owners=owners(found), difference=difference)


def owners(stored: Definition) -> tuple[str, ...]:
    """Field managers that wrote the spec of a stored definition, other than us and the server itself."""
    entries = stored.get("metadata", {}).get("managedFields") or []
    names = {str(entry.get("manager")) for entry in entries if "f:spec" in (entry.get("fieldsV1") or {})}
    return tuple(sorted(names - _SERVERS_OWN - {MANAGER}))


def apply_all(server: Server, definitions: Mapping[str, Definition], *, force: bool) -> list[Comparison]:
    """Bring every definition up to date. Returns what was found before.

    Raises ConflictError, before anything is changed, if another field manager owns one that differs or that is to be ours, unless `force`.
    """
    before = compare(server, definitions)
    foreign = [found for found in before if found.owners]
    if foreign and not force:
        raise ConflictError(_not_ours(foreign))
    by_name = {definition["metadata"]["name"]: definition for definition in definitions.values()}
    for found in before:
        server.apply(by_name[found.name], force=force, dry_run=False)
    return before


def wait_established(server: Server, names: list[str], *, timeout_s: float = 30.0, pause_s: float = 0.2) -> None:
    """Return once the API server serves all of them. Raises WaitTimeoutError."""
    end = time.monotonic() + timeout_s
    waiting = list(names)
    while waiting:
        waiting = [name for name in waiting if not _is_established(server.find(name))]
        if waiting and time.monotonic() > end:
            raise WaitTimeoutError(
                f"wanted {', '.join(waiting)} to be served within {timeout_s:.0f} s; they are stored but not Established. "
                f"Look at: kubectl describe crd {waiting[0]}"
            )
        if waiting:
            time.sleep(pause_s)


def _is_established(stored: Definition | None) -> bool:
    conditions = ((stored or {}).get("status") or {}).get("conditions") or []
    return any(item.get("type") == "Established" and item.get("status") == "True" for item in conditions)


def _not_ours(foreign: list[Comparison]) -> str:
    them = "; ".join(f"{found.name} belongs to {' and '.join(found.owners)}" for found in foreign)
    managers = {owner for found in foreign for owner in found.owners}
    way = "helm upgrade of the samite chart brings them up to date" if "helm" in managers else "update them the way they were made"
    return (
        f"wanted CRDs that are ours or nobody's; found: {them}. What to do: {way}, or take them over: samite crds apply --force-conflicts"
    )


def _kept(stored: Definition) -> Definition:
    return {key: stored[key] for key in _KEPT if key in stored}


def _shown(stored: Definition) -> str:
    return yaml_text(_kept(stored))


def _difference(name: str, before: str, after: str) -> str:
    return "".join(_lines(name, before, after))


def _lines(name: str, before: str, after: str) -> Iterator[str]:
    return difflib.unified_diff(before.splitlines(True), after.splitlines(True), f"cluster/{name}", f"samite/{name}")
