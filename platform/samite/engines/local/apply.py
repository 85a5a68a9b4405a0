"""The hands of the local engine: does what the lifecycle decided. Every action may come again until an observation shows its effect.

What could wait for somebody (Ray's REST calls) is done by one worker thread, so that the loop keeps its beat; an action that is still
under way there is not begun a second time.
"""

import logging
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from samite.engines.local import processes
from samite.engines.local.folder import RunFolder
from samite.engines.local.gate_numbers import measure
from samite.engines.local.observe import Observer, read_documents
from samite.engines.local.ray_command import HEAD
from samite.engines.local.ray_nodes import RayNodes
from samite.engines.local.storage_watch import StorageWatch
from samite.errors import NotFoundError, SamiteError
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
from samite.spec.attempt import AttemptSpec, Heartbeat, write_atomically

_logger = logging.getLogger(__name__)


class Applier:
    """Applies actions in the order given."""

    def __init__(
        self,
        folder: RunFolder,
        nodes: RayNodes,
        storage: StorageWatch,
        observer: Observer,
        *,
        run: dict[str, Any],
        run_uid: str,
        checkpoint_uri: str,
    ) -> None:
        self._folder = folder
        self._nodes = nodes
        self._storage = storage
        self._observer = observer
        self._run = run
        self._run_uid = run_uid
        self._checkpoint_uri = checkpoint_uri
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ray-calls")
        self._under_way: dict[str, Future[None]] = {}
        self.finished: str = ""
        """Outcome of the run once `Finish` was applied."""

    def close(self) -> None:
        """Let go of the worker thread."""
        self._worker.shutdown(wait=False, cancel_futures=True)

    def apply(self, action: Action) -> None:
        """Do one action, or have it done. What fails for now is tried again when the action comes again."""
        match action:
            case ProbeStorage():
                self._storage.probe(action.probe_id)
            case StartCluster():
                self._nodes.start(action.cluster_id, [name for name in action.nodes if name not in action.exclude_nodes])
            case ReplaceNode():
                self._nodes.remove(action.node)
                self._nodes.add_worker(action.replacement)
            case StopCluster() | ReleaseCluster():
                if self._nodes.cluster is not None and self._nodes.cluster.cluster_id == action.cluster_id:
                    self._nodes.stop()
            case ReleaseWorkers():
                for node in self._nodes.nodes():
                    if node.name != HEAD:
                        self._nodes.remove(node.name)
            case Submit():
                self._once(f"submit {action.submission_id}", lambda: self._submit(action))
            case StopSubmission():
                self._once(f"stop {action.submission_id}", lambda: self._stop_submission(action.submission_id))
            case KillRanks():
                self._kill_ranks(action.submission_id, ranks=action.ranks, incarnation=action.incarnation)
            case CollectDiagnostics():
                self._collect_diagnostics(action)
            case RequestCheckpoint():
                self._request_checkpoint(action)
            case VerifyCheckpoint():
                self._storage.verify(action.checkpoint_id)
            case QuarantineCheckpoints():
                self._storage.quarantine(action)
            case EvaluateGate():
                self._observer.gate = GateMeasured(gate_id=action.gate_id, values=measure(self._folder.path, action.checks))
            case CommitHandover():
                self._storage.commit(action)
            case Finish():
                processes.sweep(self._run_uid)
                self.finished = action.outcome

    def _once(self, key: str, work: Callable[[], None]) -> None:
        running = self._under_way.get(key)
        if running is not None and not running.done():
            return
        self._under_way[key] = self._worker.submit(self._logged, key, work)

    @staticmethod
    def _logged(key: str, work: Callable[[], None]) -> None:
        try:
            work()
        except SamiteError as error:
            _logger.warning("%s did not succeed: %s", key, error)
        except Exception:
            _logger.exception("%s failed", key)

    def _submit(self, action: Submit) -> None:
        jobs = self._nodes.jobs()
        if jobs is None:
            return
        folder = self._folder.attempt(action.submission_id)
        for place in (folder, folder / "logs", folder / "failures"):
            place.mkdir(parents=True, exist_ok=True)
        (self._folder.control / "stop.json").unlink(missing_ok=True)
        attempt = AttemptSpec(
            run=self._run,
            run_uid=self._run_uid,
            stage_index=action.stage_index,
            attempt=action.attempt,
            submission_id=action.submission_id,
            run_folder=str(self._folder.path),
            num_workers=action.num_workers,
            checkpoint_uri=self._checkpoint_uri,
            worker_group_restarts=action.worker_group_restarts,
            resume=action.resume,
            handover=action.handover,
            skip_data_windows=action.skip_data_windows,
            environment={entry["name"]: entry["value"] for entry in self._run["spec"].get("env", ()) if entry.get("value") is not None},
        )
        attempt.write(folder / "attempt.json")
        program = [sys.executable, "-m", "samite_workloads.entrypoint", "--attempt", str(folder / "attempt.json"), "--ray"]
        log = shlex.quote(str(folder / "logs" / "driver.log"))
        created = jobs.submit(action.submission_id, f"exec {shlex.join(program)} >> {log} 2>&1", attempt.environment)
        _logger.info("%s %s", "submitted" if created else "adopted", action.submission_id)

    def _stop_submission(self, submission_id: str) -> None:
        jobs = self._nodes.jobs()
        if jobs is not None:
            with suppress(NotFoundError):
                jobs.stop(submission_id)
        # Ray ends its workers by asking them; a stopped or blocked process does not answer.
        time.sleep(1.0)
        self._kill_ranks(submission_id)

    def _kill_ranks(self, submission_id: str, *, ranks: tuple[int, ...] | None = None, incarnation: int | None = None) -> None:
        ours = processes.processes_of_run(self._run_uid)
        for beat in read_documents(self._folder.heartbeats, Heartbeat, pattern="rank-*.json"):
            wanted = (
                beat.submission_id == submission_id and incarnation in {None, beat.incarnation} and (ranks is None or beat.rank in ranks)
            )
            if wanted and beat.pid in ours:
                with suppress(ProcessLookupError):
                    os.kill(beat.pid, signal.SIGKILL)

    def _collect_diagnostics(self, action: CollectDiagnostics) -> None:
        """Every rank writes its stacks on SIGUSR1; a stopped one cannot, which is a finding too."""
        if action.diagnostics_id in self._observer.diagnostics:
            return
        ours = processes.processes_of_run(self._run_uid)
        for beat in read_documents(self._folder.heartbeats, Heartbeat, pattern="rank-*.json"):
            if beat.submission_id == action.submission_id and beat.pid in ours:
                with suppress(ProcessLookupError):
                    os.kill(beat.pid, signal.SIGUSR1)
        self._observer.diagnostics.add(action.diagnostics_id)

    def _request_checkpoint(self, action: RequestCheckpoint) -> None:
        file = self._folder.control / ("stop.json" if action.stop_after else "checkpoint.json")
        marker = self._folder.control / f".asked-{action.request_id.replace('/', '_')}"
        if not marker.exists():
            write_atomically(file, f'{{"request": "{action.request_id}", "reason": "{action.reason}"}}\n')
            marker.touch()
