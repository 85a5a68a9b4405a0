"""Rights that last as long as they are needed: until the last run of a served namespace was let go.

A namespace that is deleted loses its objects in no order that anybody promises. Were the chart's RoleBinding among the first, the operator could no longer
take its finalizer from the runs, and the namespace would stay `Terminating` for ever. So while runs are there, a second RoleBinding gives the same role, and
a finalizer keeps it from going before them:

    first run of a namespace ─ hold: our RoleBinding, with a finalizer ─ finalizer on the run
    last run let go ─ release: our RoleBinding goes, and a namespace that goes away is free

It is ours and not the chart's, so that `helm uninstall` waits for nothing. Both refer to a ClusterRole, which no namespace takes along. To the API server
it is no escalation: the operator holds every right that it binds. In cluster mode there is nothing to hold.
"""

import logging
import threading

from samite.engines.kuberay.api import ROLE_BINDING, TRAINING_RUN, ApiError, ConflictApiError, Document, KubernetesApi
from samite.engines.kuberay.names import FINALIZER, HOLD
from samite_operators.settings import Settings

_logger = logging.getLogger(__name__)


class Rights:
    """Holds and releases the rights in each served namespace. Safe to use from many threads; raises no ApiError."""

    def __init__(self, api: KubernetesApi, settings: Settings) -> None:
        self._api, self._settings = api, settings
        self._lock = threading.Lock()
        self._held: dict[str, bool] = {}
        """What is known of each namespace; a missing one was not looked at yet."""

    @property
    def name(self) -> str:
        """Name of the RoleBinding."""
        return f"{self._settings.lease_name}-while-runs"

    def hold(self, namespace: str) -> None:
        """A run is about to be looked after here. Asks the API server once, until the next release."""
        if self._needless(namespace) or self._held.get(namespace):
            return
        with self._lock:
            try:
                self._make(namespace)
            except ApiError as error:
                _logger.warning("RoleBinding %s in %s could not be made: %s", self.name, namespace, error)
                self._held.pop(namespace, None)
            else:
                self._held[namespace] = True

    def release(self, namespace: str) -> None:
        """A run was let go, or none was found: let the rights go too if nothing here needs them. Asks the API server unless that is known already."""
        if self._needless(namespace) or self._held.get(namespace) is False:
            return
        with self._lock:
            try:
                if not any(_needs_us(run) for run in self._api.list(TRAINING_RUN, namespace).items):
                    self._remove(namespace)
                    self._held[namespace] = False
            except ApiError as error:
                _logger.warning("RoleBinding %s in %s could not be let go: %s", self.name, namespace, error)

    def _needless(self, namespace: str) -> bool:
        return self._settings.clusterwide or not self._settings.namespace_role or not self._settings.serves(namespace)

    def _make(self, namespace: str) -> None:
        found = self._found(namespace)
        if found is not None:
            metadata = found["metadata"]
            kept = list(metadata.get("finalizers") or ())
            if HOLD not in kept and not metadata.get("deletionTimestamp"):
                self._finalizers(namespace, metadata, [*kept, HOLD])
            return
        account = {"kind": "ServiceAccount", "name": self._settings.service_account, "namespace": self._settings.namespace}
        document = {
            "apiVersion": ROLE_BINDING.api_version,
            "kind": ROLE_BINDING.kind,
            "metadata": {"name": self.name, "finalizers": [HOLD], "labels": {"app.kubernetes.io/part-of": "samite"}},
            "roleRef": {"apiGroup": ROLE_BINDING.group, "kind": "ClusterRole", "name": self._settings.namespace_role},
            "subjects": [account],
        }
        try:
            self._api.create(ROLE_BINDING, namespace, document)
        except ConflictApiError:
            return  # made meanwhile, by an operator that has lost its Lease since
        _logger.info("rights in %s are held while runs are there: RoleBinding %s", namespace, self.name)

    def _remove(self, namespace: str) -> None:
        found = self._found(namespace)
        if found is None:
            return
        if not found["metadata"].get("deletionTimestamp"):
            self._api.delete(ROLE_BINDING, namespace, self.name, uid=found["metadata"]["uid"])
            found = self._found(namespace)
        if found is not None:
            # The last thing that is done here: in a namespace that goes away nothing is allowed afterwards.
            kept = [one for one in found["metadata"].get("finalizers") or () if one != HOLD]
            self._finalizers(namespace, found["metadata"], kept)
        _logger.info("rights in %s are held no longer: no run is left", namespace)

    def _found(self, namespace: str) -> Document | None:
        return next(iter(self._api.list(ROLE_BINDING, namespace, fields=f"metadata.name={self.name}").items), None)

    def _finalizers(self, namespace: str, metadata: Document, wanted: list[str]) -> None:
        patch = {"metadata": {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"], "finalizers": wanted}}
        self._api.patch(ROLE_BINDING, namespace, self.name, patch)


def _needs_us(run: Document) -> bool:
    """Whether its end is ours to see to: our finalizer is on it, or will be."""
    metadata = run["metadata"]
    return FINALIZER in (metadata.get("finalizers") or ()) or not metadata.get("deletionTimestamp")
