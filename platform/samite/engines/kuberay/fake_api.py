"""An API server in memory, for tests and rehearsals: `api.KubernetesApi` with versions, preconditions, owners and nodes that die.

What it does like the real one: a resourceVersion for each write, uid and resourceVersion preconditions, AlreadyExists, JSON merge patch, garbage
collection by owner reference, finalizers, and pods on a dead node that stay Terminating until they are deleted with grace period 0.
What it leaves out: field ownership, schemas, admission, watches, controllers (see `fake_kuberay` for those that a run needs).
"""

import copy
import threading
import uuid
from collections.abc import Callable, Mapping

from samite.engines.kuberay.api import (
    NODE,
    POD,
    ApiError,
    ConflictApiError,
    Document,
    Kind,
    Listing,
    error_of,
)
from samite.engines.kuberay.dropped import without_fields

Key = tuple[str, str, str]
Refusals = list[tuple[str, str, ApiError]]
Calls = list[tuple[str, str, str]]
Deletes = list[tuple[str, str, int | None]]


class FakeApi:
    """Objects by (plural, namespace, name). Safe to use from several threads."""

    def __init__(self) -> None:
        self._objects: dict[Key, Document] = {}
        self._version = 0
        self._lock = threading.RLock()
        self.down = False
        """True: no call is answered."""
        self.refusals: Refusals = []
        """(verb, plural, error) for the next matching calls, each used once."""
        self.calls: Calls = []
        """(verb, plural, name) of every call."""
        self.deletes: Deletes = []
        """(plural, name, grace period) of every delete."""
        self.dead_machines: set[str] = set()
        """Nodes whose kubelet answers nobody, whatever their conditions still say."""
        self.unknown: dict[str, tuple[str, ...]] = {}
        """By plural: fields that the definition here does not know, dropped without a word as a real server does."""
        self.on_write: Callable[[str, Document], None] | None = None
        """Called with the verb and the object after each write, like a controller's watch."""

    # The seam

    def get(self, kind: Kind, namespace: str, name: str) -> Document:
        """One object."""
        with self._lock:
            self._begin("get", kind, name)
            return copy.deepcopy(self._must(kind, namespace, name))

    def list(
        self, kind: Kind, namespace: str = "", *, labels: Mapping[str, str] | None = None, fields: str = "", cached: bool = False
    ) -> Listing:
        """Objects of a kind; `fields` selects by dotted paths (`involvedObject.name=x`)."""
        del cached
        with self._lock:
            self._begin("list", kind, "")
            wanted = [part.split("=", 1) for part in fields.split(",") if part]
            found = [
                copy.deepcopy(item)
                for (plural, place, _), item in sorted(self._objects.items())
                if plural == kind.plural
                and (not namespace or not kind.namespaced or place == namespace)
                and all(item["metadata"].get("labels", {}).get(key) == value for key, value in (labels or {}).items())
                and all(_at(item, path) == value for path, value in wanted)
            ]
            return Listing(items=found, resource_version=str(self._version))

    def create(self, kind: Kind, namespace: str, document: Document) -> Document:
        """Create; makes a name from `generateName`."""
        with self._lock:
            metadata = document["metadata"]
            name = metadata.get("name") or f"{metadata.get('generateName', '')}{uuid.uuid4().hex[:5]}"
            self._begin("create", kind, name)
            if self._key(kind, namespace, name) in self._objects:
                raise error_of(409, f'{kind.plural} "{name}" already exists', reason="AlreadyExists")
            return self._store(
                kind, namespace, {**copy.deepcopy(document), "metadata": {**copy.deepcopy(metadata), "name": name}}, "create"
            )

    def apply(self, kind: Kind, namespace: str, document: Document) -> Document:
        """Merge over what is there; lists are replaced whole."""
        with self._lock:
            name = document["metadata"]["name"]
            self._begin("apply", kind, name)
            known = self._objects.get(self._key(kind, namespace, name))
            if known is None:
                if document["metadata"].get("uid"):
                    raise error_of(409, f'{kind.plural} "{name}": uid mismatch: the object is gone', reason="Conflict")
                return self._store(kind, namespace, copy.deepcopy(document), "apply")
            _check(document["metadata"], known)
            return self._store(kind, namespace, _merged(known, document), "apply")

    def patch(self, kind: Kind, namespace: str, name: str, patch: Document, *, subresource: str = "") -> Document:
        """JSON merge patch."""
        with self._lock:
            self._begin("patch", kind, f"{name}/{subresource}" if subresource else name)
            known = self._must(kind, namespace, name)
            _check(patch.get("metadata") or {}, known)
            return self._store(kind, namespace, _merged(known, patch), "patch")

    def delete(
        self, kind: Kind, namespace: str, name: str, *, uid: str = "", grace_s: int | None = None, propagation: str = "Background"
    ) -> None:
        """Delete, and what it owned."""
        del propagation
        with self._lock:
            self._begin("delete", kind, name)
            self.deletes.append((kind.plural, name, grace_s))
            key = self._key(kind, namespace, name)
            known = self._objects.get(key)
            if known is None:
                return
            if uid and known["metadata"]["uid"] != uid:
                raise error_of(409, f'{kind.plural} "{name}": the UID in the precondition ({uid}) does not match', reason="Conflict")
            self._remove(key, force=grace_s == 0)

    # The world

    def put(self, kind: Kind, document: Document) -> Document:
        """Set an object as a controller would, without counting as a call."""
        with self._lock:
            namespace = document["metadata"].get("namespace", "")
            known = self._objects.get(self._key(kind, namespace, document["metadata"]["name"]))
            return self._store(kind, namespace, _merged(known, document) if known else copy.deepcopy(document), "put")

    def look(self, kind: Kind, namespace: str, name: str) -> Document | None:
        """An object without counting as a call; None if it is not there."""
        with self._lock:
            found = self._objects.get(self._key(kind, namespace, name))
            return copy.deepcopy(found) if found is not None else None

    def every(self, kind: Kind) -> tuple[Document, ...]:
        """Every object of a kind, without counting as a call."""
        with self._lock:
            return tuple(copy.deepcopy(item) for (plural, _, _), item in sorted(self._objects.items()) if plural == kind.plural)

    def set_node_ready(self, name: str, *, ready: bool) -> None:
        """What the node controller says about a node. Pods of a node that is not ready stay Terminating when they are deleted."""
        status = "True" if ready else "Unknown"
        with self._lock:
            known = self._objects.get(self._key(NODE, "", name)) or {"metadata": {"name": name, "labels": {}}}
            condition = {"type": "Ready", "status": status, "reason": "KubeletReady" if ready else "NodeStatusUnknown", "message": ""}
            self._store(NODE, "", {**known, "status": {"conditions": [condition]}}, "put")

    # Inside

    @staticmethod
    def _key(kind: Kind, namespace: str, name: str) -> Key:
        return kind.plural, namespace if kind.namespaced else "", name

    def _begin(self, verb: str, kind: Kind, name: str) -> None:
        self.calls.append((verb, kind.plural, name))
        if self.down:
            raise error_of(0, f"the API server did not answer {verb} {kind.plural}")
        for refusal in self.refusals:
            if refusal[0] == verb and refusal[1] == kind.plural:
                self.refusals.remove(refusal)
                raise refusal[2]

    def _must(self, kind: Kind, namespace: str, name: str) -> Document:
        found = self._objects.get(self._key(kind, namespace, name))
        if found is None:
            raise error_of(404, f'{kind.plural} "{name}" not found', reason="NotFound")
        return found

    def _store(self, kind: Kind, namespace: str, document: Document, verb: str) -> Document:
        self._version += 1
        document = without_fields(document, self.unknown.get(kind.plural, ()))
        metadata = document["metadata"]
        metadata.setdefault("uid", str(uuid.uuid4()))
        metadata["resourceVersion"] = str(self._version)
        if kind.namespaced:
            metadata.setdefault("namespace", namespace)
        document.setdefault("apiVersion", kind.api_version)
        document.setdefault("kind", kind.kind)
        key = self._key(kind, metadata.get("namespace", ""), metadata["name"])
        self._objects[key] = document
        if metadata.get("deletionTimestamp") and not metadata.get("finalizers") and kind.plural != POD.plural:
            self._remove(key, force=True)
        if self.on_write is not None and verb != "put":
            self.on_write(verb, copy.deepcopy(document))
        return copy.deepcopy(document)

    def _remove(self, key: Key, *, force: bool) -> None:
        known = self._objects.get(key)
        if known is None:
            return
        metadata = known["metadata"]
        held = bool(metadata.get("finalizers")) or (key[0] == POD.plural and not force and self._on_dead_node(known))
        if held:
            metadata.setdefault("deletionTimestamp", "2026-01-01T00:00:00Z")
            self._version += 1
            metadata["resourceVersion"] = str(self._version)
            return
        del self._objects[key]
        self._version += 1
        uid = metadata["uid"]
        for other, item in list(self._objects.items()):
            if any(owner.get("uid") == uid for owner in item["metadata"].get("ownerReferences", ())):
                self._remove(other, force=False)

    def _on_dead_node(self, pod: Document) -> bool:
        name = pod.get("spec", {}).get("nodeName", "")
        if name in self.dead_machines:
            return True
        node = self._objects.get((NODE.plural, "", name))
        if node is None:
            return False
        return any(item["type"] == "Ready" and item["status"] != "True" for item in node.get("status", {}).get("conditions", ()))


def _merged(known: Document, patch: Document) -> Document:
    found = copy.deepcopy(known)
    for key, value in patch.items():
        if value is None:
            found.pop(key, None)
        elif isinstance(value, dict) and isinstance(found.get(key), dict):
            found[key] = _merged(found[key], value)
        elif isinstance(value, dict):
            found[key] = _merged({}, value)
        else:
            found[key] = copy.deepcopy(value)
    return found


def _check(metadata: Document, known: Document) -> None:
    for name in ("uid", "resourceVersion"):
        wanted = metadata.get(name)
        if wanted and wanted != known["metadata"][name]:
            message = f'{known["kind"]} "{known["metadata"]["name"]}": {name} {wanted} is not {known["metadata"][name]}'
            error = error_of(409, message, reason="Conflict")
            assert isinstance(error, ConflictApiError)
            raise error


def _at(document: Document, path: str) -> str:
    place: object = document
    for key in path.split("."):
        place = place.get(key, "") if isinstance(place, dict) else ""
    return str(place)
