"""Rights that last as long as they are needed: the RoleBinding of a served namespace stays until its last run was let go.

A namespace that is deleted loses its objects in no order that anybody promises. Were the binding among the first, the operator could no longer take its
finalizer from the runs, and the namespace would stay `Terminating` for ever. So the binding carries a finalizer of its own while runs are there:

    first run of a namespace ─ hold: finalizer on the binding ─ finalizer on the run
    last run let go ─ release: finalizer off the binding, and a namespace that goes away is free

The binding refers to a ClusterRole, which no namespace takes along. A change of finalizers alone is no escalation to the API server: the verb `patch` on
rolebindings suffices. In cluster mode there is nothing to hold.
"""

import logging
import threading

from samite.engines.kuberay.api import ROLE_BINDING, TRAINING_RUN, ApiError, Document, KubernetesApi
from samite.engines.kuberay.names import FINALIZER, HOLD
from samite_operators.settings import Settings

_logger = logging.getLogger(__name__)


class Rights:
    """Holds and releases the binding `settings.role_binding` of each served namespace. Safe to use from many threads; raises no ApiError."""

    def __init__(self, api: KubernetesApi, settings: Settings) -> None:
        self._api, self._settings = api, settings
        self._lock = threading.Lock()
        self._held: dict[str, bool] = {}
        """What is known of each namespace's binding; a missing one was not looked at yet."""

    def hold(self, namespace: str) -> None:
        """A run is about to be looked after here. Asks the API server once, until the next release."""
        if self._needless(namespace) or self._held.get(namespace):
            return
        with self._lock:
            if self._set(namespace, held=True):
                self._held[namespace] = True
            else:
                self._held.pop(namespace, None)

    def release(self, namespace: str) -> None:
        """A run was let go, or none was found: let the binding go too if nothing here needs it. Asks the API server unless that is known already."""
        if self._needless(namespace) or self._held.get(namespace) is False:
            return
        with self._lock:
            try:
                runs = self._api.list(TRAINING_RUN, namespace).items
            except ApiError as error:
                _logger.debug("%s: whether runs are left is not known: %s", namespace, error)
                return
            if any(_needs_us(run) for run in runs):
                return
            if self._set(namespace, held=False):
                self._held[namespace] = False

    def _needless(self, namespace: str) -> bool:
        return self._settings.clusterwide or not self._settings.role_binding or not self._settings.serves(namespace)

    def _set(self, namespace: str, *, held: bool) -> bool:
        """Put the finalizer on or take it off; True if that is how it stands now."""
        name = self._settings.role_binding
        try:
            found = self._api.list(ROLE_BINDING, namespace, fields=f"metadata.name={name}").items
            if not found:
                _logger.warning("%s has no RoleBinding %s: rights there are not the chart's, and end when they end", namespace, name)
                return True
            metadata = found[0]["metadata"]
            kept = [one for one in metadata.get("finalizers") or () if one != HOLD]
            wanted = [*kept, HOLD] if held else kept
            if wanted == list(metadata.get("finalizers") or ()):
                return True
            if held and metadata.get("deletionTimestamp"):
                return True  # it is going away, and takes no new finalizer
            patch = {"metadata": {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"], "finalizers": wanted}}
            self._api.patch(ROLE_BINDING, namespace, name, patch)
        except ApiError as error:
            _logger.warning("RoleBinding %s in %s could not be %s: %s", name, namespace, "held" if held else "let go", error)
            return False
        _logger.info("RoleBinding %s in %s is %s", name, namespace, "held while runs are there" if held else "let go")
        return True


def _needs_us(run: Document) -> bool:
    """Whether its end is ours to see to: our finalizer is on it, or will be."""
    metadata = run["metadata"]
    return FINALIZER in (metadata.get("finalizers") or ()) or not metadata.get("deletionTimestamp")
