"""How an attempt arrives packed in the environment, what is kept of the driver's output, and how a driver stops when it may not go on."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from samite.errors import UsageError
from samite.spec.attempt import ATTEMPT_VARIABLE, AttemptSpec
from samite_workloads.bridge.arrival import attempt_from_environment
from samite_workloads.bridge.driver import close_side_by_side, lease_of, mirror_of
from samite_workloads.entrypoint import main


@pytest.fixture
def attempt() -> AttemptSpec:
    return AttemptSpec(
        run={"metadata": {"name": "demo"}, "spec": {"checkpoint": {}}},
        run_uid="uid-1",
        stage_index=0,
        attempt=2,
        submission_id="demo-s00-a2",
        run_folder="/nowhere/of/another/pod",
        num_workers=2,
        checkpoint_uri="/tmp/somewhere",
        environment={"A": "1"},
    )


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("SAMITE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_the_attempt_is_unpacked_into_this_pods_own_run_folder(home, attempt):
    arrived = attempt_from_environment({ATTEMPT_VARIABLE: attempt.packed()})
    folder = home / "runs" / "demo"
    assert arrived.run_folder == str(folder)
    assert AttemptSpec.read(folder / "attempts/demo-s00-a2/attempt.json").to_json() == arrived.to_json()
    assert arrived.environment == {"A": "1"}


@pytest.mark.parametrize(("text", "says"), [(None, "is not set"), ("garbage!", "wanted base64"), ("", "is not set")])
def test_an_attempt_that_does_not_arrive_is_permanent_and_says_what_is_missing(home, monkeypatch, capsys, text, says):
    if text is None:
        monkeypatch.delenv(ATTEMPT_VARIABLE, raising=False)
    else:
        monkeypatch.setenv(ATTEMPT_VARIABLE, text)
    assert main(["--attempt-env", "--ray"]) == 93
    assert says in capsys.readouterr().err


def test_a_home_that_is_no_absolute_path_is_refused(monkeypatch, attempt):
    monkeypatch.setenv("SAMITE_HOME", "relative")
    with pytest.raises(UsageError, match="absolute"):
        attempt_from_environment({ATTEMPT_VARIABLE: attempt.packed()})


COPYING = """
import os, sys
from pathlib import Path
from samite_workloads.bridge.arrival import keep_a_copy
keep_a_copy(Path(sys.argv[1]))
print("from python")
os.write(1, b"from native code\\n")
os.write(2, b"and an error\\n")
os.kill(os.getpid(), 9)
"""


def test_what_a_driver_prints_is_kept_and_shown_to_its_last_words(tmp_path):
    log = tmp_path / "driver.log"
    done = subprocess.run([sys.executable, "-c", COPYING, str(log)], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == -signal.SIGKILL
    assert done.stdout == log.read_text() == "from python\nfrom native code\nand an error\n"


LEAVING = """
import sys, threading, time
from pathlib import Path
from samite_workloads.bridge.driver import stop_ranks_and_leave
stop_ranks_and_leave(Path(sys.argv[1]), "demo-s00-a2", "attempt demo-s00-a3 has taken over", threading.Event())
time.sleep(20)
"""


def test_a_fenced_driver_orders_its_ranks_to_end_before_it_leaves(tmp_path):
    began_s = time.monotonic()
    done = subprocess.run([sys.executable, "-c", LEAVING, str(tmp_path)], timeout=30, check=False)
    assert (done.returncode, time.monotonic() - began_s < 15.0) == (-signal.SIGTERM, True)
    order = json.loads((tmp_path / "control/kill.json").read_text())
    assert (order["submission_id"], "ranks" in order) == ("demo-s00-a2", False)


def test_outside_of_a_pod_and_without_storage_a_driver_runs_all_the_same(home, attempt, monkeypatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert lease_of(attempt, threading.Event()) is None
    none = AttemptSpec(**{**{name: getattr(attempt, name) for name in attempt.__slots__}, "checkpoint_uri": ""})
    senseless = AttemptSpec(**{**{name: getattr(attempt, name) for name in attempt.__slots__}, "checkpoint_uri": "s3://a:b@c/d"})
    assert (mirror_of(none), mirror_of(senseless)) == (None, None)
    close_side_by_side(None, None)


def test_the_entry_point_of_the_local_engine_loads_nothing_of_the_bridge():
    code = "import sys; import samite_workloads.entrypoint; print([name for name in sys.modules if 'bridge' in name])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True, env={**os.environ})
    assert found.stdout.strip() == "[]"
