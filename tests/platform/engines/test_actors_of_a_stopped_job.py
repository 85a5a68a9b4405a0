"""Real Ray: when a stopped job is over. Its table of actors empties within seconds, also when a node fell silent without a word (a power cut sends none)."""

import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from samite.engines.local import processes
from samite.engines.local.folder import RunFolder
from samite.engines.local.ray_nodes import RayNodes
from samite.engines.ray_jobs import RayJobs
from samite.errors import SamiteError

pytestmark = [pytest.mark.ray, pytest.mark.drill, pytest.mark.timeout(450)]

JOB = """
import time, ray
ray.init()

@ray.remote(num_cpus=1, scheduling_strategy="SPREAD")
class Rank:
    def train(self):
        time.sleep(600)

@ray.remote(num_cpus=0)
class Helper:
    def ready(self):
        return True

ranks = [Rank.remote() for _ in range(2)]
helper = Helper.options(lifetime="detached", name="helper", get_if_exists=True).remote()
ray.get(helper.ready.remote())
ray.get([rank.train.remote() for rank in ranks])
"""


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayNodes]:
    """Head and two nodes; the test that freezes one comes last."""
    folder = RunFolder(tmp_path_factory.mktemp("stopped") / "stopped")
    folder.create()
    uid = f"stopped-{secrets.token_hex(4)}"
    found = RayNodes(folder, run_uid=uid, grace_s=250)
    try:
        found.start("cluster", ["n0", "n1"])
        yield found
    finally:
        freeze(uid, "n1", signal.SIGCONT)
        found.stop()


def freeze(uid: str, node: str, number: int = signal.SIGSTOP) -> None:
    """Signal every process of a node."""
    for pid, place in processes.processes_of_run(uid).items():
        if place == node:
            os.kill(pid, number)


def until(what: Callable[[], bool], *, limit_s: float) -> float:
    """Seconds until `what` holds; Ray's silence on a busy machine only costs time."""
    began_s = time.monotonic()
    while True:
        try:
            if what():
                return time.monotonic() - began_s
        except SamiteError:
            pass
        assert time.monotonic() - began_s < limit_s
        time.sleep(0.2)


@pytest.mark.parametrize("silent", [False, True], ids=["every node lives", "a node is silent"])
def test_nothing_of_a_stopped_job_is_left_within_seconds(nodes: RayNodes, silent: bool, tmp_path: Path):
    script = tmp_path / "job.py"
    script.write_text(JOB)
    jobs = nodes.jobs()
    assert isinstance(jobs, RayJobs)
    name = f"demo-{silent}"
    until(lambda: len(jobs.alive_node_addresses()) == 3, limit_s=200)
    jobs.submit(name, f"exec {sys.executable} {script}", {})
    until(lambda: bool(jobs.job(name).ray_job_id) and jobs.actors_left(jobs.job(name).ray_job_id) == 2, limit_s=150)
    if silent:
        freeze(nodes._run_uid, "n1")
        dead_s = until(lambda: "DEAD" in jobs.node_states().values(), limit_s=60)
        print(f"Ray calls the silent node dead after {dead_s:.1f} s")
    jobs.stop(name)
    over_s = until(lambda: jobs.job(name).status.is_over, limit_s=30)
    empty_s = until(lambda: jobs.actors_left(jobs.job(name).ray_job_id) == 0, limit_s=30)
    print(f"stopped after {over_s:.1f} s, no actor left {empty_s:.1f} s later")
