"""The same loop under Ray Train on a cluster of two nodes: a killed rank costs a restart of the worker group, and hopeless failures cost none."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from samite.engines.local.ray_nodes import ray_environment
from samite.spec.attempt import FailureReport
from samite_workloads.parallel.group import free_port

pytestmark = [pytest.mark.ray, pytest.mark.timeout(400)]

DRIVER_TIMEOUT_S = 240.0


@pytest.fixture(scope="module")
def ray_address(tmp_path_factory: pytest.TempPathFactory):
    """Head and two worker nodes with one rank's room each, every node a process group; nothing is left afterwards."""
    port, place = free_port(), Path(f"/tmp/smt-test-{os.getpid()}")
    logs = tmp_path_factory.mktemp("ray")
    environment = {**ray_environment(os.environ), "RAY_AUTH_MODE": "disabled"}
    common = (
        "--object-store-memory=80000000",
        "--min-worker-port=0",
        "--max-worker-port=0",
        "--dashboard-agent-listen-port=0",
        "--disable-usage-stats",
        "--block",
    )
    head = (
        "--head",
        "--node-ip-address=127.0.0.1",
        f"--port={port}",
        "--include-dashboard=false",
        "--num-cpus=0",
        "--num-gpus=0",
        f"--ray-client-server-port={free_port()}",
    )
    nodes: list[subprocess.Popen] = []

    def start(name: str, *options: str) -> None:
        with (logs / f"{name}.log").open("w") as log:
            command = [sys.executable, "-m", "ray.scripts.scripts", "start", *options, f"--temp-dir={place}/{name}", *common]
            nodes.append(
                subprocess.Popen(command, stdout=log, stderr=log, env=environment | {"SAMITE_NODE": name}, start_new_session=True, cwd=logs)
            )

    start("head", *head, f"--ray-client-server-port={free_port()}")
    ends_s = time.monotonic() + 60
    while time.monotonic() < ends_s and "Ray runtime started" not in (logs / "head.log").read_text():
        time.sleep(0.2)
    for number in (2, 3):
        start(f"node-{number}", f"--address=127.0.0.1:{port}", f"--node-ip-address=127.0.0.{number}", "--num-cpus=1", "--num-gpus=0")
    yield f"127.0.0.1:{port}"
    for node in reversed(nodes):
        with suppress(ProcessLookupError):
            os.killpg(node.pid, signal.SIGKILL)
        node.wait(10)
    subprocess.run(["rm", "-rf", str(place)], check=False)


@pytest.fixture
def drive(ray_address, tmp_path):
    """Runs an attempt's driver as a Ray job would, with `more` in its environment; returns its exit code."""

    def run(attempt, **more: str) -> int:
        path = tmp_path / f"{attempt.submission_id}.json"
        attempt.write(path)
        environment = {**ray_environment(os.environ), "RAY_AUTH_MODE": "disabled", "RAY_ADDRESS": ray_address, **more}
        with (tmp_path / "driver.log").open("w") as log:
            driver = subprocess.Popen(
                [sys.executable, "-m", "samite_workloads.entrypoint", "--attempt", str(path), "--ray"],
                stdout=log, stderr=log, env=environment, start_new_session=True, cwd=tmp_path,
            )  # fmt: skip
            try:
                return driver.wait(DRIVER_TIMEOUT_S)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(driver.pid, signal.SIGKILL)

    return run


def test_a_killed_rank_costs_one_restart_of_the_group_and_no_bit(
    new_attempt, run_attempt, drive, ask_for_fault, result_of, reports_of, losses
):
    attempt = new_attempt("ray", ranks=2, worker_group_restarts=2)
    ask_for_fault(attempt, {"kind": "kill", "rank": 1, "step": 4})
    # Ray ends what is left of the group when it looks next: seldom enough here that the other rank has noticed and told by then.
    assert drive(attempt, RAY_TRAIN_HEALTH_CHECK_INTERVAL_S="5") == 0
    result = result_of(attempt)
    assert (result.outcome, result.step, result.incarnations, result.recomputed_steps) == ("stage_complete", 6, 2, 1)
    witness, killed = reports_of(attempt)
    assert (witness.error_type, witness.node[:5]) == ("PeerLostError", "node-")
    assert (killed.rank, killed.failure_class, killed.incarnation) == (1, "infra", 0)

    plain = new_attempt("plain", ranks=2)
    assert run_attempt(plain) == [0, 0]
    assert losses(attempt.run_folder) == losses(plain.run_folder)


def test_an_exception_that_comes_back_uses_the_restarts_up_and_is_told_with_its_traceback(new_attempt, drive, ask_for_fault, result_of):
    attempt = new_attempt(ranks=2, worker_group_restarts=1)
    ask_for_fault(attempt, {"kind": "exception", "rank": 0, "step": 1, "times": 5})
    assert drive(attempt) == 1
    failure = FailureReport(**result_of(attempt).failure)
    assert (failure.failure_class, failure.error_type, failure.incarnation) == ("application", "InjectedFaultError", 1)
    assert "begin_step" in failure.traceback


def test_what_no_restart_can_help_ends_the_job_with_93_at_once(new_attempt, drive, result_of):
    attempt = new_attempt(ranks=2, stage=1, worker_group_restarts=3, num_workers=1)
    assert drive(attempt) == 93
    result = result_of(attempt)
    assert (result.outcome, result.incarnations, result.failure["restartable"]) == ("failed", 1, False)
