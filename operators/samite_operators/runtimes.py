"""Which runtime a run gets: resolved by the rules of `samite.spec.runtime_resolution`, pinned in the run's status, put into the engine's words.

A pinned runtime stays for the life of the run, whatever its administrator changes. It is looked up anew only while nothing was started with it, or
while the run is held because its pods cannot start: then a repaired image is what everybody waits for.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from samite.engines.kuberay.api import Document, GoneApiError, Kind, KubernetesApi
from samite.engines.kuberay.runtime import Runtime
from samite.lifecycle import Memory, Phase
from samite.spec import TrainingRun
from samite.spec.runtime_resolution import DEFAULT_NAME, ResolvedRuntime, resolve

CLUSTER_RUNTIME = Kind(
    group="samite.dev", version="v1alpha1", plural="clustertrainingruntimes", kind="ClusterTrainingRuntime", namespaced=False
)
TRAINING_RUNTIME = Kind(group="samite.dev", version="v1alpha1", plural="trainingruntimes", kind="TrainingRuntime")


@dataclass(frozen=True, kw_only=True, slots=True)
class Chosen:
    """A run's runtime."""

    runtime: Runtime
    pin: Document
    """What `status.runtime` holds."""


class Runtimes:
    """Looks runtimes up."""

    def __init__(self, api: KubernetesApi) -> None:
        self._api = api

    def choose(self, run: TrainingRun, memory: Memory, pinned: Mapping[str, Any]) -> Chosen:
        """The runtime of `run`. Raises SpecError if there is no such runtime or it does not allow what the run changes, ApiError if it cannot be read."""
        if pinned.get("content") and not _open(memory):
            try:
                return _chosen(ResolvedRuntime.unpin(pinned), dict(pinned))
            except ValueError:
                pass  # Damaged by hand: the present one is better than none.
        found = resolve(run, self._candidates(run))
        return _chosen(found, found.pin())

    def _candidates(self, run: TrainingRun) -> list[Document]:
        wanted = run.spec.runtime_ref
        kind = TRAINING_RUNTIME if wanted is not None and wanted.kind == TRAINING_RUNTIME.kind else CLUSTER_RUNTIME
        namespace = run.metadata.namespace or ""
        name = wanted.name if wanted is not None else DEFAULT_NAME
        try:
            found = self._api.get(kind, namespace if kind.namespaced else "", name)
        except GoneApiError:
            return [] if wanted is None else self._all(namespace)
        return [{**found, "kind": kind.kind}]

    def _all(self, namespace: str) -> list[Document]:
        """Every runtime that could have been meant, for the message."""
        found = []
        for kind in (CLUSTER_RUNTIME, TRAINING_RUNTIME):
            try:
                items = self._api.list(kind, namespace if kind.namespaced else "").items
            except GoneApiError:
                continue
            found += [{**item, "kind": kind.kind} for item in items]
        return found


def _open(memory: Memory) -> bool:
    if memory.phase in (Phase.PENDING, Phase.VALIDATING) or (memory.phase is Phase.QUEUED and memory.attempt == 0):
        return True
    return memory.phase is Phase.HELD and memory.reason == "CannotStart"


def _chosen(found: ResolvedRuntime, pin: Document) -> Chosen:
    runtime = Runtime.from_document(found.spec.to_document(), name=found.name, generation=found.generation)
    return Chosen(runtime=runtime, pin=pin)
