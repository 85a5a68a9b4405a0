"""What a run left behind when its object went without the finalizer: clusters, Leases, roles and service accounts, found by their labels and deleted.

Two looks, some time apart, must agree that the run is gone, and the run is asked for by name once more before anything is deleted; a deletion names the
uid of what was seen. So neither a listing that lags nor a run that was made anew under the same name can lose anything.
"""

import logging
import threading
import time
from collections.abc import Callable

from samite.engines.kuberay.api import (
    LEASE,
    RAY_CLUSTER,
    ROLE,
    ROLE_BINDING,
    SERVICE_ACCOUNT,
    TRAINING_RUN,
    ApiError,
    Document,
    GoneApiError,
    Kind,
    KubernetesApi,
)
from samite.engines.kuberay.names import RUN, RUN_UID
from samite_operators.blame import BlameLedger
from samite_operators.instruments import Instruments
from samite_operators.settings import Settings
from samite_operators.telling import Teller

_logger = logging.getLogger(__name__)
SWEPT: tuple[Kind, ...] = (RAY_CLUSTER, LEASE, ROLE_BINDING, ROLE, SERVICE_ACCOUNT)


class OrphanSweep:
    """Looks for orphans each `settings.orphan_s`, and tidies the blame ledger on the way."""

    def __init__(
        self,
        api: KubernetesApi,
        settings: Settings,
        instruments: Instruments,
        ledger: BlameLedger,
        teller: Teller,
        *,
        may_act: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api, self._settings, self._instruments, self._ledger, self._teller = api, settings, instruments, ledger, teller
        self._may_act, self._clock = may_act, clock
        self._seen: dict[str, float] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="orphans", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout=3.0)

    def sweep(self) -> list[str]:
        """One look. Returns what was deleted, as `kind namespace/name`."""
        deleted, found = [], {}
        for namespace in self._settings.namespaces or ("",):
            runs = {item["metadata"]["uid"] for item in self._api.list(TRAINING_RUN, namespace).items}
            for kind in SWEPT:
                for item in self._listed(kind, namespace):
                    if item["metadata"].get("labels", {}).get(RUN_UID, "") in runs or item["metadata"].get("deletionTimestamp"):
                        continue
                    uid = item["metadata"]["uid"]
                    found[uid] = self._seen.get(uid, self._clock())
                    old = uid in self._seen and self._clock() - found[uid] >= self._settings.orphan_grace_s
                    if old and self._is_gone(item) and self._may_act() and not self._settings.maintenance:
                        deleted.append(self._delete(kind, item))
        self._seen = found
        return deleted

    def _listed(self, kind: Kind, namespace: str) -> list[Document]:
        try:
            listed = self._api.list(kind, namespace).items
        except GoneApiError:
            return []
        return [item for item in listed if (item["metadata"].get("labels") or {}).get(RUN_UID)]

    def _is_gone(self, item: Document) -> bool:
        labels = item["metadata"]["labels"]
        try:
            run = self._api.get(TRAINING_RUN, item["metadata"]["namespace"], labels.get(RUN, ""))
        except GoneApiError:
            return True
        return bool(run["metadata"]["uid"] != labels[RUN_UID])

    def _delete(self, kind: Kind, item: Document) -> str:
        metadata = item["metadata"]
        self._api.delete(kind, metadata["namespace"], metadata["name"], uid=metadata["uid"])
        self._instruments.record("samite.operator.orphans", 1)
        what = f"{kind.kind} {metadata['namespace']}/{metadata['name']}"
        _logger.warning("%s is deleted: its run %s is gone", what, metadata["labels"].get(RUN, "?"))
        about = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata}
        attributes = {"object_kind": kind.kind, "object_name": metadata["name"]}
        self._teller.event(about, "samite.operator.orphan.deleted", attributes, now_s=time.time())
        return what

    def _run(self) -> None:
        # Two looks are needed, so the second comes as soon as it can decide, not a whole period later.
        wait_s = min(self._settings.orphan_grace_s, self._settings.orphan_s)
        while not self._stopping.wait(wait_s):
            try:
                self.sweep()
                if self._may_act() and not self._settings.maintenance:
                    self._ledger.sweep()
            except ApiError as error:
                _logger.warning("orphan sweep: %s", error)
            except Exception:
                # A sweep that fails is repeated; it must not end the others.
                _logger.exception("orphan sweep")
            waits = bool(self._seen)
            wait_s = max(1.0, min(self._settings.orphan_grace_s, self._settings.orphan_s)) if waits else self._settings.orphan_s
