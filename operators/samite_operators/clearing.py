"""What happens between `kubectl delete trun` and the end of the object: the finalizer.

    checkpoint (if asked) ─ stop the submission ─ delete the cluster ─ wait until it is gone ─ let the object go

At most `cap_s`: afterwards the object goes in any case, with a warning and a count, and Kubernetes' garbage collection takes what is left by its owner
references. At once, if the namespace is going away or KubeRay's API is gone. Nothing is created on the way, so neither a quota nor a policy nor a
full cluster can hold a deletion up.
"""

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from samite.engines.kuberay.api import LEASE, RAY_CLUSTER, TRAINING_RUN, ApiError, Document, ForbiddenApiError, GoneApiError
from samite.engines.kuberay.names import FINALIZER, RUN, RUN_UID
from samite.lifecycle import (
    TERMINAL,
    Action,
    Finish,
    KillRanks,
    Memory,
    Phase,
    ReleaseCluster,
    RequestCheckpoint,
    StopCluster,
    StopSubmission,
    decide,
)
from samite.spec.lease import lease_name
from samite_operators.plans import Planned
from samite_operators.status import StatusWriter, wanted_status

if TYPE_CHECKING:
    from samite_operators.services import Services

_logger = logging.getLogger(__name__)
CHECKPOINT_FIRST = "samite.dev/checkpoint-on-delete"
"""Annotation: `true` asks a run that is deleted for a last checkpoint before it stops."""
ALLOWED = (RequestCheckpoint, StopSubmission, KillRanks, ReleaseCluster, StopCluster, Finish)
"""Actions that create nothing."""
_PERIOD_S = 1.0


class Clearing:
    """The deletion of one run, a step at a time."""

    def __init__(self, *, cap_s: float = 300.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._cap_s, self._clock = cap_s, clock
        self._since_s: float | None = None

    def step(self, services: "Services", run: Document, planned: Planned | None, memory: Memory, writer: StatusWriter) -> float | None:
        """One step; returns when the next is due, None once the object was let go. `planned` None: its spec makes no sense."""
        now_s = self._clock()
        first = self._since_s is None
        self._since_s = now_s if self._since_s is None else self._since_s
        if first and _namespace_ends(services, run):
            return self._let_go(services, run, "the namespace is going away")
        lasted_s = now_s - self._since_s
        if lasted_s >= self._cap_s:
            return self._expire(services, run, lasted_s)
        left: list[Action] = []
        over = planned is None
        if planned is not None:
            run, over, left = self._wind_down(services, run, planned, memory, writer)
        try:
            if over and _clusters_gone(services, run):
                services.api.delete(LEASE, run["metadata"]["namespace"], lease_name(run["metadata"]["name"]))
                return self._let_go(services, run, "")
        except GoneApiError:
            return self._let_go(services, run, "KubeRay's API is gone")
        _logger.debug("run %s: clearing, %d actions, over %s", run["metadata"]["name"], len(left), over)
        return _PERIOD_S

    def _wind_down(
        self, services: "Services", run: Document, planned: Planned, memory: Memory, writer: StatusWriter
    ) -> tuple[Document, bool, list[Action]]:
        """Let the lifecycle cancel the run; suspend it first where a last checkpoint is asked for. Returns the run and whether nothing is left."""
        engine = services.engine(run["metadata"]["namespace"])
        document = planned.document(run)
        observed = engine.observe(document, planned.plan, memory)
        waits = _wants_checkpoint(run) and memory.phase not in (*TERMINAL, Phase.SUSPENDED, Phase.CANCELLING, Phase.HELD)
        observed = replace(observed, cancel=not waits, suspend=waits, requests=())
        decision = decide(planned.plan, observed, memory, engine.now_s())
        before = run.get("status") or {}
        wanted = wanted_status(
            decision.status,
            before=before,
            run=document,
            now_s=engine.now_s(),
            committed_at_s=decision.memory.newest_commit_at_s,
            extra={"runtime": before.get("runtime") or {}},
        )
        due = writer.due(before, wanted, memory=(memory, decision.memory), actions=decision.actions, now_s=services.clock())
        if due or decision.events:
            run = writer.write(services.api, run, wanted, decision.memory, actions=decision.actions, now_s=services.clock())
        for event in decision.events:
            services.teller.event(run, event.name, event.attributes, now_s=engine.now_s())
        actions: list[Action] = [action for action in decision.actions if isinstance(action, ALLOWED)]
        if actions and services.may_act():
            for problem in engine.apply(document, planned.plan, actions, runtime=None):
                _logger.warning("run %s: %s", run["metadata"]["name"], problem.message)
        return run, decision.memory.phase in TERMINAL, actions

    def _expire(self, services: "Services", run: Document, lasted_s: float) -> float | None:
        reason = f"after {lasted_s:.0f} s there is still something of it: look for RayClusters and pods with the label {RUN}={run['metadata']['name']}"
        services.instruments.record("samite.operator.clearings.expired", 1)
        now_s = services.engine(run["metadata"]["namespace"]).now_s()
        services.teller.event(run, "samite.operator.clearing.expired", {"duration": lasted_s, "reason": reason}, now_s=now_s)
        try:
            _clusters_gone(services, run)
        except ApiError as error:
            _logger.warning("run %s: its clusters are left to garbage collection: %s", run["metadata"]["name"], error)
        return self._let_go(services, run, reason)

    def _let_go(self, services: "Services", run: Document, why: str) -> float | None:
        metadata = run["metadata"]
        kept = [name for name in metadata.get("finalizers") or () if name != FINALIZER]
        patch = {"metadata": {"resourceVersion": metadata["resourceVersion"], "finalizers": kept}}
        with suppress(GoneApiError):
            services.api.patch(TRAINING_RUN, metadata["namespace"], metadata["name"], patch)
        services.rights.release(metadata["namespace"])
        _logger.info("run %s/%s is let go%s", metadata["namespace"], metadata["name"], f": {why}" if why else "")
        return None


def take_on(services: "Services", run: Document) -> Document:
    """Hold the rights that the run's end will need, then put the finalizer on it; returns the run as it stands. Costs no request where all that is so."""
    metadata = run["metadata"]
    services.rights.hold(metadata["namespace"])
    finalizers = metadata.get("finalizers") or ()
    if FINALIZER in finalizers:
        return run
    patch = {"metadata": {"resourceVersion": metadata["resourceVersion"], "finalizers": [*finalizers, FINALIZER]}}
    return services.api.patch(TRAINING_RUN, metadata["namespace"], metadata["name"], patch)


def _wants_checkpoint(run: Document) -> bool:
    return (run["metadata"].get("annotations") or {}).get(CHECKPOINT_FIRST) == "true"


def _namespace_ends(services: "Services", run: Document) -> bool:
    """A namespace that is going away takes no new object: the Event that tells of the clearing finds out, without a right to read namespaces."""
    now_s = services.engine(run["metadata"]["namespace"]).now_s()
    try:
        services.teller.event(run, "samite.operator.clearing.started", {}, now_s=now_s, strict=True)
    except ForbiddenApiError as error:
        return "being terminated" in str(error)
    return False


def _clusters_gone(services: "Services", run: Document) -> bool:
    """Delete what is left of the run's clusters; True once there is none. Asked of the server itself."""
    metadata = run["metadata"]
    with services.api.direct():
        left = services.api.list(RAY_CLUSTER, metadata["namespace"], labels={RUN: metadata["name"], RUN_UID: metadata["uid"]}).items
    for cluster in left:
        if not cluster["metadata"].get("deletionTimestamp"):
            services.api.delete(RAY_CLUSTER, metadata["namespace"], cluster["metadata"]["name"], uid=cluster["metadata"]["uid"])
    return not left
