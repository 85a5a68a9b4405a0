"""The driver's side around an attempt: Lease and records begin before it and end after it, and a fenced driver ends with 93 however its ranks go."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from api_stand_in import LeaseServer

from samite.checkpoint.records import recorded_files
from samite.checkpoint.store import FileStore
from samite.spec.lease import read_lease

MINE = "demo-s00-a2"

PROGRAM = """
import signal, sys, threading, time
from pathlib import Path
from samite.checkpoint.store import FileStore
from samite.spec.attempt import AttemptResult
from samite_workloads.bridge.api_server import ApiServer
from samite_workloads.bridge.control_files import ControlFiles
from samite_workloads.bridge.driver import attended, stop_ranks_and_leave
from samite_workloads.bridge.folder_facts import FolderFacts
from samite_workloads.bridge.lease import LeaseKeeper
from samite_workloads.bridge.mirror import RecordMirror

address, account, folder, storage = sys.argv[1:]
run, mine, ended = Path(folder), "demo-s00-a2", threading.Event()
lease = LeaseKeeper(
    ApiServer(address, account=Path(account)), name="demo-heartbeat", namespace="team", submission_id=mine, run_uid="uid-1", holder="head",
    facts=FolderFacts(run, mine), control=ControlFiles(run), every_s=0.1,
    on_fenced=lambda reason: stop_ranks_and_leave(run, mine, reason, ended),
)
signal.signal(signal.SIGTERM, lambda number, _: sys.exit(number))  # as Ray does in a driver
with attended(lease, RecordMirror(FileStore(Path(storage)), run, mine, every_s=60.0), ended):
    print("begun", flush=True)
{block}
"""


@pytest.fixture
def server(tmp_path):
    server = LeaseServer(tmp_path / "api")
    server.write({"samite.dev/submission": MINE}, **{"samite.dev/run-uid": "uid-1"})
    yield server
    server.stop()


@pytest.fixture
def drive(server, driver, tmp_path):
    """Starts a driver whose attempt is `block`."""
    started: list[subprocess.Popen] = []

    def start(block: str) -> subprocess.Popen:
        program = PROGRAM.format(block=textwrap.indent(textwrap.dedent(block), "    "))
        arguments = [server.address, str(server.account), str(driver), str(tmp_path / "storage")]
        started.append(subprocess.Popen([sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE, text=True))
        assert started[-1].stdout.readline() == "begun\n"
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait(10)
        process.stdout.close()


FINISH = """
    (run / "attempts" / mine).mkdir(parents=True)
    AttemptResult(outcome="stage_complete", submission_id=mine, step=9, tokens=90).write(run / "attempts" / mine / "result.json")
"""


def test_the_last_word_is_in_the_lease_and_in_storage_when_the_driver_ends(server, drive, tmp_path):
    process = drive(FINISH)
    assert process.wait(30) == 0
    assert read_lease(server.annotations, seen_at_s=0.0).result.step == 9
    assert "result.json" in recorded_files(FileStore(tmp_path / "storage"), MINE)
    assert process.stdout.read().startswith("bridge of the driver: ")


def test_a_stopped_driver_says_its_last_word_all_the_same(server, drive):
    process = drive(FINISH + "\n    time.sleep(30)")
    process.terminate()
    assert process.wait(30) == 15
    assert "0 bytes dropped" in process.stdout.read()


@pytest.mark.parametrize("block", ["time.sleep(30)", "while not ended.is_set(): time.sleep(0.1) if not lease.fenced else sys.exit(1)"])
def test_a_fenced_driver_ends_with_93_whether_it_waits_or_its_ranks_ended_first(server, drive, driver, block):
    process = drive(block)
    server.write({"samite.dev/submission": "demo-s00-a3"})
    assert process.wait(30) == 93
    assert (driver / "control/kill.json").exists()
    assert server.annotations == {"samite.dev/submission": "demo-s00-a3"} or "samite.dev/result" not in server.annotations


def test_a_fenced_driver_whose_attempt_ends_by_itself_ends_with_93_too(server, drive):
    process = drive("while not lease.fenced: time.sleep(0.05)")
    server.write({"samite.dev/submission": "demo-s00-a3"})
    assert process.wait(30) == 93
