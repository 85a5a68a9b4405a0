"""A rank that is asked to stop stands still like one that somebody sent SIGSTOP, and can be woken."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]


def test_a_stop_leaves_the_process_alive_and_still(tmp_path: Path):
    (tmp_path / "control").mkdir()
    faults = {"faults": [{"id": "one", "kind": "stop", "rank": 0, "step": 1}]}
    (tmp_path / "control" / "faults.json").write_text(json.dumps(faults), encoding="utf-8")
    code = (
        "import sys; from pathlib import Path; from samite_workloads.faults import FaultPlan\n"
        "plan = FaultPlan(Path(sys.argv[1]), 0); plan.begin_step(1); print('awake', flush=True)"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        deadline_s = time.monotonic() + 30
        while state_of(child.pid) != "T":
            assert time.monotonic() < deadline_s, state_of(child.pid)
            time.sleep(0.05)
        os.kill(child.pid, signal.SIGCONT)
        assert child.communicate(timeout=30)[0] == "awake\n"
    finally:
        child.kill()
        child.communicate()
