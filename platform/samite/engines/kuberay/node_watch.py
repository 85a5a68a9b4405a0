"""What Kubernetes says about the machines, read once for all runs of an operator.

The whole list is asked for seldom and from the server's watch cache (taints of healthy nodes); a node below a pod that is not well is asked for by
name, each second at most. A node that could not be read is unknown.
"""

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from samite.engines.kuberay.api import NODE, ApiError, Document, GoneApiError, KubernetesApi

LIST_EVERY_S = 10.0
FRESH_S = 1.0
FORGET_AFTER_S = 30.0


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeSeen:
    """One Kubernetes node as it was read `age_s` seconds ago. `document` None: the API server knows no such node."""

    document: Document | None
    age_s: float


class NodeWatch:
    """Nodes by name. Safe to use from many threads."""

    def __init__(self, api: KubernetesApi, clock: Callable[[], float]) -> None:
        self._api = api
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: dict[str, tuple[Document | None, float]] = {}
        self._listed_at_s = -1e9

    def refresh(self, suspects: Iterable[str]) -> None:
        """Read what is due: the list, and the nodes in `suspects`. What is not answered stays as it was and ages."""
        with self._lock:
            if self._clock() - self._listed_at_s > LIST_EVERY_S:
                with suppress(ApiError):
                    listing, now_s = self._api.list(NODE, cached=True), self._clock()
                    self._seen = {item["metadata"]["name"]: (item, now_s) for item in listing.items}
                    self._listed_at_s = now_s
            with suppress(ApiError):  # the first one that is not answered ends it: a turn has little time
                for name in sorted(set(suspects)):
                    _, at_s = self._seen.get(name, (None, -1e9))
                    if name and self._clock() - at_s > FRESH_S:
                        self._ask(name)

    def get(self, name: str) -> NodeSeen | None:
        """What was read about a node; None if nothing lately."""
        found = self._seen.get(name)
        if found is None or self._clock() - found[1] > FORGET_AFTER_S:
            return None
        return NodeSeen(document=found[0], age_s=self._clock() - found[1])

    def _ask(self, name: str) -> None:
        try:
            self._seen[name] = (self._api.get(NODE, "", name), self._clock())
        except GoneApiError:
            self._seen[name] = (None, self._clock())
