"""Process groups, activity and orphans, with real processes that a hard limit kills."""

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from samite.engines.local import processes


@pytest.fixture
def uid() -> Iterator[str]:
    made = uuid.uuid4().hex
    yield made
    processes.sweep(made)


def start(uid: str, node: str, folder: Path, program: str = "import time; time.sleep(120)") -> processes.ProcessId:
    environment = {**os.environ, processes.RUN_UID_VARIABLE: uid, processes.NODE_VARIABLE: node}
    return processes.start_group([sys.executable, "-c", program], environment=environment, log=folder / f"{node}.log", folder=folder)


def until(condition, limit_s: float = 10.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "it did not become true in time"
        time.sleep(0.02)


def test_killing_a_node_takes_what_left_its_group(uid: str, tmp_path: Path):
    escaping = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(120)'], start_new_session=True); time.sleep(120)"
    lost = start(uid, "n0", tmp_path, escaping)
    other = start(uid, "n1", tmp_path)
    until(lambda: len(processes.processes_of_run(uid)) == 3)
    processes.kill_node(lost, run_uid=uid, node="n0")
    assert set(processes.processes_of_run(uid).values()) == {"n1"}
    assert not processes.is_alive(lost)
    assert processes.is_alive(other)


def test_a_number_that_was_given_to_another_process_is_not_the_same_process(uid: str, tmp_path: Path):
    alive = start(uid, "n0", tmp_path)
    assert processes.is_alive(alive)
    assert not processes.is_alive(processes.ProcessId(pid=alive.pid, started=alive.started - 1))


def test_a_dead_child_is_dead_before_anybody_waits_for_it(uid: str, tmp_path: Path):
    short = start(uid, "n0", tmp_path, "pass")
    until(lambda: not processes.is_alive(short))
    assert processes.exit_status(short) == 0


def test_a_stopped_process_is_seen_as_stopped_and_a_busy_one_uses_time(uid: str, tmp_path: Path):
    busy = start(uid, "n0", tmp_path, "while True: pass")
    until(lambda: (found := processes.activity(busy.pid)) is not None and found.cpu_s > 0.1)
    os.kill(busy.pid, 19)
    until(lambda: (found := processes.activity(busy.pid)) is not None and found.stopped)
    before = processes.activity(busy.pid)
    time.sleep(0.2)
    assert processes.activity(busy.pid) == before, "a stopped process uses no time"


def test_the_sweep_spares_the_nodes_it_is_told_to(uid: str, tmp_path: Path):
    start(uid, "n0", tmp_path)
    start(uid, "n1", tmp_path)
    until(lambda: len(processes.processes_of_run(uid)) == 2)
    assert processes.sweep(uid, spare_nodes=["n1"]) == 1
    assert list(processes.processes_of_run(uid).values()) == ["n1"]


def test_a_command_name_with_parentheses_does_not_confuse_the_reader(uid: str, tmp_path: Path):
    program = tmp_path / "a) R 1 (b"
    program.symlink_to("/bin/sleep")
    child = subprocess.Popen([str(program), "60"], env={**os.environ, processes.RUN_UID_VARIABLE: uid})
    try:
        found = processes.activity(child.pid)
        assert found is not None
        assert found.stopped is False
        assert processes.group_members(os.getpgid(child.pid))
    finally:
        child.kill()
        child.wait()
