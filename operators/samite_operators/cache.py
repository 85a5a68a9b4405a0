"""What the watches have told, kept so that a turn asks the API server for little: a `KubernetesApi` that answers reads from memory.

Three rules keep it honest. It answers only while the API server was heard lately; it never says that something is absent (that question goes to the server);
and a Lease that has not changed for a while, whose silence would mean something, is read from the server. Whoever wants the truth for a decision
that destroys something reads inside `direct()`. Documents that it returns are shared: read them, do not change them.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from samite.engines.kuberay.api import LEASE, Document, Kind, KubernetesApi, Listing
from samite.engines.kuberay.names import RUN, RUN_UID
from samite_operators.liveness import Vitals

SILENT_S = 12.0
"""After so long without any answer of the API server, what is in memory means nothing."""
QUIET_LEASE_S = 4.0
"""A Lease of ours is renewed each 2 s; one that has not changed for so long is looked at."""
ENDED_KEPT = 64

Key = tuple[str, str]
"""(namespace, name)"""


@dataclass(frozen=True, slots=True)
class _Entry:
    document: Document
    changed_at_s: float


def version_of(document: Document) -> int:
    """The resourceVersion as a number: the API server's versions of one kind can be compared."""
    text = str(document.get("metadata", {}).get("resourceVersion", ""))
    return int(text) if text.isdigit() else 0


class ObjectCache:
    """Objects by kind and name, the newest version of each; safe to use from many threads."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._objects: dict[str, dict[Key, _Entry]] = {}
        self._by_run: dict[tuple[str, str], set[Key]] = {}
        self._told: dict[str, dict[Key, int]] = {}
        self._ended: dict[Key, list[Document]] = {}

    def put(self, kind: Kind, document: Document, *, told: bool = False) -> bool:
        """Keep `document` unless a newer one is known. `told`: it came from the watch. True if it was news."""
        key, version = _key(document), version_of(document)
        with self._lock:
            if told:
                self._told.setdefault(kind.plural, {})[key] = version
            objects = self._objects.setdefault(kind.plural, {})
            old = objects.get(key)
            if old is not None and version <= version_of(old.document) and _uid(document) == _uid(old.document):
                return False
            document.get("metadata", {}).pop("managedFields", None)
            objects[key] = _Entry(document, self._clock())
            for uid in {_run_uid(document), _run_uid(old.document) if old is not None else ""}:
                owned = self._by_run.setdefault((kind.plural, uid), set())
                (owned.add if uid == _run_uid(document) else owned.discard)(key)
            return True

    def remove(self, kind: Kind, document: Document) -> None:
        """The object is gone. One of the same name but another uid stays."""
        key = _key(document)
        with self._lock:
            self._told.get(kind.plural, {}).pop(key, None)
            old = self._objects.get(kind.plural, {}).get(key)
            if old is not None and _uid(old.document) == _uid(document):
                del self._objects[kind.plural][key]
                self._by_run.get((kind.plural, _run_uid(old.document)), set()).discard(key)

    def note_ended(self, pod: Document) -> None:
        """Keep a pod whose container has ended until a turn of its run takes it: KubeRay may delete it before anybody looks."""
        with self._lock:
            self._ended.setdefault((_key(pod)[0], _run(pod)), [])[ENDED_KEPT - 1 :] = []
            self._ended[_key(pod)[0], _run(pod)].append(pod)

    def take_ended(self, namespace: str, run: str) -> list[Document]:
        """The pods that have ended since the last call."""
        with self._lock:
            return self._ended.pop((namespace, run), [])

    def get(self, kind: Kind, namespace: str, name: str) -> tuple[Document, float] | None:
        """The object and when it last changed, on this cache's clock."""
        with self._lock:
            entry = self._objects.get(kind.plural, {}).get((namespace, name))
        return None if entry is None else (entry.document, entry.changed_at_s)

    def of_run(self, kind: Kind, uid: str) -> list[Document]:
        """Every object of the run `uid`."""
        with self._lock:
            keys = self._by_run.get((kind.plural, uid), set())
            return [self._objects[kind.plural][key].document for key in sorted(keys)]

    def all(self, kind: Kind) -> list[Document]:
        """Every object of a kind."""
        with self._lock:
            return [entry.document for entry in self._objects.get(kind.plural, {}).values()]

    def reconcile(self, kind: Kind, listing: Listing, *, namespace: str = "") -> list[Document]:
        """Take over a complete listing of `namespace` (empty: of all): new ones come, those that are not listed go. Returns who went.

        What is newer than the listing stays, whether it is listed or not.
        """
        found = {_key(document): document for document in listing.items}
        as_of = int(listing.resource_version) if listing.resource_version.isdigit() else 0
        with self._lock:
            gone = [
                entry.document
                for key, entry in self._objects.get(kind.plural, {}).items()
                if key not in found and namespace in ("", key[0]) and version_of(entry.document) <= as_of
            ]
        for document in gone:
            self.remove(kind, document)
        for document in found.values():
            self.put(kind, document)
        return gone

    def untold(self, kind: Kind, listed: Mapping[Key, int]) -> list[Key]:
        """Which objects of an *earlier* listing (key to version) the watch has neither told at that version nor reported gone since."""
        with self._lock:
            told, objects = self._told.get(kind.plural, {}), self._objects.get(kind.plural, {})
            return [key for key, version in listed.items() if key in objects and told.get(key, -1) < version]


class CachedApi:
    """Reads of watched kinds from memory, everything else from the server."""

    def __init__(
        self,
        api: KubernetesApi,
        cache: ObjectCache,
        vitals: Vitals,
        *,
        watched: Iterable[Kind],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api, self._cache, self._vitals, self._clock = api, cache, vitals, clock
        self.watched = frozenset(kind.plural for kind in watched)
        """Kinds whose watches run and have told their first listing."""
        self._local = threading.local()

    @contextmanager
    def direct(self) -> Iterator[None]:
        """Inside, this thread reads from the server alone."""
        before = getattr(self._local, "direct", False)
        self._local.direct = True
        try:
            yield
        finally:
            self._local.direct = before

    def get(self, kind: Kind, namespace: str, name: str) -> Document:
        """One object."""
        if kind.namespaced and self._from_memory(kind):
            # Who asks for one node by name suspects it.
            found = self._cache.get(kind, namespace, name)
            if found is not None and not (kind == LEASE and self._clock() - found[1] > QUIET_LEASE_S):
                return found[0]
        document = self._api.get(kind, namespace, name)
        self._cache.put(kind, document)
        return document

    def list(
        self, kind: Kind, namespace: str = "", *, labels: Mapping[str, str] | None = None, fields: str = "", cached: bool = False
    ) -> Listing:
        """All objects. From memory if a run is asked for, or, for kinds without a namespace, if a lagging answer is allowed."""
        if self._from_memory(kind) and not fields:
            found: list[Document] = []
            if labels and RUN_UID in labels:
                found = [item for item in self._cache.of_run(kind, labels[RUN_UID]) if _matches(item, labels)]
            elif cached and not labels and not kind.namespaced:
                found = self._cache.all(kind)
            if found:
                return Listing(items=found, resource_version=str(max(map(version_of, found))))
        return self._api.list(kind, namespace, labels=labels, fields=fields, cached=cached)

    def create(self, kind: Kind, namespace: str, document: Document) -> Document:
        """Create."""
        return self._kept(kind, self._api.create(kind, namespace, document))

    def apply(self, kind: Kind, namespace: str, document: Document) -> Document:
        """Server-side apply."""
        return self._kept(kind, self._api.apply(kind, namespace, document))

    def patch(self, kind: Kind, namespace: str, name: str, patch: Document, *, subresource: str = "") -> Document:
        """Merge patch."""
        return self._kept(kind, self._api.patch(kind, namespace, name, patch, subresource=subresource))

    def delete(
        self, kind: Kind, namespace: str, name: str, *, uid: str = "", grace_s: int | None = None, propagation: str = "Background"
    ) -> None:
        """Delete; what is in memory stays until the watch says that it is gone."""
        self._api.delete(kind, namespace, name, uid=uid, grace_s=grace_s, propagation=propagation)

    def _kept(self, kind: Kind, document: Document) -> Document:
        if kind.plural in self.watched:
            self._cache.put(kind, document)
        return document

    def _from_memory(self, kind: Kind) -> bool:
        if kind.plural not in self.watched or getattr(self._local, "direct", False):
            return False
        # A server that nobody has heard for a while is asked itself: it answers, or its silence is the answer.
        return self._vitals.api_silent_s <= SILENT_S


def _matches(document: Document, labels: Mapping[str, str]) -> bool:
    found = document.get("metadata", {}).get("labels") or {}
    return all(found.get(key) == value for key, value in labels.items())


def _key(document: Document) -> Key:
    metadata = document["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def _uid(document: Document) -> str:
    return str(document["metadata"].get("uid", ""))


def _run(document: Document) -> str:
    return str((document["metadata"].get("labels") or {}).get(RUN, ""))


def _run_uid(document: Document) -> str:
    return str((document["metadata"].get("labels") or {}).get(RUN_UID, ""))
