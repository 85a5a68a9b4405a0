"""The second look: full listings, at start and each minute, that check what the watches tell.

A listing fills the cache, so that work goes on even where a watch is dead, and it is the measure for the watches: what an earlier listing showed must
have been told by now. A watch that is behind for long fails the liveness probe (`liveness`), and the process is started anew.
"""

import logging
import threading
from collections.abc import Iterable

from samite.engines.kuberay.api import TRAINING_RUN, ApiError, Document, ForbiddenApiError, GoneApiError, Kind, KubernetesApi, Listing
from samite.engines.kuberay.names import RUN
from samite_operators.cache import Key, ObjectCache, version_of
from samite_operators.handlers import LABELLED, Watcher, run_of
from samite_operators.keeper import Keeper
from samite_operators.liveness import Vitals
from samite_operators.settings import Settings

_logger = logging.getLogger(__name__)


class Resync:
    """Lists what is watched."""

    def __init__(
        self, api: KubernetesApi, cache: ObjectCache, watcher: Watcher, keeper: Keeper, vitals: Vitals, settings: Settings
    ) -> None:
        self._api, self._cache, self._watcher, self._keeper = api, cache, watcher, keeper
        self._vitals, self._settings = vitals, settings
        self._shown: dict[tuple[str, str], dict[Key, int]] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="resync", daemon=True)
        self.readable: frozenset[Kind] = frozenset()
        """Kinds that could be listed at the last look, in every namespace that is served."""

    def look(self, kinds: Iterable[Kind]) -> frozenset[Kind]:
        """List all `kinds` once. Returns those that could be listed. Raises the ApiError of a kind that neither exists nor is forbidden: no answer."""
        found = set()
        for kind in kinds:
            try:
                for namespace in self._namespaces(kind):
                    self._take_over(kind, namespace, self._list(kind, namespace))
            except GoneApiError:
                _logger.warning("%s are not known to the API server; is what defines them installed?", kind.plural)
            except ForbiddenApiError as error:
                _logger.warning("%s cannot be listed: %s", kind.plural, error)
            else:
                found.add(kind)
        self.readable = frozenset(found)
        if TRAINING_RUN in found:
            self._vitals.listed()
        return self.readable

    def start(self, kinds: Iterable[Kind]) -> None:
        """Look again and again."""
        self._kinds = tuple(kinds)
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout=3.0)

    def _run(self) -> None:
        while not self._stopping.wait(self._settings.resync_s):
            try:
                self.look(self._kinds)
            except ApiError as error:
                _logger.warning("resync: %s", error)
            except Exception:
                # Nothing that a listing holds may end the looks.
                _logger.exception("resync")

    def _namespaces(self, kind: Kind) -> tuple[str, ...]:
        return self._settings.namespaces if kind.namespaced and not self._settings.clusterwide else ("",)

    def _list(self, kind: Kind, namespace: str) -> Listing:
        listing = self._api.list(kind, namespace)
        if kind not in LABELLED:
            return listing
        ours = [item for item in listing.items if RUN in (item["metadata"].get("labels") or {})]
        return Listing(items=ours, resource_version=listing.resource_version)

    def _take_over(self, kind: Kind, namespace: str, listing: Listing) -> None:
        place = (kind.plural, namespace)
        untold = self._cache.untold(kind, self._shown.get(place, {}))
        name = f"{kind.plural} in {namespace}" if namespace else kind.plural
        self._vitals.watch(name, behind=bool(untold))
        if untold:
            _logger.warning("the watch of %s has not told of %d objects, such as %s/%s", name, len(untold), *untold[0])
        gone = self._cache.reconcile(kind, listing, namespace=namespace)
        for document in gone:
            self._wake(kind, document)
        for document in listing.items:
            document.setdefault("apiVersion", kind.api_version)
            document.setdefault("kind", kind.kind)
            if kind == TRAINING_RUN:
                self._wake(kind, document)
        self._shown[place] = {(item["metadata"].get("namespace", ""), item["metadata"]["name"]): version_of(item) for item in listing.items}

    def _wake(self, kind: Kind, document: Document) -> None:
        run = run_of(kind, document)
        if run is not None:
            self._keeper.wake(document["metadata"].get("namespace", ""), run)
