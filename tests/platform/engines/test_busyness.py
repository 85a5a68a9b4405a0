"""The second fact of a hang: who lacks a processor is busy, who sleeps is idle, on a starved machine too."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from samite.engines.local import processes
from samite.engines.local.busyness import WINDOW_S, Busyness
from samite.engines.local.processes import Activity

TOLD = pytest.mark.skipif(
    not Path("/proc/self/schedstat").exists(), reason="this kernel does not tell how long threads wait for a processor"
)
ON_ONE = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
SPINS = ON_ONE + "while True: pass"
SLEEPS = ON_ONE + (
    "import threading, time\n"
    "def blink():\n    while True: time.sleep(0.02)\n"
    "for _ in range(40): threading.Thread(target=blink, daemon=True).start()\n"
    "time.sleep(600)"
)


@TOLD
def test_among_six_that_spin_on_one_processor_none_is_idle_and_one_of_forty_blinking_threads_is():
    crowd = [subprocess.Popen([sys.executable, "-c", SPINS]) for _ in range(6)]
    sleeper = subprocess.Popen([sys.executable, "-c", SLEEPS])
    try:
        seen = Busyness()
        time.sleep(2.0)  # all have started
        everybody = [*crowd, sleeper]
        for one in everybody:
            assert seen.share(one.pid, processes.activity(one.pid), time.monotonic()) == (None, 0.0)
        time.sleep(3.0)
        shares = [seen.share(one.pid, processes.activity(one.pid), time.monotonic())[0] for one in everybody]
    finally:
        for one in [*crowd, sleeper]:
            one.kill()
            one.wait(10)
    assert min(share for share in shares[:-1] if share is not None) > 0.5, "each runs a sixth of the time, and wants all of it"
    assert shares[-1] is not None
    assert shares[-1] < 0.5, "its threads queue in turns; none of them wants a processor all the time"


def test_time_of_many_threads_is_not_added_up():
    seen = Busyness()
    assert seen.share(7, Activity(cpu_s=1.0, stopped=False, wanted_s=dict.fromkeys(range(50), 0.0)), 0.0) == (None, 0.0)
    share, window_s = seen.share(7, Activity(cpu_s=1.02, stopped=False, wanted_s=dict.fromkeys(range(50), 0.4)), 2.0)
    assert (round(share or 0.0, 3), window_s) == (0.01, 2.0)


def test_one_thread_that_is_kept_waiting_makes_its_process_busy():
    seen = Busyness()
    seen.share(7, Activity(cpu_s=1.0, stopped=False, wanted_s={1: 5.0, 2: 5.0}), 0.0)
    share, _ = seen.share(7, Activity(cpu_s=1.02, stopped=False, wanted_s={1: 6.8, 2: 5.0, 3: 90.0}), 2.0)
    assert share == pytest.approx(0.9)


def test_only_the_last_seconds_count_and_a_process_that_is_gone_is_forgotten():
    seen = Busyness()
    for second in range(20):
        share, window_s = seen.share(7, Activity(cpu_s=min(second, 10.0), stopped=False), float(second))
    assert (share, window_s) == (0.0, WINDOW_S)
    assert seen.share(7, None, 21.0) == (None, 0.0)
    assert seen.share(7, Activity(cpu_s=0.0, stopped=False), 22.0) == (None, 0.0)


def test_the_kernels_numbers_of_this_very_process_grow():
    before = processes.activity(os.getpid())
    ends_s = time.process_time() + 0.1
    while time.process_time() < ends_s:
        pass
    after = processes.activity(os.getpid())
    assert before is not None
    assert after is not None
    assert after.cpu_s > before.cpu_s
