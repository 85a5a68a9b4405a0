"""Drill 26: `samite submit` and `samite status -w` interrupted and killed, against a real API server. The run is whole or absent, and unharmed.

No nodes: the run is one object, and all that a submission does is to make it.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from api_server import lone_api_server
from box.binaries import MissingToolError
from box.kubectl import Kubectl

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(280)]
MOMENTS = 8
STAGE = {"name": "pretrain", "kind": "Pretrain", "contextLength": 1024, "batch": {"tokens": 8192, "microBatch": 1}, "budget": {"steps": 60}}
SPEC = {"engine": "RayCluster", "suspend": True, "checkpoint": {"uri": "s3://bucket/demo"}, "stages": [STAGE]}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubectl]:
    from samite.cli.app import run

    try:
        with lone_api_server(tmp_path_factory.mktemp("interrupted")) as kubectl:
            assert run(["--kubeconfig", str(kubectl.kubeconfig), "crds", "apply"]) == 0
            yield kubectl.within("default")
    except MissingToolError as error:
        pytest.skip(str(error))


def samite(server: Kubectl, folder: Path, *words: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "SAMITE_HOME": str(folder), "SAMITE_NO_INPUT": "1"}
    command = [sys.executable, "-m", "samite", "--kubeconfig", str(server.kubeconfig), "-n", "default", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True)


def document(folder: Path, name: str) -> Path:
    file = folder / f"{name}.json"
    whole = {"apiVersion": "samite.dev/v1alpha1", "kind": "TrainingRun", "metadata": {"name": name}, "spec": SPEC}
    file.write_text(json.dumps(whole), encoding="utf-8")
    return file


def submit_takes_s(server: Kubectl, folder: Path, name: str) -> float:
    """How long an undisturbed submission takes here now."""
    began_s = time.monotonic()
    process = samite(server, folder, "submit", "-f", str(document(folder, name)))
    said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    return time.monotonic() - began_s


@pytest.mark.parametrize(("number", "wanted"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)], ids=["kill -9", "Ctrl-C"])
def test_a_submission_that_is_ended_leaves_a_whole_run_or_none(server: Kubectl, tmp_path: Path, number: signal.Signals, wanted: int):
    """Ended at moments that are spread over its time, most of them where it talks to the server. Submitted again, there is one run."""
    whole_s = submit_takes_s(server, tmp_path, f"undisturbed-{number.name.lower()}")
    ends: Counter[str] = Counter()
    for moment in range(MOMENTS):
        name = f"{'killed' if number is signal.SIGKILL else 'stopped'}-{moment}"
        file = document(tmp_path, name)
        process = samite(server, tmp_path, "submit", "-f", str(file))
        # From half of its time on: before, Python is still importing.
        time.sleep(whole_s * (0.5 + 0.5 * moment / MOMENTS))
        process.send_signal(number)
        out, errors = process.communicate(timeout=60)
        # Before our code and after it the interpreter ends by the signal itself, which a shell calls 130 as well.
        assert process.returncode in {wanted, 0, -number}, (process.returncode, out, errors)
        assert "Traceback" not in errors
        stored = server.items("trainingruns", f"--field-selector=metadata.name={name}")
        ends["whole" if stored else "absent"] += 1
        for run in stored:
            assert run["spec"]["stages"][0]["budget"] == {"steps": 60}
            assert run["spec"]["suspend"] is True
        if process.returncode == 0:
            assert stored
        again = samite(server, tmp_path, "submit", "-f", str(file))
        out, errors = again.communicate(timeout=60)
        assert again.returncode == 0, errors
        assert ("already submitted" in out) is bool(stored)
        assert len(server.items("trainingruns", f"--field-selector=metadata.name={name}")) == 1
    print(f"{number.name}: {dict(ends)}; an undisturbed submission takes {whole_s:.1f} s")


@pytest.mark.parametrize(("number", "wanted"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)], ids=["kill -9", "Ctrl-C"])
def test_who_stops_watching_changes_nothing_about_the_run(server: Kubectl, tmp_path: Path, number: signal.Signals, wanted: int):
    name = f"watched-{number.name.lower()}"
    submit_takes_s(server, tmp_path, name)
    status = {
        "phase": "Running",
        "reason": "Training",
        "currentStage": "pretrain",
        "stageIndex": 0,
        "attempt": 1,
        "submissionId": f"{name}-s00-a1",
    }
    server("patch", "trun", name, "--subresource=status", "--type=merge", "-p", json.dumps({"status": status}))
    before = server.get("trun", name)
    process = samite(server, tmp_path, "status", name, "-w")
    assert process.stdout is not None
    assert process.stdout.readline()
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == wanted
    if number is signal.SIGINT:
        assert f"status {name}" in errors
    assert server.get("trun", name) == before
