"""One operator acts at a time: a Lease that is held, renewed, waited for and given back.

No clock of another machine is trusted. A waiting operator measures, on its own monotonic clock, how long the Lease has not changed; the holder
counts itself out after two thirds of the Lease's duration without a renewal that succeeded, so it has stopped before anybody else begins.
A container that was started again in the same pod has the same identity and goes on at once: the process before it is dead.
"""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from samite.errors import ConflictError, NotFoundError, SamiteError

_logger = logging.getLogger(__name__)
_GIVE_UP_SHARE = 2.0 / 3.0


class LeaseStore(Protocol):
    """Where the one Lease lies: the API server, or a dictionary in tests. The seam keeps the election free of any client."""

    def read(self) -> dict[str, Any]:
        """The Lease. NotFoundError if there is none."""
        ...

    def create(self, lease: dict[str, Any]) -> dict[str, Any]:
        """Create it. ConflictError if it exists."""
        ...

    def replace(self, lease: dict[str, Any]) -> dict[str, Any]:
        """Replace it if its resourceVersion is still that of `lease`; ConflictError otherwise."""
        ...


@dataclass(frozen=True, slots=True)
class _Seen:
    version: str
    since_s: float


class Leadership:
    """Who leads. `start` begins to try in a thread; `held` is true exactly while this process may act."""

    def __init__(
        self,
        store: LeaseStore,
        *,
        name: str,
        namespace: str,
        identity: str,
        lease_s: float = 15.0,
        renew_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._metadata = {"name": name, "namespace": namespace}
        self.identity = identity
        self._lease_s, self._renew_s, self._clock = lease_s, renew_s, clock
        self._seen: _Seen | None = None
        self._renewed_at_s: float | None = None
        self.holder = ""
        """Who held the Lease when it was last read."""
        self.was_held = False
        """True once this process has led; a leader that is one no longer must end, because its state is old."""
        self._changed = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="leadership", daemon=True)

    @property
    def held(self) -> bool:
        """True if this process may act now."""
        renewed_at_s = self._renewed_at_s
        return renewed_at_s is not None and self._clock() - renewed_at_s < self._lease_s * _GIVE_UP_SHARE

    @property
    def lost(self) -> bool:
        """True if this process has led and leads no longer."""
        return self.was_held and not self.held

    def start(self) -> None:
        """Begin to try."""
        self._thread.start()

    def wait(self, timeout_s: float) -> bool:
        """Wait until the Lease is held, at most `timeout_s`."""
        self._changed.wait(timeout_s)
        return self.held

    def stop(self) -> None:
        """Give the Lease back, so that the next operator need not wait for its end."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout=self._lease_s)
        if self.held:
            self._renewed_at_s = None
            with suppress(SamiteError):
                lease = self._store.read()
                if lease["spec"].get("holderIdentity") == self.identity:
                    self._store.replace({**lease, "spec": {**lease["spec"], "holderIdentity": ""}})

    def step(self) -> bool:
        """One try to get or keep the Lease. Returns `held`. A failure to reach the store changes nothing but the passing of time."""
        began_s = self._clock()
        try:
            lease = self._take(began_s)
        except ConflictError:
            _logger.info("another operator wrote the Lease %s first", self._metadata["name"])
        except SamiteError as error:
            _logger.warning("the Lease %s could not be renewed: %s", self._metadata["name"], error)
        else:
            if lease is not None:
                if not self.held:
                    _logger.info("%s leads now", self.identity)
                self._renewed_at_s, self.was_held, self.holder = began_s, True, self.identity
                self._changed.set()
        return self.held

    def _take(self, now_s: float) -> dict[str, Any] | None:
        try:
            lease = self._store.read()
        except NotFoundError:
            return self._store.create(self._lease(None))
        spec = lease.get("spec") or {}
        self.holder = spec.get("holderIdentity") or ""
        version = lease["metadata"]["resourceVersion"]
        if self._seen is None or self._seen.version != version:
            self._seen = _Seen(version, now_s)
        duration_s = max(float(spec.get("leaseDurationSeconds") or 0.0), self._lease_s)
        if self.holder in ("", self.identity) or now_s - self._seen.since_s >= duration_s:
            return self._store.replace(self._lease(lease))
        # Somebody else holds it: what was renewed before counts no more.
        self._renewed_at_s = None
        return None

    def _lease(self, found: dict[str, Any] | None) -> dict[str, Any]:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = dict((found or {}).get("spec") or {})
        if spec.get("holderIdentity") != self.identity:
            spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + (found is not None)
            spec["acquireTime"] = now
        spec |= {"holderIdentity": self.identity, "leaseDurationSeconds": max(1, round(self._lease_s)), "renewTime": now}
        metadata = self._metadata if found is None else found["metadata"]
        return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": dict(metadata), "spec": spec}

    def _run(self) -> None:
        while not self._stopping.is_set():
            self.step()
            self._stopping.wait(self._renew_s)
