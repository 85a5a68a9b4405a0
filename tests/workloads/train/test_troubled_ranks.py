"""Trouble that is no failure: slow and silent ranks, storage and telemetry that don't answer. Training goes on, and the signs are there to be read."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from samite.checkpoint import Catalog, open_store


def test_a_rank_of_twice_the_time_is_reported_and_nothing_restarts(new_attempt, run_attempt, ask_for_fault, events_of, document):
    document["spec"]["detection"]["straggler"].update(steps=3)
    document["spec"]["stages"][0]["budget"] = {"steps": 8}
    attempt = new_attempt(ranks=2)
    ask_for_fault(attempt, {"kind": "slow", "rank": 1, "step": 2, "times": 100, "factor": 3.0})
    assert run_attempt(attempt) == [0, 0]
    found = events_of(attempt, "samite.straggler.detected")
    assert {event["attributes"]["samite.rank"] for event in found} == {1}


def test_the_heartbeats_of_a_sleeping_rank_and_of_those_who_wait_for_it_stand_still(new_attempt, run_attempt, ask_for_fault):
    attempt = new_attempt(ranks=2)
    ask_for_fault(attempt, {"kind": "sleep", "rank": 1, "step": 3, "seconds": 4.0})
    beats = [Path(attempt.run_folder) / "heartbeats" / f"rank-{rank}.json" for rank in (0, 1)]
    ages: list[float] = []

    def watch():
        ends_s = time.monotonic() + 60
        while time.monotonic() < ends_s and (not ages or ages[-1] < 3.0):
            time.sleep(0.1)
            read = [json.loads(beat.read_text()) for beat in beats if beat.exists()]
            if len(read) == 2 and all(beat["step"] == 2 for beat in read):
                ages.append(min(time.monotonic() - beat["monotonic_s"] for beat in read))

    assert run_attempt(attempt, meanwhile=watch) == [0, 0]
    assert max(ages) >= 3.0


def test_storage_that_fails_during_the_stage_does_not_stop_the_training(new_attempt, run_attempt, document, events_of, result_of):
    document["spec"]["checkpoint"].update(deadlineSeconds=3.0, stallSeconds=1.0)
    document["spec"]["stages"][0]["budget"] = {"steps": 40}
    attempt = new_attempt()
    place, beat = Path(attempt.run_folder) / "checkpoints", Path(attempt.run_folder) / "heartbeats" / "rank-0.json"

    def break_storage():
        """A file where the checkpoints' folder was, until a save has failed."""
        ends_s = time.monotonic() + 60
        while time.monotonic() < ends_s and not (beat.exists() and json.loads(beat.read_text())["checkpoint_step"] >= 2):
            time.sleep(0.02)
        kept = place.rename(place.with_name("kept"))
        place.write_text("not a folder")
        time.sleep(1.5)
        place.unlink()
        shutil.move(kept, place)

    assert run_attempt(attempt, meanwhile=break_storage) == [0]
    assert result_of(attempt).step == 40
    steps = [entry.step for entry in Catalog(open_store(attempt.checkpoint_uri)).list()]
    assert max(steps) == 40


def test_a_telemetry_endpoint_that_never_answers_costs_a_bounded_goodbye(new_attempt, run_attempt, document, losses):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        document["spec"]["telemetry"]["otlpEndpoint"] = f"http://127.0.0.1:{silent.getsockname()[1]}"
        attempt = new_attempt()
        began_s = time.monotonic()
        assert run_attempt(attempt) == [0]
        assert time.monotonic() - began_s < 60
    assert sorted(losses(attempt.run_folder)) == [1, 2, 3, 4, 5, 6]


@pytest.fixture
def spec_file(tmp_path, document) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def start(*arguments, timeout_s=100.0):
    """Runs `python arguments`, in a process group that is killed whole when the time is over."""
    environment = {**os.environ, "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
    program = subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )
    try:
        out, err = program.communicate(timeout=timeout_s)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
    return SimpleNamespace(returncode=program.returncode, stdout=out, stderr=err)


def test_one_rank_starts_by_hand_and_several_under_torchrun(spec_file, tmp_path):
    entry = ("-m", "samite_workloads.entrypoint")
    alone = start(*entry, "--run", str(spec_file), "--folder", str(tmp_path / "alone"))
    assert (alone.returncode, alone.stdout.splitlines()[-1].split(",")[0]) == (0, "stage_complete: step 6"), alone.stderr

    written = start(*entry, "--run", str(spec_file), "--folder", str(tmp_path / "two"), "--ranks", "2", "--only-write")
    attempt = written.stdout.strip()
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *entry)
    together = start(*torchrun, "--attempt", attempt)
    assert together.returncode == 0, together.stderr
    assert json.loads((Path(attempt).parent / "result.json").read_text())["step"] == 6


def test_a_spec_that_is_none_is_refused_with_its_problems(tmp_path):
    broken = tmp_path / "run.yaml"
    broken.write_text("apiVersion: samite.dev/v1alpha1\nkind: TrainingRun\nmetadata: {name: x}\nspec: {stagez: []}\n")
    refused = start("-m", "samite_workloads.entrypoint", "--run", str(broken), "--folder", str(tmp_path / "run"))
    assert refused.returncode == 3
    assert "stagez" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_an_attempt_that_no_restart_can_help_ends_with_93(new_attempt, tmp_path):
    attempt = new_attempt(stage=1)
    path = tmp_path / "attempt.json"
    attempt.write(path)
    assert start("-m", "samite_workloads.entrypoint", "--attempt", str(path)).returncode == 93
