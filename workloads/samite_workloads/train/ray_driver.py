"""The driver of a Ray job: a Ray Train worker group around the same loop, and the attempt's last word.

    driver ── LeanTrainer.fit ── controller (actor) ── worker group ── run_worker on each rank ── train_stage
                                     └─ a rank dies: all are stopped and started again, `worker_group_restarts` times (ladder level L1)

Ray knows nothing of our checkpoints: `ray.train.report` is never called, because each call waits for a controller poll and because Ray's own
snapshot file would refuse to start when one of them has been pruned. Every attempt has a run name and a storage folder of its own.
"""

import os
import sys
import traceback
from pathlib import Path
from typing import Any

import ray
from ray.train import ScalingConfig, TrainingFailedError
from ray.train.v2.api.config import FailureConfig, RunConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from samite.spec.attempt import AttemptSpec, FailureReport
from samite_workloads.train.outcome import failed_result, finish, read_result
from samite_workloads.train.ray_rendezvous import RendezvousConfig
from samite_workloads.train.ray_reports import ReportForTheDead
from samite_workloads.train.ray_worker import run_worker
from samite_workloads.train.reports import EXIT_DO_NOT_RESTART, EXIT_FAILED

CONTROLLER_SETTINGS = {
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    "RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S": "60",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "60",
    "RAY_TRAIN_METRICS_ENABLED": "0",
}
"""Ray's defaults notice a dead worker after 2 s and a silent one after 600 s; ours are for people who wait. The environment wins over these."""


def run_driver(attempt: AttemptSpec, *, bridged: bool = False) -> int:
    """Run the attempt on the Ray cluster this job was submitted to; returns the driver's exit code: 0, 1 or 93.

    `bridged`: the ranks' pods don't share the run folder, so what they write is brought here (docs/heartbeat.md).
    """
    for name, value in CONTROLLER_SETTINGS.items():
        os.environ.setdefault(name, value)
    address = os.environ.get("RAY_ADDRESS")
    if not address:
        sys.stderr.write(
            "--ray is for a Ray job: RAY_ADDRESS is not set. Submit this command to a cluster, or leave --ray out to train without Ray.\n"
        )
        return EXIT_DO_NOT_RESTART
    ray.init(address=address, log_to_driver=True, configure_logging=False)
    try:
        if bridged:
            from samite_workloads.bridge.driver import bridged_driver

            with bridged_driver(attempt) as collector:
                trouble = _fit(attempt, collector)
                return _failed(attempt, trouble) if trouble else _conclude(attempt)
        if trouble := _fit(attempt, ""):
            return _failed(attempt, trouble)
    finally:
        ray.shutdown()
    return _conclude(attempt)


def _fit(attempt: AttemptSpec, collector: str) -> str:
    """Train; returns what Ray says about a failure, or nothing."""
    try:
        _trainer(attempt, collector).fit()
    except TrainingFailedError as error:
        traceback.print_exception(error)
        return str(error) or type(error).__name__
    return ""


def _conclude(attempt: AttemptSpec) -> int:
    result = read_result(attempt)
    return 0 if result is not None and result.outcome != "failed" else _failed(attempt, "the ranks ended without a result")


def _trainer(attempt: AttemptSpec, collector: str) -> "LeanTrainer":
    stage = attempt.run["spec"]["stages"][attempt.stage_index]
    gpus = stage.get("gpusPerWorker", 0)
    storage = Path(attempt.run_folder) / "attempts" / attempt.submission_id / "ray"
    storage.mkdir(parents=True, exist_ok=True)
    return LeanTrainer(
        run_worker,
        train_loop_config={"attempt": attempt.to_json(), "collector": collector},
        backend_config=RendezvousConfig(backend="nccl" if gpus else "gloo"),
        scaling_config=ScalingConfig(
            num_workers=attempt.num_workers,
            use_gpu=bool(gpus),
            resources_per_worker={"CPU": 1, "GPU": 1} if gpus else {"CPU": 1},
            placement_strategy="PACK" if gpus else "SPREAD",
        ),
        run_config=RunConfig(  # type: ignore[arg-type]  # Ray exports the v2 class under the v1 name only at run time
            name=attempt.submission_id,
            storage_path=str(storage),
            failure_config=FailureConfig(max_failures=attempt.worker_group_restarts, controller_failure_limit=3),
            callbacks=[ReportForTheDead(attempt.to_json())],
        ),
    )


class LeanTrainer(DataParallelTrainer):
    """What a TorchTrainer is made of, without what costs seconds of every start on a small machine.

    The process group is ours (`ray_rendezvous`), so neither the driver nor the controller needs torch; and Ray Data's dataset manager, a process of
    its own, has nothing to manage.
    """

    def _create_default_callbacks(self) -> list[Any]:
        callbacks = super()._create_default_callbacks()
        return [callback for callback in callbacks if type(callback).__name__ != "DatasetsCallback"]


def _failed(attempt: AttemptSpec, message: str) -> int:
    fallback = FailureReport(failure_class="infra", error_type="WorkerGroupFailed", message=message[:4000])
    result = failed_result(attempt, fallback)
    finish(attempt, result)
    restartable = result.failure is None or result.failure.get("restartable", True)
    return EXIT_FAILED if restartable else EXIT_DO_NOT_RESTART
