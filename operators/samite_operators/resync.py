"""The second look: full listings, at start and each minute, that check what the watches tell.

A listing fills the cache, so that work goes on even where a watch is dead, and it is the measure for the watches: what an earlier listing showed must
have been told by now. A watch that is behind for long fails the liveness probe (`liveness`), and the process is started anew.

A served namespace whose runs may not be listed (it is gone, or the operator's rights there are) is left out until they may: the others go on.
"""

import logging
import threading
from collections.abc import Iterable
from dataclasses import dataclass

from samite.engines.kuberay.api import TRAINING_RUN, ApiError, Document, ForbiddenApiError, GoneApiError, Kind, KubernetesApi, Listing
from samite.engines.kuberay.names import RUN
from samite_operators.cache import Key, ObjectCache, version_of
from samite_operators.handlers import LABELLED, Watcher, run_of
from samite_operators.keeper import Keeper
from samite_operators.liveness import Vitals
from samite_operators.rights import Rights
from samite_operators.settings import Settings

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class View:
    """What can be read, and so be watched."""

    kinds: frozenset[Kind] = frozenset()
    """Kinds that can be listed in every namespace of `namespaces`; none if not even runs can be."""
    namespaces: tuple[str, ...] = ()
    """Served namespaces in which runs can be listed; empty in cluster mode."""


class Resync:
    """Lists what is watched."""

    def __init__(
        self,
        api: KubernetesApi,
        cache: ObjectCache,
        watcher: Watcher,
        keeper: Keeper,
        vitals: Vitals,
        rights: Rights,
        settings: Settings,
    ) -> None:
        self._api, self._cache, self._watcher, self._keeper = api, cache, watcher, keeper
        self._vitals, self._rights, self._settings = vitals, rights, settings
        self._kinds: tuple[Kind, ...] = ()
        self._shown: dict[tuple[str, str], dict[Key, int]] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="resync", daemon=True)
        self.view = View()
        """What the last look could read."""

    def look(self, kinds: Iterable[Kind]) -> View:
        """List all `kinds` once, runs first. Returns what could be listed. Raises the ApiError of a kind that neither exists nor is forbidden: no answer."""
        found: set[Kind] = set()
        namespaces = self._listed_runs()
        if namespaces:
            found.add(TRAINING_RUN)
            self._vitals.listed()
        for kind in kinds if found else ():
            if kind == TRAINING_RUN:
                continue
            try:
                for namespace in namespaces if kind.namespaced else ("",):
                    self._take_over(kind, namespace, self._list(kind, namespace))
            except GoneApiError:
                _logger.warning("%s are not known to the API server; is what defines them installed?", kind.plural)
            except ForbiddenApiError as error:
                _logger.warning("%s cannot be listed: %s", kind.plural, error)
            else:
                found.add(kind)
        self.view = View(frozenset(found), tuple(one for one in namespaces if one))
        return self.view

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

    def _listed_runs(self) -> tuple[str, ...]:
        """List the runs of each served namespace; returns the namespaces where that is possible."""
        listed, refused = [], {}
        for namespace in self._settings.namespaces or ("",):
            try:
                listing = self._list(TRAINING_RUN, namespace)
            except GoneApiError:
                _logger.warning("%s are not known to the API server; is what defines them installed?", TRAINING_RUN.plural)
                break
            except ForbiddenApiError as error:
                refused[namespace] = str(error)
                continue
            self._take_over(TRAINING_RUN, namespace, listing)
            if namespace and not listing.items:
                self._rights.release(namespace)
            listed.append(namespace)
        for namespace, why in refused.items():
            if namespace not in self._vitals.unserved:
                _logger.warning("runs of %s cannot be listed, so nothing there is looked after: %s", namespace or "the cluster", why)
            self._forget(namespace)
        self._vitals.unserved = refused
        return tuple(listed)

    def _forget(self, namespace: str) -> None:
        """Nothing there can be read any more: no turn, and no watch that is behind. All of it comes back with the rights."""
        for kind in self._kinds if namespace else ():
            if kind.namespaced:
                self._vitals.watch(f"{kind.plural} in {namespace}", behind=False)
                self._shown.pop((kind.plural, namespace), None)
                for document in self._cache.all(kind):
                    if document["metadata"].get("namespace") == namespace:
                        self._cache.remove(kind, document)
                        self._wake(kind, document)

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
