"""The driver's renewal of its run's Lease: progress one way, control documents and fencing the other way (docs/heartbeat.md).

    read ── is it mine? ── write, on the version that was read ── take the control documents from the answer ── 2 s ─┐
     ^        │ a newer attempt's: stop the ranks, write nothing more      │ 409: somebody else wrote               │
     └────────┴─────────────────────────────────────────────────────────────┴────────────────────────────────────────┘

Whatever the API server does or does not do is never a reason to stop training, but for one: its Lease names a newer attempt.
"""

import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from samite.errors import ConflictError, SamiteError, TemporaryError
from samite.spec.lease import CONTROL, RENEW_S, RUN_UID_LABEL, SUBMISSION, WRITTEN_BY_DRIVER, attempt_number
from samite_workloads.bridge.api_server import ApiServer
from samite_workloads.bridge.control_files import ControlFiles, texts
from samite_workloads.bridge.folder_facts import FolderFacts

_SAY_EVERY_S = 60.0

_logger = logging.getLogger(__name__)


class NotMineError(SamiteError):
    """The Lease names another submission; nothing may be written."""


class LeaseKeeper:
    """Renews the Lease `name` for `submission_id` from a thread of its own."""

    def __init__(
        self,
        api: ApiServer,
        *,
        name: str,
        namespace: str,
        submission_id: str,
        run_uid: str,
        holder: str,
        facts: FolderFacts,
        control: ControlFiles,
        on_fenced: Callable[[str], object],
        every_s: float = RENEW_S,
    ) -> None:
        """`on_fenced` is called once, from the thread, with what the Lease says; the thread ends with it."""
        self._api = api
        self._path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}"
        self._submission_id, self._run_uid, self._holder = submission_id, run_uid, holder
        self._facts, self._control, self._on_fenced = facts, control, on_fenced
        self._every_s = every_s
        self._version = ""
        self._acknowledged: dict[str, str | None] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="samite-lease", daemon=True)
        self._said_s = -1e9
        self.fenced = ""
        """Why this attempt may not go on; empty as long as it may."""
        self.renewals = 0
        self.errors = 0

    def start(self) -> None:
        """Begin to renew."""
        self._thread.start()

    def close(self, *, patience_s: float = 10.0) -> bool:
        """Renew a last time, with the result, within `patience_s`; True if the API server has it."""
        ends_s = time.monotonic() + patience_s
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=patience_s)
        if self._thread.is_alive():
            return False
        while not self.fenced and time.monotonic() < ends_s:
            if self._try_to_renew() is None:
                self._api.close()
                return True
            time.sleep(min(1.0, max(0.0, ends_s - time.monotonic())))
        self._api.close()
        return False

    def renew(self) -> None:
        """One renewal. Raises what stood in its way; NotMineError if the Lease is another submission's."""
        if not self._version:
            self._take(self._api.get(self._path))
        facts = self._facts.annotations()
        # An annotation without a fact is taken away: it may be left from the attempt before.
        wanted = {key: facts.get(key) for key in WRITTEN_BY_DRIVER}
        annotations = {key: text for key, text in wanted.items() if key not in self._acknowledged or self._acknowledged[key] != text}
        changes = {
            "metadata": {"resourceVersion": self._version, "annotations": annotations},
            "spec": {"holderIdentity": self._holder, "renewTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")},
        }
        version, self._version = self._version, ""  # until an answer says otherwise, the next renewal reads first
        found = self._api.merge(self._path, changes)
        assert version
        self._acknowledged.update(annotations)
        self.renewals += 1
        self._take(found)

    def _run(self) -> None:
        wait_s = 0.0
        while not self._stopping.wait(wait_s) and not self.fenced:
            began_s = time.monotonic()
            trouble = self._try_to_renew()
            pause_s = trouble.retry_after_s if isinstance(trouble, TemporaryError) else 0.0
            wait_s = max(pause_s if pause_s > self._every_s else 0.0, self._every_s - (time.monotonic() - began_s), 0.05)

    def _try_to_renew(self) -> BaseException | None:
        """Renew; once more at once after a conflict, which only says that the operator wrote in between. Returns what went wrong."""
        try:
            try:
                self.renew()
            except ConflictError:
                self._version = ""
                self.renew()
        except Exception as error:  # noqa: BLE001  the boundary of a thread that must outlive every trouble
            self.errors += 1
            if not self.fenced:
                self._complain(error)
            return error
        return None

    def _take(self, lease: dict[str, Any]) -> None:
        """What an answer says: whose the Lease is, and what the operator wants. Raises NotMineError."""
        metadata = lease.get("metadata", {})
        annotations = metadata.get("annotations") or {}
        owner, uid = str(annotations.get(SUBMISSION, "")), str((metadata.get("labels") or {}).get(RUN_UID_LABEL, self._run_uid))
        if uid != self._run_uid:
            self._fence(f"its Lease is that of another run with the same name (uid {uid})")
        if owner != self._submission_id:
            if attempt_number(owner) > attempt_number(self._submission_id):
                self._fence(f"attempt {owner} has taken over")
            raise NotMineError(f"the Lease names {owner or 'no submission'}, not {self._submission_id}: waiting until it does")
        self._version = str(metadata.get("resourceVersion", ""))
        wanted = texts(annotations.get(CONTROL, ""))
        if wanted is not None:
            self._control.apply(wanted)

    def _fence(self, reason: str) -> None:
        self.fenced = reason
        _logger.error("%s is fenced: %s", self._submission_id, reason)
        self._on_fenced(reason)
        raise NotMineError(reason)

    def _complain(self, error: BaseException) -> None:
        now_s = time.monotonic()
        if now_s - self._said_s >= _SAY_EVERY_S:
            self._said_s = now_s
            _logger.warning("the Lease was not renewed (%d times so far), training goes on: %s", self.errors, error)
