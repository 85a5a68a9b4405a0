"""The box comes quickly and goes without a trace, however it ends. `make test-cluster` runs this file alone, since only one box fits on a machine."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from box.cluster import remains
from box.folders import Folders
from box.processes import Started
from box.requirements import problems
from box.state import State
from box.waiting import until

pytestmark = pytest.mark.cluster
BOX = Path(__file__).with_name("box")
FOLDERS = Folders.of_user()


def box(*words: str, limit_s: float = 150) -> subprocess.CompletedProcess[str]:
    """Run the box's command as a person does."""
    return subprocess.run([sys.executable, str(BOX), *words], capture_output=True, text=True, timeout=limit_s, check=False)


@pytest.fixture(autouse=True)
def alone():
    """Without a box of somebody else, and with none left."""
    if os.environ.get("SAMITE_TEST_KUBECONFIG"):
        pytest.skip("the box is not used: SAMITE_TEST_KUBECONFIG names a cluster")
    if found := problems():
        pytest.skip("; ".join(found))
    if (state := State.load(FOLDERS.state)) and (state.owner is None or state.owner.alive()):
        pytest.skip("a box is up on this machine; this file runs alone: `make test-cluster`")
    yield
    box("down")


def test_a_box_is_up_within_a_minute_refuses_a_second_and_leaves_nothing():
    begun_s = time.monotonic()
    said = box("up")
    took_s = time.monotonic() - begun_s
    assert said.returncode == 0, said.stderr
    assert took_s < 60
    second = box("up", "--wait=0")
    assert second.returncode == 1
    assert "a box of `box up` is up" in second.stderr
    begun_s = time.monotonic()
    assert box("down").stdout.strip() == "nothing is left"
    print(f"up in {took_s:.0f} s, down in {time.monotonic() - begun_s:.1f} s")
    assert remains(FOLDERS) == []


def test_a_box_whose_owner_is_killed_goes_too_and_up_sweeps_what_a_crash_left():
    assert box("up", "--nodes=1").returncode == 0
    state = State.load(FOLDERS.state)
    for name in ("etcd", "kube-apiserver"):
        state.processes[name].send(signal.SIGKILL)
    FOLDERS.state.unlink()  # a crash in the worst place: processes, namespaces and cgroups, and no record of them
    assert len(remains(FOLDERS)) > 3
    child = subprocess.Popen([sys.executable, str(BOX), "up", "--nodes=1"], stdout=subprocess.PIPE, text=True)
    try:
        assert "control plane answers" in child.stdout.readline()
        assert json.loads(FOLDERS.state.read_text())["owner"] == [child.pid, Started.of(child.pid).ticks]
    finally:
        child.kill()
        child.communicate(timeout=10)
    gone_s = until(lambda: remains(FOLDERS) == [], "the guard to sweep", limit_s=30)
    print(f"nothing left {gone_s:.1f} s after the owner was killed")
