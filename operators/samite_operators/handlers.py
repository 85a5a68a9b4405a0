"""From kopf's watch events to the cache and the keeper. Handlers only take note: nothing is decided, asked or written here.

Only `on.event` handlers are used: kopf then keeps no state on our objects, sets no finalizer and writes no annotation.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from samite.engines.kuberay.api import LEASE, NODE, POD, RAY_CLUSTER, TRAINING_RUN, Document, Kind
from samite.engines.kuberay.names import RUN
from samite_operators.cache import ObjectCache
from samite_operators.keeper import Keeper

if TYPE_CHECKING:
    import kopf

WATCHED: tuple[Kind, ...] = (TRAINING_RUN, RAY_CLUSTER, POD, LEASE, NODE)
LABELLED = (RAY_CLUSTER, POD, LEASE)
"""Kinds of which only those with our label are streamed."""


class Watcher:
    """Takes watch events in. Safe to call from the event loop: it never waits."""

    def __init__(self, cache: ObjectCache, keeper: Keeper) -> None:
        self._cache, self._keeper = cache, keeper

    def take_in(self, kind: Kind, event: str | None, document: Document, *, told: bool = True) -> None:
        """One event: `event` is ADDED, MODIFIED, DELETED or None for the first listing."""
        before = self._cache.get(kind, document["metadata"].get("namespace", ""), document["metadata"]["name"])
        if event == "DELETED":
            self._cache.remove(kind, document)
        elif not self._cache.put(kind, document, told=told):
            return
        run = run_of(kind, document)
        if kind == POD and has_ended(document):
            self._cache.note_ended(document)
        if run is not None and (event == "DELETED" or before is None or matters(kind, before[0], document)):
            self._keeper.wake(document["metadata"].get("namespace", ""), run)


def run_of(kind: Kind, document: Document) -> str | None:
    """Name of the run that an object concerns; None if it is none's alone."""
    metadata = document["metadata"]
    if kind == TRAINING_RUN:
        return str(metadata["name"])
    found = (metadata.get("labels") or {}).get(RUN)
    return None if found is None else str(found)


def has_ended(pod: Document) -> bool:
    """Whether a container of the pod has ended: how, only the pod itself can tell."""
    return any((item.get("state") or {}).get("terminated") for item in (pod.get("status") or {}).get("containerStatuses") or ())


def matters(kind: Kind, before: Document, after: Document) -> bool:
    """Whether a change is worth a turn at once. What we write ourselves, and what changes each two seconds, is not."""
    old, new = before["metadata"], after["metadata"]
    if old.get("deletionTimestamp") != new.get("deletionTimestamp") or old.get("uid") != new.get("uid"):
        return True
    return bool(_telling(kind, before) != _telling(kind, after))


def _telling(kind: Kind, document: Document) -> Any:
    """The part of an object that is worth a turn when it changes."""
    if kind == LEASE:
        return _signs(document)
    if kind == TRAINING_RUN:
        return document["metadata"].get("generation"), document["metadata"].get("annotations")
    return _pod_state(document) if kind == POD else document.get("status")


def _signs(lease: Document) -> tuple[Any, ...]:
    annotations = lease["metadata"].get("annotations") or {}
    return tuple(annotations.get(f"samite.dev/{name}") for name in ("result", "failures", "checkpoints", "events"))


def _pod_state(pod: Document) -> Any:
    status = pod.get("status") or {}
    ready = [(item.get("type"), item.get("status")) for item in status.get("conditions") or () if item.get("type") == "Ready"]
    containers = [(item.get("state"), item.get("ready")) for item in status.get("containerStatuses") or ()]
    return status.get("phase"), status.get("reason"), ready, containers


def register(registry: "kopf.OperatorRegistry", watcher: Watcher, kinds: Iterable[Kind]) -> None:
    """Let kopf call `watcher` for every event of `kinds`."""
    import kopf

    for kind in kinds:
        kopf.on.event(group=kind.group, version=kind.version, plural=kind.plural, registry=registry, id=kind.plural)(
            _handler(watcher, kind)
        )


def _handler(watcher: Watcher, kind: Kind) -> Any:
    async def take_in(event: Any, **_: Any) -> None:
        watcher.take_in(kind, event["type"], dict(event["object"]))

    return take_in
