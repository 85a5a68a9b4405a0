"""The hands of the engine: does what the lifecycle decided, in the order given. Every action may come again until an observation shows its effect.

`KillRanks` has no `exec` to use: ranks are asked by a control document to kill themselves, which works for a blocked training function; a process
that is stopped or holds Python's lock does not answer, and after `KILL_PATIENCE_S` its pod is ended by the kubelet instead.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from samite.engines.kuberay.api import KubernetesApi
from samite.engines.kuberay.background import Background
from samite.engines.kuberay.clusters import Clusters
from samite.engines.kuberay.control import request, take_lease
from samite.engines.kuberay.ray_view import JobsOf
from samite.engines.kuberay.records_watch import recorded_numbers, submissions_of_stage
from samite.engines.kuberay.runtime import Runtime
from samite.engines.kuberay.sight import Sight
from samite.engines.kuberay.submission import submission_of
from samite.engines.local.storage_watch import StorageWatch
from samite.errors import NotFoundError, TemporaryError
from samite.lifecycle import (
    Action,
    CollectDiagnostics,
    CommitHandover,
    EvaluateGate,
    Finish,
    GateMeasured,
    KillRanks,
    ProbeStorage,
    QuarantineCheckpoints,
    ReleaseCluster,
    ReleaseWorkers,
    ReplaceNode,
    RequestCheckpoint,
    StartCluster,
    StopCluster,
    StopSubmission,
    Submit,
    VerifyCheckpoint,
)

SUBMIT_WAIT_S = 15.0
"""How long a turn waits for Ray to accept a submission; it goes on in the background."""
KILL_PATIENCE_S = 10.0


class Applier:
    """Applies the actions of the runs of one namespace."""

    def __init__(
        self,
        api: KubernetesApi,
        clusters: Clusters,
        background: Background,
        *,
        namespace: str,
        jobs_of: JobsOf,
        clock: Callable[[], float],
    ) -> None:
        self._api = api
        self._clusters = clusters
        self._background = background
        self._namespace = namespace
        self._jobs_of = jobs_of
        self._clock = clock

    def apply(self, run: Mapping[str, Any], action: Action, runtime: Runtime | None, sight: Sight) -> None:
        """Do one action, or have it done. Raises SamiteError; what fails for now is tried again when the action comes again.

        Without a `runtime` nothing can be started: enough to take a run down.
        """
        match action:
            case StartCluster():
                self._clusters.start(run, action, _needed(runtime))
            case ReplaceNode():
                self._clusters.replace(run, action, runtime)
            case StopCluster() | ReleaseCluster():
                self._clusters.remove(run, action)
            case ReleaseWorkers():
                self._clusters.release_workers(run, action)
            case Submit():
                self._submit(run, action, _needed(runtime))
            case StopSubmission():
                self._stop(run, action)
            case KillRanks():
                self._kill(run, action, sight)
            case CollectDiagnostics():
                sight.stacks.setdefault(action.diagnostics_id, self._clock())
                request(self._api, run, action.submission_id, "stacks.json", {"request": action.diagnostics_id})
            case RequestCheckpoint():
                file = "stop.json" if action.stop_after else "checkpoint.json"
                request(self._api, run, action.submission_id, file, {"request": action.request_id, "reason": action.reason})
            case EvaluateGate():
                self._evaluate(run, action, sight)
            case ProbeStorage() | VerifyCheckpoint() | QuarantineCheckpoints() | CommitHandover():
                self._ask_storage(action, sight)
            case Finish():
                sight.close()  # the Lease and the records tell how it ended; the run's own deletion takes the rest

    def _submit(self, run: Mapping[str, Any], action: Submit, runtime: Runtime) -> None:
        take_lease(self._api, run, action.submission_id)
        wanted = submission_of(action, run, runtime)
        jobs = self._jobs(run, action.cluster_id)
        key = f"{run['metadata']['uid']}/submit/{action.submission_id}"
        # False from `submit` means that the id exists: an earlier turn's submission, adopted.
        self._background.once(key, lambda: jobs.submit(wanted.submission_id, wanted.entrypoint, wanted.environment), wait_s=SUBMIT_WAIT_S)

    def _stop(self, run: Mapping[str, Any], action: StopSubmission) -> None:
        with suppress(NotFoundError):
            self._jobs(run, action.cluster_id).stop(action.submission_id)

    def _kill(self, run: Mapping[str, Any], action: KillRanks, sight: Sight) -> None:
        key = f"{action.submission_id}/{action.incarnation}/{','.join(map(str, action.ranks))}"
        since_s = sight.kills.setdefault(key, self._clock())
        document = {
            "request": key,
            "submission_id": action.submission_id,
            "incarnation": action.incarnation,
            "ranks": list(action.ranks),
        }
        request(self._api, run, action.submission_id, "kill.json", document)
        report = sight.report
        if self._clock() - since_s < KILL_PATIENCE_S or report is None or report.submission_id != action.submission_id:
            return
        places = {
            sign.heartbeat.node
            for sign in report.signs
            if sign.heartbeat.rank in action.ranks and sign.heartbeat.incarnation == action.incarnation
        }
        self._clusters.delete_pods(run, places)

    def _evaluate(self, run: Mapping[str, Any], action: EvaluateGate, sight: Sight) -> None:
        store, name = sight.store, run["metadata"]["name"]
        if store is None or (sight.gate is not None and sight.gate.gate_id == action.gate_id):
            return

        def measure() -> GateMeasured:
            submissions = submissions_of_stage(store, name, action.stage_index)
            return GateMeasured(gate_id=action.gate_id, values=recorded_numbers(store, submissions, action.checks))

        found = self._background.ask(f"{sight.uid}/gate/{action.gate_id}", measure, every_s=5.0)
        if isinstance(found, GateMeasured):
            sight.gate = found

    def _ask_storage(self, action: ProbeStorage | VerifyCheckpoint | QuarantineCheckpoints | CommitHandover, sight: Sight) -> None:
        storage = self._storage(sight)
        match action:
            case ProbeStorage():
                storage.probe(action.probe_id)
            case VerifyCheckpoint():
                storage.verify(action.checkpoint_id)
            case QuarantineCheckpoints():
                storage.quarantine(action)
            case CommitHandover():
                storage.commit(action)

    def _storage(self, sight: Sight) -> StorageWatch:
        if sight.storage is None:
            raise TemporaryError(sight.storage_problem or "the storage is not open yet")
        return sight.storage

    def _jobs(self, run: Mapping[str, Any], cluster_id: str) -> Any:
        return self._jobs_of(cluster_id, self._namespace, self._clusters.token(run["metadata"]["uid"], cluster_id))


def _needed(runtime: Runtime | None) -> Runtime:
    if runtime is None:
        raise NotFoundError("no runtime is known for this run, so nothing can be started")
    return runtime
