"""A real attempt on two Ray nodes that see no folder of each other or of the driver: what the driver's folder holds afterwards is a whole run.

Every node has a SAMITE_HOME of its own and, where the machine allows a mount namespace, an empty folder in the place of the others'.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "bridge"))

from api_stand_in import LeaseServer

from samite.checkpoint import open_store
from samite.checkpoint.records import read_record, recorded_files
from samite.engines.local.ray_nodes import ray_environment
from samite.spec.attempt import ATTEMPT_VARIABLE, AttemptResult, FailureReport, Heartbeat
from samite.spec.lease import read_lease
from samite_workloads.parallel.group import free_port

pytestmark = [pytest.mark.ray, pytest.mark.timeout(400)]

DRIVER_TIMEOUT_S = 200.0
RANK_NODES = (2, 3)


def can_hide() -> bool:
    """Whether a process may have mounts of its own here."""
    return (
        shutil.which("unshare") is not None
        and subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode == 0
    )


class Nodes:
    """Head without CPUs, where the driver lives, and two nodes for a rank each."""

    def __init__(self, place: Path, homes: Path, logs: Path) -> None:
        self.place, self.homes, self.logs = place, homes, logs
        self.processes: dict[str, subprocess.Popen] = {}
        self.port = free_port()
        self.hiding = can_hide()
        common = ("--object-store-memory=80000000", "--min-worker-port=0", "--max-worker-port=0", "--dashboard-agent-listen-port=0")
        self.common = (*common, "--disable-usage-stats", "--block")
        self.environment = {**ray_environment(os.environ), "RAY_AUTH_MODE": "disabled"}
        for name in ("head", *(f"node-{number}" for number in RANK_NODES)):
            (homes / name).mkdir(parents=True)

    def start(self) -> None:
        """Bring all up; whoever calls closes in any case."""
        head = ("--head", "--node-ip-address=127.0.0.1", f"--port={self.port}", "--include-dashboard=false", "--num-cpus=0", "--num-gpus=0")
        self._start("head", *head, f"--ray-client-server-port={free_port()}")
        ends_s = time.monotonic() + 120
        while "Ray runtime started" not in (self.logs / "head.log").read_text():
            assert time.monotonic() < ends_s, f"Ray's head did not start\n{(self.logs / 'head.log').read_text()[-2000:]}"
            time.sleep(0.2)
        for number in RANK_NODES:
            address = (f"--address=127.0.0.1:{self.port}", f"--node-ip-address=127.0.0.{number}")
            self._start(f"node-{number}", *address, "--num-cpus=1", "--num-gpus=0")

    def _start(self, name: str, *options: str) -> None:
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", *options, f"--temp-dir={self.place}/{name}", *self.common]
        if self.hiding:
            own = self.homes / name
            hide = f"mount --bind {own} /mnt && mount -t tmpfs none {self.homes} && mkdir {own} && mount --move /mnt {own}"
            command = ["unshare", "--mount", "sh", "-c", f'{hide} && exec "$@"', "sh", *command]
        environment = self.environment | {"SAMITE_NODE": name, "SAMITE_HOME": str(self.homes / name)}
        with (self.logs / f"{name}.log").open("w") as log:
            self.processes[name] = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True, cwd="/")

    def close(self) -> None:
        for process in reversed(self.processes.values()):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)
        shutil.rmtree(self.place, ignore_errors=True)

    def folder(self, name: str) -> Path:
        return self.homes / name / "runs" / "micro"


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    made = Nodes(Path(f"/tmp/smt-bridge-{os.getpid()}"), tmp_path_factory.mktemp("homes"), tmp_path_factory.mktemp("ray"))
    try:
        made.start()
        yield made
    finally:
        made.close()


@pytest.fixture
def clean(nodes):
    """No run folder is left from the test before, as on new pods."""
    yield
    for name in nodes.processes:
        shutil.rmtree(nodes.folder(name), ignore_errors=True)


@pytest.fixture
def server(tmp_path):
    server = LeaseServer(tmp_path / "api")
    yield server
    server.stop()


class Driver:
    """The driver of an attempt as a Ray job would run it on the head's pod."""

    def __init__(self, nodes: Nodes, attempt, log: Path, **environment: str) -> None:
        variables = {"RAY_ADDRESS": f"127.0.0.1:{nodes.port}", ATTEMPT_VARIABLE: attempt.packed(), "SAMITE_HOME": str(nodes.homes / "head")}
        command = [sys.executable, "-m", "samite_workloads.entrypoint", "--attempt-env", "--ray"]
        with log.open("w") as output:
            self.process = subprocess.Popen(
                command, stdout=output, stderr=output, env=nodes.environment | variables | environment, start_new_session=True, cwd="/"
            )
        self.log, self.folder, self.attempt = log, nodes.folder("head"), attempt

    def wait(self) -> int:
        try:
            return self.process.wait(DRIVER_TIMEOUT_S)
        finally:
            self.close()

    def until(self, condition, limit_s: float = 120.0) -> None:
        ends_s = time.monotonic() + limit_s
        while not condition():
            assert self.process.poll() is None, f"the driver ended with {self.process.returncode}\n{self.log.read_text()[-4000:]}"
            assert time.monotonic() < ends_s, f"waited too long\n{self.log.read_text()[-4000:]}"
            time.sleep(0.1)

    def close(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)

    @property
    def result(self) -> AttemptResult:
        return AttemptResult.read(self.folder / "attempts" / self.attempt.submission_id / "result.json")


@pytest.fixture
def drive(nodes, clean, tmp_path):
    started: list[Driver] = []

    def start(attempt, **environment: str) -> Driver:
        started.append(Driver(nodes, attempt, tmp_path / f"driver-{len(started)}.log", **environment))
        return started[-1]

    yield start
    for driver in started:
        driver.close()


def lease_of(server: LeaseServer, attempt, **annotations: str) -> dict[str, str]:
    """Write the Lease as the operator does before it submits; returns the driver's environment. The account is mounted in no other place here."""
    server.write({"samite.dev/submission": attempt.submission_id, **annotations}, **{"samite.dev/run-uid": attempt.run_uid})
    return {
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": str(server.port),
        "SAMITE_SERVICE_ACCOUNT": str(server.account),
        "SAMITE_LEASE": "demo-heartbeat",
    }


def shape(folder: Path) -> set[str]:
    """Names of what an engine reads in a run folder."""
    kinds = ("heartbeats/*.json", "metrics/*.jsonl", "events.jsonl", "attempts/*/*.json")
    kinds += ("attempts/*/failures/*", "attempts/*/logs/rank-*.log", "attempts/*/incarnations/*")
    return {file.relative_to(folder).as_posix() for kind in kinds for file in folder.glob(kind)}


def test_the_drivers_folder_is_what_the_local_engine_would_have(drive, nodes, server, new_attempt, run_attempt, losses, tmp_path):
    attempt = new_attempt("bridged", ranks=2)
    driver = drive(attempt, **lease_of(server, attempt))
    assert driver.wait() == 0, driver.log.read_text()[-4000:]
    assert (driver.result.outcome, driver.result.step) == ("stage_complete", 6)
    if nodes.hiding:
        assert [list((nodes.homes / name / "runs").iterdir()) for name in nodes.processes if name != "head"] != []

    plain = new_attempt("plain", ranks=2)
    plain.write(Path(plain.run_folder) / "attempts" / plain.submission_id / "attempt.json")
    assert run_attempt(plain) == [0, 0]
    log = f"attempts/{attempt.submission_id}/logs"
    expected = shape(Path(plain.run_folder)) | {f"{log}/rank-0.log", f"{log}/rank-1.log"}  # without Ray the ranks print to their terminal
    assert shape(driver.folder) == expected
    assert losses(driver.folder) == losses(plain.run_folder)
    names = [
        [json.loads(line)["name"] for line in (place / "events.jsonl").read_text().splitlines()]
        for place in (driver.folder, Path(plain.run_folder))
    ]
    assert names[0] == names[1]
    beats = [Heartbeat.read(driver.folder / "heartbeats" / f"rank-{rank}.json") for rank in (0, 1)]
    assert [(beat.step, beat.phase) for beat in beats] == [(6, "finishing")] * 2
    assert "step 6" in (driver.folder / log / "rank-0.log").read_text()

    report = read_lease(server.annotations, seen_at_s=time.monotonic())
    assert (report.result.outcome, report.num_ranks, report.max_step) == ("stage_complete", 2, 6)
    assert report.checkpoint_id == driver.result.checkpoint_id
    store = open_store(attempt.checkpoint_uri)
    records = recorded_files(store, attempt.submission_id)
    assert {"attempt.json", "result.json", "events/events.jsonl", "metrics/rank-0.jsonl", "logs/rank-1.log", "logs/driver.log"} <= set(
        records
    )
    assert b"".join(read_record(store, records["metrics/rank-0.jsonl"])) == (driver.folder / "metrics/rank-0.jsonl").read_bytes()
    print("\n".join(line for line in (driver.folder / log / "rank-0.log").read_text().splitlines() if line.startswith("bridge")))


def test_a_rank_that_dies_of_an_exception_is_told_by_its_own_report(drive, new_attempt):
    faults = json.dumps({"faults": [{"kind": "exception", "rank": 1, "step": 2, "times": 5}]})
    attempt = new_attempt(ranks=2, environment={"SAMITE_FAULTS": faults})
    driver = drive(attempt)
    assert driver.wait() == 1
    failure = FailureReport(**driver.result.failure)
    assert (failure.error_type, failure.rank, failure.node) == ("InjectedFaultError", 1, failure.node)
    assert "begin_step" in failure.traceback


@pytest.mark.drill
def test_a_killed_rank_costs_one_restart_of_the_group_and_the_fault_does_not_come_twice(drive, new_attempt):
    faults = json.dumps({"faults": [{"kind": "kill", "rank": 1, "step": 4}]})
    attempt = new_attempt(ranks=2, worker_group_restarts=2, environment={"SAMITE_FAULTS": faults})
    driver = drive(attempt)
    assert driver.wait() == 0, driver.log.read_text()[-4000:]
    result = driver.result
    assert (result.outcome, result.step, result.incarnations, result.recomputed_steps) == ("stage_complete", 6, 2, 1)
    killed = FailureReport.read(driver.folder / f"attempts/{attempt.submission_id}/failures/incarnation-0-rank-1.json")
    assert (killed.failure_class, killed.step, killed.node[:5]) == ("infra", 3, "node-")


def slowly(seconds: float) -> dict[str, str]:
    """Environment of an attempt whose every step takes so long."""
    return {"SAMITE_FAULTS": json.dumps({"faults": [{"kind": "sleep", "rank": 0, "step": 1, "seconds": seconds, "times": 300}]})}


def test_the_operators_requests_reach_the_ranks_through_the_lease(drive, server, new_attempt):
    attempt = new_attempt(ranks=2, environment=slowly(4.0))
    driver = drive(attempt, **lease_of(server, attempt))
    driver.until(
        lambda: (driver.folder / "heartbeats/rank-1.json").exists() and read_lease(server.annotations, seen_at_s=0.0).max_step >= 1
    )
    server.write({"samite.dev/control": json.dumps({"stacks.json": {"request": "look"}})})
    driver.until(lambda: read_lease(server.annotations, seen_at_s=0.0).stacks == {"look": 2})
    stacks = driver.folder / f"attempts/{attempt.submission_id}/logs/stacks-rank-0.txt"
    driver.until(lambda: stacks.exists() and "run_steps" in stacks.read_text())
    server.write({"samite.dev/control": json.dumps({"stop.json": {"request": "stop"}})})
    assert driver.wait() == 0, driver.log.read_text()[-4000:]
    assert (driver.result.outcome, driver.result.step < 6) == ("stopped", True)
    assert read_lease(server.annotations, seen_at_s=0.0).result.outcome == "stopped"


@pytest.mark.drill
def test_a_collector_that_is_killed_costs_neither_a_step_nor_a_line(drive, nodes, new_attempt):
    attempt = new_attempt(ranks=2, environment=slowly(1.0))
    driver = drive(attempt)
    driver.until((driver.folder / "heartbeats/rank-0.json").exists)
    home = f"SAMITE_HOME={nodes.homes / 'head'}".encode()
    titles = subprocess.run(["pgrep", "-f", "ray::Collector"], capture_output=True, text=True, check=False).stdout.split()
    mine = [int(pid) for pid in titles if home in Path(f"/proc/{pid}/environ").read_bytes()]
    assert len(mine) == 1
    os.kill(mine[0], signal.SIGKILL)
    assert driver.wait() == 0, driver.log.read_text()[-4000:]
    assert (driver.result.outcome, driver.result.incarnations) == ("stage_complete", 1)
    steps = [json.loads(line)["step"] for line in (driver.folder / "metrics/rank-0.jsonl").read_text().splitlines()]
    assert [step for step in steps if step is not None] == [1, 2, 3, 4, 5, 6]


@pytest.mark.drill
def test_a_driver_whose_run_has_a_newer_attempt_stops_its_ranks_and_ends_with_93(drive, server, nodes, new_attempt):
    attempt = new_attempt(ranks=2, environment=slowly(4.0))
    driver = drive(attempt, **lease_of(server, attempt))
    driver.until(lambda: read_lease(server.annotations, seen_at_s=0.0).max_step >= 1)
    pids = [Heartbeat.read(driver.folder / "heartbeats" / f"rank-{rank}.json").pid for rank in (0, 1)]
    began_s = time.monotonic()
    server.write({"samite.dev/submission": "micro-s00-a99"})
    assert driver.wait() == 93
    assert time.monotonic() - began_s < 30.0
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().split(")")[1]] == []
    assert "has taken over" in driver.log.read_text()
