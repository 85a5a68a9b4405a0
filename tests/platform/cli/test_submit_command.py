"""Submitting: whole or not at all, twice is once, and interrupted means untouched (drill 26). No Ray is started here."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from samite.engines.local.client import LocalEngine, needs_supervisor
from samite.engines.local.folder import RunFolder
from samite.errors import ConflictError, NotFoundError, SamiteError, UsageError
from samite.settings import Settings


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalEngine:
    """An engine whose supervisors are not wanted: every run it makes is settled at once."""
    made = LocalEngine(Settings(home=tmp_path))
    made.settings.runs.mkdir(parents=True)
    return made


def document(name: str = "demo", **spec: object) -> dict[str, object]:
    return {"apiVersion": "samite.dev/v1alpha1", "kind": "TrainingRun", "metadata": {"name": name}, "spec": {"seed": 1, **spec}}


def settle(folder: RunFolder, phase: str = "Succeeded") -> None:
    folder.write_json(folder.status_file, {"name": folder.name, "phase": phase, "settled": True})


def make(engine: LocalEngine, body: dict[str, object]) -> RunFolder:
    """A submitted run without its supervisor."""
    folder = engine.folder(str(body["metadata"]["name"]))  # type: ignore[index]
    folder.create()
    folder.write_json(folder.spec_file, {"uid": "u", "submittedAt": 1.0, "run": body})
    settle(folder)
    return folder


def test_the_same_document_again_is_no_error(engine: LocalEngine):
    make(engine, document())
    assert engine.submit(document(), "text").existed


def test_another_document_under_the_same_name_is_refused_with_two_ways_out(engine: LocalEngine):
    make(engine, document())
    with pytest.raises(ConflictError, match=r"--name.*samite delete demo"):
        engine.submit(document(seed=2), "text")


def test_a_name_cannot_leave_the_folder_of_runs(engine: LocalEngine):
    for name in ("../x", "/etc", "", ".hidden"):
        with pytest.raises(UsageError):
            engine.folder(name)


def test_a_home_that_cannot_be_written_is_refused_before_anything_starts(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SamiteError, match="SAMITE_HOME"):
        LocalEngine(Settings(home=tmp_path / "file" / "home")).submit(document(), "text")


def test_a_relative_home_is_refused_with_the_absolute_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SAMITE_HOME", "relative/home")
    with pytest.raises(UsageError, match="export SAMITE_HOME=/"):
        Settings.from_environment()


def test_a_run_is_chosen_only_if_it_is_the_only_active_one(engine: LocalEngine):
    with pytest.raises(NotFoundError, match="none was ever submitted"):
        engine.find("")
    settle(make(engine, document("one")), "Running")
    assert engine.find("").name == "one"
    settle(make(engine, document("two")), "Held")
    with pytest.raises(UsageError, match="one, two"):
        engine.find("")


@pytest.mark.parametrize(
    ("phase", "settled", "asks", "needed"),
    [
        ("Running", False, False, True),
        ("Succeeded", True, False, False),
        ("Succeeded", True, True, False),
        ("Held", True, False, False),
        ("Held", True, True, True),
        ("Suspended", True, False, True),
    ],
)
def test_a_supervisor_is_needed_exactly_while_there_is_something_to_do(
    engine: LocalEngine, phase: str, settled: bool, asks: bool, needed: bool
):
    folder = make(engine, document())
    folder.write_json(folder.status_file, {"phase": phase, "settled": settled})
    if asks:
        folder.leave_request("resume")
    assert needs_supervisor(folder) is needed


def test_a_suspended_run_that_is_wanted_suspended_needs_nobody(engine: LocalEngine):
    from samite.engines.local.requests import wish

    folder = make(engine, document())
    settle(folder, "Suspended")
    wish(folder, suspend=True)
    assert not needs_supervisor(folder)
    wish(folder, cancel=True)
    assert needs_supervisor(folder)


def test_only_a_run_that_is_over_can_be_deleted(engine: LocalEngine):
    folder = make(engine, document())
    settle(folder, "Running")
    with pytest.raises(ConflictError, match="samite cancel demo"):
        engine.delete(folder)
    settle(folder, "Failed")
    engine.delete(folder)
    assert not folder.path.exists()


def test_a_submit_that_is_killed_leaves_a_whole_run_or_none(tmp_path: Path):
    """Kill -9 at twenty moments: a folder that counts as a run always holds its whole spec."""
    program = (
        "import sys; from pathlib import Path; from samite.settings import Settings; from samite.engines.local.client import LocalEngine\n"
        "class Quiet(LocalEngine):\n    def ensure_supervisor(self, folder): return False\n"
        "for i in range(400):\n    Quiet(Settings(home=Path(sys.argv[1]))).submit({'metadata': {'name': f'r{i}'}, 'spec': {'x': 'y' * 5000}}, 't')\n"
    )
    for moment in range(8):
        process = subprocess.Popen([sys.executable, "-c", program, str(tmp_path / str(moment))])
        time.sleep(0.25 + 0.04 * moment)
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=10)
        for run in LocalEngine(Settings(home=tmp_path / str(moment))).runs():
            assert run.read_json(run.spec_file)["run"]["spec"]["x"] == "y" * 5000  # type: ignore[index]
            assert (run.path / "run.yaml").read_text() == "t"
            assert run.requests.is_dir()


@pytest.mark.parametrize("command", [("logs", "demo", "-f"), ("events", "demo", "-f"), ("status", "demo", "-w")])
def test_ctrl_c_while_following_exits_130_says_how_to_come_back_and_leaves_the_run_alone(tmp_path: Path, command: tuple[str, ...]):
    folder = RunFolder(tmp_path / "runs" / "demo")
    folder.create()
    folder.write_json(folder.spec_file, {"uid": "u", "submittedAt": 1.0, "run": document(stages=[])})
    folder.write_json(folder.status_file, {"name": "demo", "phase": "Running", "settled": False})
    folder.events_file.write_text('{"time": 1.0, "name": "samite.run.held", "severity": "ERROR", "attributes": {}}\n')
    logs = folder.attempt("demo-s00-a1") / "logs"
    logs.mkdir(parents=True)
    (logs / "rank-0.log").write_text("hello\n")
    with folder.supervised():
        environment = {**os.environ, "SAMITE_HOME": str(tmp_path)}
        process = subprocess.Popen(
            [sys.executable, "-m", "samite", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        try:
            assert process.stdout is not None
            assert process.stdout.readline()
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=20)
        finally:
            process.kill()
    assert process.returncode == 130
    assert f"samite {command[0]} demo" in errors
    assert json.loads(folder.status_file.read_text())["phase"] == "Running"
    assert folder.pending_requests() == []


def test_no_secret_of_the_environment_or_the_command_line_is_in_a_traceback(tmp_path: Path):
    """Scenario S19: an unexpected error with credentials in scope, with and without --debug."""
    program = (
        "import sys; from samite.cli import app\n"
        "from samite.engines.local import client\n"
        "def explode(self, *a, **k):\n    password = 'hunter2-local'; raise RuntimeError('boom')\n"
        "client.LocalEngine.runs = explode\n"
        "sys.exit(app.run(sys.argv[1:]))\n"
    )
    environment = {**os.environ, "SAMITE_HOME": str(tmp_path), "AWS_SECRET_ACCESS_KEY": "hunter2-env"}
    for arguments in (["list"], ["--debug", "list"]):
        done = subprocess.run(
            [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=60, env=environment, check=False
        )
        assert done.returncode == 1
        assert "unexpected RuntimeError: boom" in done.stderr
        assert "hunter2" not in (done.stdout + done.stderr).replace("password = 'hunter2-local'; raise", "")
        assert ("Traceback" in done.stderr) is ("--debug" in arguments)


def test_arguments_that_make_no_sense_exit_2_and_say_where_help_is(tmp_path: Path):
    for arguments in (["logs", "--source", "nowhere"], ["status", "--no-such"], ["nonsense"], ["submit"]):
        done = subprocess.run(
            [sys.executable, "-m", "samite", *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, "SAMITE_HOME": str(tmp_path)},
            check=False,
        )
        assert done.returncode == 2, arguments
        assert done.stdout == ""
        assert "Traceback" not in done.stderr
