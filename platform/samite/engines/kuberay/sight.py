"""What the engine keeps of one run between two turns. No truth: thrown away, it is learnt again, a little later at most.

What must not be lost is in the lifecycle's memory (status of the run), in the Lease, and in storage.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from samite.checkpoint import Store, StoreOptions, open_store
from samite.checkpoint.retention import KeepPolicy
from samite.engines.kuberay.heartbeats import LeaseWatch
from samite.engines.kuberay.pod_facts import Ended, address_of, ended, host_of, name_of
from samite.engines.local.storage_watch import StorageWatch
from samite.errors import SamiteError
from samite.lifecycle import GateMeasured, StorageObserved
from samite.spec.lease import LeaseReport

StorageOf = Callable[[Mapping[str, Any]], Store]
"""From a run's document to the store of its checkpoints. Raises SamiteError if the URI or the credentials make no sense."""
ENDS_KEPT = 512


@dataclass(slots=True)
class Sight:
    """One run as it was seen lately."""

    uid: str
    lock: threading.RLock = field(default_factory=threading.RLock)
    lease: LeaseWatch = field(default_factory=LeaseWatch)
    report: LeaseReport | None = None
    """The newest reading of the Lease."""
    joined: set[str] = field(default_factory=set)
    """Pods that Ray has called alive."""
    hosts: dict[str, str] = field(default_factory=dict)
    """Machine of each pod ever seen."""
    addresses: dict[str, str] = field(default_factory=dict)
    ends: dict[str, Ended] = field(default_factory=dict)
    """How pods ended, kept although KubeRay deletes them at once."""
    heads: dict[str, str] = field(default_factory=dict)
    """Head pod in which each submission's driver was seen to run."""
    gate: GateMeasured | None = None
    stalled_since_s: float | None = None
    kills: dict[str, float] = field(default_factory=dict)
    stacks: dict[str, float] = field(default_factory=dict)
    """When each diagnostics request was first given."""
    events_read_at_s: float = -1e9
    pod_events: tuple[Mapping[str, Any], ...] = ()
    storage: StorageWatch | None = None
    store: Store | None = None
    storage_problem: str = ""
    told: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """Events of the storage thread, for the operator to take."""

    def note_pod(self, pod: Mapping[str, Any]) -> None:
        """Keep what outlives the pod's object: its machine, and how its container ended."""
        name = name_of(pod)
        if host_of(pod):
            self.hosts[name] = host_of(pod)
        if address_of(pod):
            self.addresses[name] = address_of(pod)
        end = ended(pod)
        if end is not None:
            self.ends[name] = end
        for known in (self.hosts, self.addresses, self.ends):
            while len(known) > ENDS_KEPT:
                known.pop(next(iter(known)))

    def open_storage(self, run: Mapping[str, Any], storage_of: StorageOf, clock: Callable[[], float], period_s: float) -> None:
        """Begin to watch the storage, once; a URI that makes no sense is kept as the probe's answer."""
        if self.storage is not None or self.storage_problem:
            return
        keep = run["spec"].get("checkpoint", {}).get("keep") or {}
        try:
            self.store = storage_of(run)
        except SamiteError as error:
            self.storage_problem = str(error)
            return
        policy = KeepPolicy(last=keep.get("last", 3), every_steps=keep.get("everySteps") or 0, stage_final=keep.get("stageFinal", True))
        self.storage = StorageWatch(self.store, keep=policy, tell=self._tell, clock=clock, period_s=period_s)
        self.storage.start()

    def storage_observed(self, probe_id: str, now_s: float) -> StorageObserved:
        """The outcome of the last probe, and how long writes have stood still."""
        if self.storage is None:
            failed = False if self.storage_problem else None
            return StorageObserved(probe_id=probe_id, probe=failed, message=self.storage_problem)
        found = self.storage.storage()
        stalled_s = None if self.stalled_since_s is None else now_s - self.stalled_since_s
        return StorageObserved(probe_id=found.probe_id, probe=found.probe, message=found.message, failing_for_s=stalled_s)

    def close(self) -> None:
        """End the storage thread."""
        if self.storage is not None:
            self.storage.stop(patience_s=1.0)

    def _tell(self, name: str, **attributes: Any) -> None:
        self.told.append((name, attributes))


def storage_of_spec(run: Mapping[str, Any]) -> Store:
    """The store of `spec.checkpoint`, with the credentials of this process's environment."""
    checkpoint = run["spec"].get("checkpoint", {})
    options = StoreOptions(
        endpoint=checkpoint.get("endpoint") or "", region=checkpoint.get("region") or "", insecure=bool(checkpoint.get("insecure"))
    )
    return open_store(checkpoint.get("uri") or "", options)
